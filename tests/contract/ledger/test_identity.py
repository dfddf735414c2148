"""The identity of a ledger: one table of cases for every kind of ledger, for the rules in Python and in Lua."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import servers
from support.ledger_calls import LEASE_S, FakeClock, Nodes, grant_of
from support.memory import MemoryLedger
from support.stepped_redis import OneClock, SteppedLedger

from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.core.ledger.identity import Known
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Close, ListOpen, Register, Settled
from coordd.core.ledger.rows import Cursor
from coordd.core.ledger.runner_requests import Grant, Registration, Request
from coordd.errors import ForeignLedgerError, LedgerClosedError, RefusedError, UnavailableError
from coordd.ports import Ledger

OURS, OTHER, BEFORE, PROPOSED = "1" * 16, "2" * 16, "3" * 16, "4" * 16


class Place:
    """One ledger. The test sets and reads its ``meta`` directly."""

    def __init__(
        self,
        ask: Callable[[Known], OpenAnswer],
        write: Callable[..., None],
        read: Callable[[str], str],
        close: Callable[[], None],
    ) -> None:
        self.ask, self.write, self.read, self.close = ask, write, read, close


def asked(ledger: MemoryLedger | SqliteLedger, known: Known) -> OpenAnswer:
    """The ledger's answer to a node that knows this about the ledger."""
    ledger.known = known
    answer = ledger.ask(ListOpen(jobs=("job",)))
    assert isinstance(answer, OpenAnswer)
    return answer


def memory(_path: Path, _url: str) -> Place:
    clock = FakeClock()
    ledger = MemoryLedger(clock)

    def write(*, recovering: bool = False, **meta: str) -> None:
        clock.recovering_s = 30.0 if recovering else 0.0
        ledger._store.metas.update(meta)

    return Place(partial(asked, ledger), write, ledger._store.meta, ledger.close)


def sqlite(path: Path, _url: str) -> Place:
    clock, file = FakeClock(), f"{path}/{uuid.uuid4().hex}.db"
    ledger = SqliteLedger(file, clock=clock)

    def write(*, recovering: bool = False, **meta: str) -> None:
        clock.recovering_s = 30.0 if recovering else 0.0
        with contextlib.closing(sqlite3.connect(file)) as db, db:
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", meta.items())

    def read(key: str) -> str:
        with contextlib.closing(sqlite3.connect(file)) as db:
            found = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return found[0] if found else ""

    return Place(partial(asked, ledger), write, read, ledger.close)


def redis(_path: Path, url: str) -> Place:
    clock, cluster = OneClock(), f"t-{uuid.uuid4().hex}"
    SteppedLedger(url, clock, cluster=cluster).close()

    def ask(known: Known) -> OpenAnswer:
        known.epoch = "-"
        ledger = SteppedLedger(url, clock, cluster=cluster, known=known, fresh=None)
        try:
            answer = ledger.ask(ListOpen(jobs=("job",)))
        finally:
            ledger.close()
        assert isinstance(answer, OpenAnswer)
        return answer

    plain = SteppedLedger(url, clock, cluster=cluster, fresh=None)  # lua_mutants records what this writes too

    def write(*, recovering: bool = False, **meta: str) -> None:
        fields = dict(meta)
        if recovering:
            micros = clock.wall * 1e6
            fields |= {"open_at": f"{clock.wall + 30:.0f}", "mark": f"{micros:.0f}"}
        if fields:
            plain.read([("HSET", plain.key("meta"), *[part for pair in fields.items() for part in pair])])

    def read(key: str) -> str:
        (value,) = plain.read([("HGET", plain.key("meta"), key)])
        return (value or b"").decode().replace("0", "") if key == "provisional" else (value or b"").decode()

    return Place(ask, write, read, plain.close)


@pytest.fixture(params=[memory, sqlite, redis], ids=["memory", "sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    url = request.getfixturevalue("redis_url") if request.param is redis else ""
    made = request.param(tmp_path, url)
    yield made
    made.close()


@pytest.fixture
def made() -> Iterator[list[Any]]:
    """Closes the ledgers of a test at its end."""
    ledgers: list[Any] = []
    yield ledgers
    for ledger in ledgers:
        ledger.close()


class Case(NamedTuple):
    """The ledger's values, the caller's knowledge, and the result. With ``found`` None the
    ledger refuses the caller.
    """

    name: str
    meta: dict[str, Any]
    pin: str
    at_home: bool
    proposal: str
    found: str | None
    provisional: str = ""


CASES = [
    Case("a new one takes what is proposed", {}, "", False, PROPOSED, PROPOSED),
    Case("in a quarantine only for the time being", {"recovering": True}, "", False, PROPOSED, PROPOSED, "1"),
    Case("nobody proposes one", {}, "", False, "", ""),
    Case("it has one", {"identity": OURS}, "", False, PROPOSED, OURS),
    Case("it is the pinned one", {"identity": OURS}, OURS, True, PROPOSED, OURS),
    Case("the pinned one has moved", {"identity": OURS}, OURS, False, PROPOSED, OURS),
    Case("another one", {"identity": OTHER}, OURS, True, PROPOSED, None),
    Case("another one elsewhere", {"identity": OTHER}, OURS, False, PROPOSED, None),
    Case("another one that recovers", {"identity": OTHER, "recovering": True}, OURS, True, PROPOSED, None),
    Case("it continues the pinned one", {"identity": OTHER, "predecessor": OURS}, OURS, False, PROPOSED, OTHER),
    Case("it continues a third one", {"identity": OTHER, "predecessor": BEFORE}, OURS, False, PROPOSED, None),
    Case("flushed", {}, OURS, True, PROPOSED, OURS),
    Case("flushed, in its quarantine", {"recovering": True}, OURS, True, PROPOSED, OURS),
    Case("an empty one elsewhere", {}, OURS, False, PROPOSED, None),
    Case("an empty one elsewhere that recovers", {"recovering": True}, OURS, False, PROPOSED, None),
    Case(
        "flushed, and a newcomer was first",
        {"identity": OTHER, "provisional": "1", "recovering": True},
        OURS,
        True,
        PROPOSED,
        OURS,
    ),
    Case(
        "the same elsewhere", {"identity": OTHER, "provisional": "1", "recovering": True}, OURS, False, PROPOSED, None
    ),
    Case(
        "the newcomer's stayed over the quarantine",
        {"identity": OTHER, "provisional": "1"},
        OURS,
        True,
        PROPOSED,
        None,
        "1",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_who_is_let_in(place: Place, case: Case) -> None:
    place.write(**case.meta)
    here = "redis://h/0"
    known = Known(
        pin=case.pin,
        pinned_at=here if case.at_home or not case.pin else "redis://h/1",
        address=here,
        proposal=case.proposal,
    )
    if case.found is None:
        with pytest.raises(ForeignLedgerError, match="accept-identity") as caught:
            place.ask(known)
        assert OURS in str(caught.value)
        assert (OTHER if "identity" in case.meta else "has none") in str(caught.value)
        assert ("at redis://h/1" in str(caught.value)) == (not case.at_home)
        assert (place.read("identity"), place.read("schema")) in (
            (case.meta.get("identity", ""), ""),
            (case.meta.get("identity", ""), "1"),
        ), "who is refused writes nothing"
        return
    answer = place.ask(known)
    assert (answer.identity, answer.predecessor) == (case.found, case.meta.get("predecessor", ""))
    assert (known.found, place.read("identity")) == (case.found, case.found)
    if not case.pin:
        assert place.read("provisional") == case.provisional
    again = place.ask(known)
    assert (again.identity, place.read("identity")) == (case.found, case.found)


def test_the_first_of_two_that_propose_one_makes_it(place: Place) -> None:
    first, second = Known(proposal=OURS), Known(proposal=OTHER)
    assert place.ask(first).identity == place.ask(second).identity == OURS


def test_a_closed_one_answers_nobody(place: Place) -> None:
    place.write(identity=OURS, closed="root at noon")
    for known in (Known(pin=OURS), Known(), Known(pin=OTHER), Known(proposal=PROPOSED)):
        with pytest.raises(LedgerClosedError, match="closed by"):
            place.ask(known)


def test_a_refusal_is_no_answer_for_whoever_knows_nothing_of_it() -> None:
    """Services and runners that wait for a ledger continue to wait, and launch nothing."""
    assert issubclass(ForeignLedgerError, UnavailableError)
    assert issubclass(LedgerClosedError, UnavailableError)


def test_a_flushed_redis_gets_its_identity_back_with_its_quarantine() -> None:
    with servers.redis() as own:
        known = Known("?", proposal=OURS)
        ledger = RedisLedger(own.url, quarantine_s=40.0, known=known)
        ledger.ask(ListOpen(jobs=("job",)))
        ledger.accept_epoch()
        known.use(known.found)
        own.cli("FLUSHALL")
        newcomer = RedisLedger(own.url, quarantine_s=40.0, known=Known(proposal=OTHER))
        answer = newcomer.ask(ListOpen(jobs=("job",)))
        assert isinstance(answer, OpenAnswer)
        assert (answer.identity, answer.recovering_s > 0) == (OTHER, True)
        back = ledger.ask(ListOpen(jobs=("job",)))
        assert isinstance(back, OpenAnswer)
        assert (back.identity, back.recovering_s > 30.0) == (OURS, True)
        seen = newcomer.ask(ListOpen(jobs=("job",)))
        assert isinstance(seen, OpenAnswer)
        assert seen.identity == OURS
        ledger.close()
        newcomer.close()


def test_an_older_coordd_goes_on_with_the_same_file(tmp_path: Path) -> None:
    """The new version adds the table, and the schema's version stays. A file without the table gets it."""
    path = f"{tmp_path}/ledger.db"
    SqliteLedger(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE meta")  # the file as an earlier version made it
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    ledger = SqliteLedger(path, known=Known(proposal=OURS))
    answer = ledger.ask(ListOpen(jobs=("job",)))
    assert isinstance(answer, OpenAnswer)
    assert answer.identity == OURS
    ledger.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)


# ---- close, export, and import elsewhere


CLOSABLE = ["memory", "sqlite", "redis"]


@pytest.mark.parametrize("kind", CLOSABLE)
def test_it_is_not_closed_while_attempts_hold_leases(
    kind: str, make_ledger: Callable[[str], Ledger], clock: FakeClock
) -> None:
    nodes = Nodes(make_ledger(kind), clock)
    runs = [f"job{number:02}#1" for number in range(12)]
    for run in runs:
        nodes.granted(nodes.of(run))
    nodes.ask(Register(of=nodes.of("waits#1")))
    said = nodes.ask(Close(force=False, by="root"))
    assert (said.word, said.by) == ("held", ", ".join(runs[:10]) + " and 2 more")
    assert nodes.ask(Register(of=nodes.of("waits#2"))).word == "ok"
    assert nodes.ask(Close(force=True, by="root")).word == "ok"


def needed(kind: type[Request[Any]]) -> list[tuple[str, Parameter]]:
    """The parameters of a request that have no default."""
    return [(name, one) for name, one in signature(kind).parameters.items() if one.default is one.empty]


@pytest.mark.parametrize("kind", CLOSABLE)
def test_what_waits_does_not_keep_it_open_and_afterwards_nobody_is_answered(
    kind: str, make_ledger: Callable[[str], Ledger], clock: FakeClock
) -> None:
    ledger = make_ledger(kind)
    ledger.known = Known(pin=OURS) if kind == "memory" else ledger.known  # type: ignore[attr-defined]  # memory has it too
    nodes = Nodes(ledger, clock)
    nodes.ask(Register(of=nodes.of("waits#1")))
    assert nodes.ask(Close(force=False, by="root")).word == "ok"
    grant, of = grant_of("waits#1", 0, 5, "nonce"), nodes.of("waits#1")
    plain: dict[type, Any] = {str: "success", int: 1, float: LEASE_S, bool: True, Registration: of, Grant: grant}
    plain |= {Cursor: Cursor(not_before=0.0, run="x"), Settled: Settled(1.0)}
    named = {"how": "changed"}  # which is one of few words
    kinds: list[type[Request[Any]]] = [
        kind for kind in Request.__subclasses__() if kind.__module__.startswith("coordd.core.ledger.")
    ]
    assert len(kinds) >= 29
    requests = [kind(**{name: named.get(name, plain[one.annotation]) for name, one in needed(kind)}) for kind in kinds]
    for request in requests:
        with pytest.raises(LedgerClosedError, match="export --close"):
            ledger.ask(request)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_an_import_continues_the_closed_one_and_those_who_used_that_follow(
    kind: str, tmp_path: Path, redis_url: str, made: list[Any]
) -> None:
    def opened(place: str, known: Known) -> Any:
        if kind == "redis":
            cluster = f"{tmp_path.name}-{place}-{os.getpid()}"
            made.append(RedisLedger(redis_url, cluster=cluster, known=known))
        else:
            made.append(SqliteLedger(f"{tmp_path}/{place}.db", known=known))
        return made[-1]

    node = Known("?", proposal=OURS, address="old")
    old = opened("old", node)
    nodes = Nodes(old, FakeClock())
    old.ask(ListOpen(jobs=("sales",)))
    if kind == "redis":
        old.accept_epoch()
    node.use(node.found)
    nodes.ask(Register(of=nodes.of("sales#1")))
    copy = list(old.export())
    assert copy[0]["kind"] == "job", "a copy says nothing of identities"
    assert nodes.ask(Close(force=False, by="root")).word == "ok"
    rows = list(old.export())
    assert rows[0] == {"kind": "ledger", "identity": OURS, "closed": rows[0]["closed"]}
    assert rows[1:] == copy

    node.address = "new"  # its configuration names the new place now
    new = opened("new", node)
    with pytest.raises(ForeignLedgerError, match="has none"):
        new.ask(ListOpen())
    person = opened("new", Known("-"))
    assert person.import_(rows) == len(rows) - 1
    answer = new.ask(ListOpen(jobs=("sales",)))
    assert answer.predecessor == OURS
    assert answer.identity not in (OURS, "")
    assert node.found == answer.identity
    assert [run.run for run in answer.runs] == ["sales#1"]
    stranger = opened("new", Known("?", pin=OTHER, pinned_at="old", address="new"))
    with pytest.raises(ForeignLedgerError, match=answer.identity):
        stranger.ask(ListOpen())

    with pytest.raises(RefusedError, match="does not continue it"):
        opened("old", Known("-")).import_(copy, replace=True)
    again = opened("old", Known("-"))
    again.import_(rows, replace=True)  # back in the old place: a third identity, which continues the first one
    assert again.status()["predecessor"] == OURS
    assert again.status()["identity"] not in (OURS, answer.identity)
    assert again.status()["closed"] is None


@pytest.mark.parametrize(
    "first",
    [
        {"kind": "ledger"},
        {"kind": "ledger", "identity": "x" * 16, "closed": "by"},
        {"kind": "ledger", "identity": OURS, "closed": ""},
        {"kind": "ledger", "identity": 7, "closed": "by"},
    ],
)
def test_a_head_that_says_nothing_of_use_is_refused(tmp_path: Path, first: dict[str, Any]) -> None:
    ledger = SqliteLedger(f"{tmp_path}/l.db")
    with pytest.raises(RefusedError, match="row 1: expected the identity"):
        ledger.import_([first])
    ledger.close()


def test_a_version_that_knows_of_no_closing_refuses_a_closed_one(redis_url: str) -> None:
    ledger = RedisLedger(redis_url, cluster=uuid.uuid4().hex, fresh=None)
    ledger.accept_epoch()
    ledger.ask(Close(force=False, by="root"))
    assert ledger.read([("HGET", ledger.key("meta"), "schema")]) == [b"0"], "its scripts look for 1"
    ledger.close()
