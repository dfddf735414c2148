"""Export, import and the end of a quarantine as the daemon does them, on both kinds of ledger."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from support import servers

from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.core.ledger.identity import Known
from coordd.core.ledger.requests import ListOpen, Register, Suspend
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import Policy
from coordd.errors import ForeignLedgerError, RefusedError, UnavailableError
from coordd.services.control import ledger_methods as module
from coordd.services.control.callers import ADMIN, OPERATOR, VIEWER, Caller
from coordd.services.control.ledger_methods import LedgerMethods
from coordd.services.ledger import LedgerService

DEADLINE_S = 30.0
TIMEOUT_S = 5.0
TIMEOUT_SHORT_S = 0.02
ROOT = Caller(0, frozenset(), ADMIN, 1, "root")


@pytest.fixture(scope="module")
def redis() -> Iterator[servers.Redis]:
    with servers.redis() as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """A function that opens a new, empty ledger's next connection."""
    if request.param == "sqlite":
        return lambda: SqliteLedger(f"sqlite:///{tmp_path}/ledger.db", TIMEOUT_S)
    return redis_opener(request.getfixturevalue("redis"))


def redis_opener(server: servers.Redis) -> Callable[[], Any]:
    cluster = uuid.uuid4().hex
    return lambda: RedisLedger(server.url, TIMEOUT_S, cluster=cluster, fresh=False)


class Desk:
    """The methods with a driver that only records calls."""

    def __init__(self, opened: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> None:
        self.service = LedgerService(opened, timeout_s)
        self.journal: list[tuple[str, str, int]] = []
        self.looked = 0
        driver: Any = SimpleNamespace(
            node=SimpleNamespace(
                look_again=self._look,
                accept_ledger=self._accept,
                full_hostname="n1.1",
                ledger="0" * 16,
                pinned=True,
                braked="",
                members={},
                rules=1,
                rulebook=SimpleNamespace(held_back_by=lambda: ["b.1"]),
            ),
            feed=lambda call, *args: call(*args),
            journal_control=lambda what, subject, uid, _name, **_: self.journal.append((what, subject, uid)),
        )
        self.methods = LedgerMethods(driver, self.service, "url")

    def _accept(self, identity: str) -> None:
        self.accepted = identity

    def _look(self) -> None:
        self.looked += 1

    def do(self, *steps: Callable[[LedgerMethods], Awaitable[Any]]) -> list[Any]:
        """Several calls, one after the other, in one event loop."""

        async def main() -> list[Any]:
            with trio.fail_after(DEADLINE_S):
                return [await step(self.methods) for step in steps]

        return trio.run(main)

    def call(self, name: str, **params: Any) -> Any:
        return self.do(lambda methods: methods.table()[f"ledger.{name}"].call(params, ROOT))[0]

    def exported(self, **params: bool) -> list[dict[str, Any]]:
        async def read(methods: LedgerMethods) -> list[dict[str, Any]]:
            return [message async for message in await methods.ledger_export(dict(params), ROOT)]

        messages: list[dict[str, Any]] = self.do(read)[0]
        return messages


@pytest.fixture
def desk_of() -> Iterator[Callable[[Callable[[], Any]], Desk]]:
    """A function that makes desks, which are closed in the end."""
    with contextlib.ExitStack() as stack:

        def make(opened: Callable[[], Any]) -> Desk:
            made = Desk(opened)
            stack.callback(made.service.close)
            return made

        yield make


@pytest.fixture
def desk(desk_of: Callable[..., Desk], opened: Callable[[], Any]) -> Desk:
    return desk_of(opened)


def fill(opened: Callable[[], Any], count: int) -> None:
    with contextlib.closing(opened()) as ledger:
        for number in range(count):
            of = Registration(f"sales#{number:04}", "sales", "d1", Policy(), 0.0, scheduled=False, args='{"é": "x"}')
            ledger.ask(Register(of=of))


def fake(**methods: Any) -> Any:
    """A ledger with only these methods."""
    return SimpleNamespace(close=lambda: None, **methods)


def portable(**methods: Any) -> Any:
    """A ledger that can be exported and imported, and nothing else."""
    return fake(**{"export": pytest.fail, "import_": pytest.fail, **methods})


def rows_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for message in messages for row in message.get("rows", ())]


# ---- roles


def test_who_may_do_what() -> None:
    table = LedgerMethods.table(LedgerMethods.__new__(LedgerMethods))
    assert {name.removeprefix("ledger."): method.role for name, method in table.items()} == {
        "status": VIEWER,
        "export": OPERATOR,
        "import": ADMIN,
        "accept_epoch": ADMIN,
        "accept-epoch": ADMIN,
        "accept_identity": ADMIN,
        "accept-identity": ADMIN,
    }


# ---- status


def test_status_is_the_same_question_for_every_ledger(desk: Desk) -> None:
    said = desk.call("status")
    assert {"url", "state", "error", "schema", "recovering_s", "weaker", "runs", "jobs"} <= set(said)
    assert said["state"] == "connected"
    assert isinstance(said["weaker"], list)
    assert said["rules"] == {"in_force": 1, "held_back_by": ["b.1"]}


def test_a_quarantine_that_no_sweep_has_told_of_shows_in_the_status(
    desk_of: Callable[..., Desk], redis: servers.Redis
) -> None:
    opened = redis_opener(redis)
    fill(opened, 1)
    said = desk_of(opened).call("status")
    assert said["state"] == "recovering"
    assert said["recovering_s"] > 0


# ---- export and import


def test_what_was_exported_is_imported_as_it_was(
    desk_of: Callable[..., Desk], desk: Desk, opened: Callable[[], Any], tmp_path: Path
) -> None:
    fill(opened, 40)
    messages = desk.exported()
    rows = rows_of(messages)
    assert messages[-1] == {"total": len(rows)} == {"total": 41}
    other = desk_of(lambda: SqliteLedger(f"sqlite:///{tmp_path}/other.db", TIMEOUT_S))
    assert other.call("import", rows=rows) == {"rows": 41, "replaced": False}
    assert rows_of(other.exported()) == rows
    assert other.journal == [("ledger.import", "41 rows", 0)]
    assert other.looked == 1
    assert desk.call("import", rows=rows, replace=True) == {"rows": 41, "replaced": True}
    assert rows_of(desk.exported()) == rows


def test_a_large_export_comes_in_pieces(desk: Desk, opened: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fill(opened, 30)
    monkeypatch.setattr(module, "PIECE_BYTES", 2000)
    messages = desk.exported()
    assert len(messages) > 5
    assert all(len(json.dumps(message)) < 4000 for message in messages)
    assert len({row.get("run") for row in rows_of(messages)}) == 31  # and the job's


def test_an_export_whose_ledger_goes_away_says_that_it_is_not_whole(
    desk_of: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield {"kind": "job"}
        raise UnavailableError("gone")

    monkeypatch.setattr(module, "PIECE_BYTES", 1)
    assert desk_of(lambda: portable(export=rows)).exported() == [{"rows": [{"kind": "job"}]}, {"error": "gone"}]


def test_an_export_that_cannot_begin_is_an_error(desk_of: Callable[..., Desk]) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        raise UnavailableError("gone")
        yield {}

    with pytest.raises(UnavailableError, match="gone"):
        desk_of(lambda: portable(export=rows)).exported()
    with pytest.raises(RefusedError, match="cannot be exported"):
        desk_of(fake).exported()


def test_a_ledger_that_cannot_be_read_is_not_closed(desk_of: Callable[..., Desk]) -> None:
    asked: list[Any] = []

    def rows() -> Iterator[dict[str, Any]]:
        raise UnavailableError("no answer in time")
        yield {}

    desk = desk_of(lambda: portable(export=rows, ask=asked.append, ask_all=asked.append))
    with pytest.raises(UnavailableError, match="in time"):
        desk.exported(close=True)
    assert asked == []
    assert desk.journal == []


def test_a_closed_ledger_is_exported_again(desk: Desk, opened: Callable[[], Any]) -> None:
    fill(opened, 3)
    with contextlib.suppress(RefusedError):  # a file has no quarantine
        desk.call("accept-epoch")
    said = [desk.exported(close=True), desk.exported(close=True)]
    assert said[0] == said[1]
    assert rows_of(said[0])[0]["kind"] == "ledger"
    assert len(rows_of(said[0])) == 5
    assert [what for what, _, _ in desk.journal].count("ledger.close") == 1


def test_an_import_in_pieces_is_one(desk: Desk, opened: Callable[[], Any]) -> None:
    fill(opened, 4)
    rows = rows_of(desk.exported())
    first = desk.call("import", rows=rows[:2], more=True)
    assert first["rows"] == 2
    assert desk.call("import", rows=rows[2:4], more=True, **{"import": first["import"]})["rows"] == 4
    assert desk.journal == [], "nothing has changed yet"
    assert desk.call("import", rows=rows[4:], replace=True, **{"import": first["import"]})["rows"] == 5
    assert rows_of(desk.exported()) == rows


@pytest.mark.parametrize("replace", [False, True])
def test_a_ledger_that_holds_rows_is_replaced_only_on_demand(
    desk: Desk, opened: Callable[[], Any], replace: bool
) -> None:
    fill(opened, 3)
    rows = rows_of(desk.exported())
    fewer = rows[:2]
    if replace:
        desk.call("import", rows=fewer, replace=True)
        assert rows_of(desk.exported()) == fewer
        assert desk.journal == [("ledger.import", "2 rows instead of all that was there", 0)]
    else:
        with pytest.raises(RefusedError) as info:
            desk.call("import", rows=fewer)
        assert info.value.kind == "not_empty"
        assert rows_of(desk.exported()) == rows
        assert desk.journal == []


def test_one_bad_row_and_nothing_is_imported(desk: Desk, opened: Callable[[], Any]) -> None:
    fill(opened, 3)
    rows = rows_of(desk.exported())
    for bad in ({**rows[-1], "run": "x#1", "token": "7"}, 5, {"kind": "cat"}, {**rows[-1], "run": "x#1", "state": "?"}):
        with pytest.raises(RefusedError, match="row 5"):
            desk.call("import", rows=[*rows, bad], replace=True)
    with pytest.raises(RefusedError, match="no rows"):
        desk.call("import", rows=[], replace=True)
    assert rows_of(desk.exported()) == rows
    assert desk.journal == []


def test_one_import_at_a_time_and_each_has_an_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(module, "boottime", lambda: now[0])
    first = desk.call("import", rows=[1], more=True)["import"]
    with pytest.raises(RefusedError, match="under way") as info:
        desk.call("import", rows=[2], more=True)
    assert info.value.kind == "try_later"
    with pytest.raises(RefusedError, match="no import 'other'"):
        desk.call("import", rows=[2], more=True, **{"import": "other"})
    now[0] += module.IMPORT_IDLE_S + 1
    with pytest.raises(RefusedError, match="no import"):
        desk.call("import", rows=[2], **{"import": first})
    assert desk.call("import", rows=[2], more=True)["rows"] == 1


def test_an_import_has_a_size(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IMPORT_BYTES_MAX", 1000)
    ident = desk.call("import", rows=["x" * 600], more=True)["import"]
    with pytest.raises(RefusedError) as info:
        desk.call("import", rows=["x" * 600], more=True, **{"import": ident})
    assert info.value.kind == "too_large"
    assert desk.call("import", rows=["x"], more=True)["rows"] == 1, "the next one may begin"


def test_an_import_without_an_answer_may_have_taken_place_and_is_recorded_so(desk_of: Callable[..., Desk]) -> None:
    def import_(_rows: Any, **_options: bool) -> int:
        raise UnavailableError("no answer in time")

    desk = desk_of(lambda: portable(import_=import_))
    with pytest.raises(UnavailableError, match="may have taken place"):
        desk.call("import", rows=[{}])
    assert desk.journal == [("ledger.import", "1 rows; whether it took place is not known", 0)]


def test_an_import_may_take_longer_than_a_question() -> None:
    def import_(_rows: Any, **_options: bool) -> int:
        threading.Event().wait(20 * TIMEOUT_SHORT_S)
        return 1

    assert Desk(lambda: portable(import_=import_), TIMEOUT_SHORT_S).call("import", rows=[{}])["rows"] == 1


def test_an_import_does_not_take_for_ever(desk_of: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def import_(_rows: Any, **_options: bool) -> int:
        release.wait(DEADLINE_S)
        return 0

    monkeypatch.setattr(module, "IMPORT_S", 0.05)
    with pytest.raises(UnavailableError, match="was not done within"):
        desk_of(lambda: portable(import_=import_)).call("import", rows=[{}])
    release.set()


# ---- quarantine


def test_a_person_ends_a_quarantine(desk_of: Callable[..., Desk], redis: servers.Redis) -> None:
    opened = redis_opener(redis)
    fill(opened, 1)
    desk = desk_of(opened)
    said = desk.call("accept-epoch")
    assert said["ended"]
    assert said["left_s"] > 0
    assert [(what, uid) for what, _, uid in desk.journal] == [("ledger.accept_epoch", 0)]
    assert desk.looked == 1
    assert desk.call("status")["recovering_s"] == 0
    assert desk.call("accept_epoch") == {"ended": False, "left_s": 0.0}
    assert len(desk.journal) == 1, "nothing was changed"


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_person_accepts_another_ledger(
    desk_of: Callable[..., Desk], tmp_path: Path, redis: servers.Redis, kind: str
) -> None:
    """The connection with the pin is refused. The request is sent without a pin, and the answer becomes the pin."""
    cluster, theirs = uuid.uuid4().hex, Known("?", proposal="b" * 16)

    def opened(known: Known) -> Any:
        if kind == "redis":
            return RedisLedger(redis.url, TIMEOUT_S, cluster=cluster, known=known)
        return SqliteLedger(f"sqlite:///{tmp_path}/ledger.db", TIMEOUT_S, known=known)

    with contextlib.closing(opened(theirs)) as ledger:
        ledger.ask(ListOpen())
    mine = Known("?", pin="a" * 16, pinned_at="elsewhere")
    desk = desk_of(lambda: opened(mine))
    desk.service._open_any = lambda: opened(Known("-"))
    with pytest.raises(ForeignLedgerError, match="accept-identity"):
        desk.do(lambda methods: methods._change(Suspend(job="job", suspended=True, by="root")))
    said = desk.call("accept-identity")
    assert (said["identity"], said["before"], desk.accepted) == ("b" * 16, "0" * 16, "b" * 16)
    assert [(what, uid) for what, _, uid in desk.journal] == [("ledger.accept_identity", 0)]


def test_a_file_has_no_quarantine(desk_of: Callable[..., Desk], tmp_path: Path) -> None:
    desk = desk_of(lambda: SqliteLedger(f"sqlite:///{tmp_path}/ledger.db", TIMEOUT_S))
    with pytest.raises(RefusedError) as info:
        desk.call("accept_epoch")
    assert info.value.kind == "not_recovering"
    assert desk.journal == []
