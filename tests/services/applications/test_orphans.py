"""Which applications, and which runs, are orphans."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from coordd.core.jobs.applications import ALIVE, FAILED, Application, run_mark
from coordd.core.ledger.rows import RUN_COLUMNS, Row
from coordd.services.applications import methods
from coordd.services.applications.methods import OrphanMethods, strays, what_is_wrong
from coordd.services.control.callers import ADMIN
from coordd.services.control.lookups import Lookups

RUN = "nightly#1"
MARK = run_mark("prod", RUN)


def row(state: str, application_id: str = "") -> Row:
    made = Row([0] * len(RUN_COLUMNS))
    made.run, made.state, made.application_id = RUN, state, application_id
    return made


@pytest.mark.parametrize(
    ("state", "follows", "problem"),
    [
        ("started", "", ""),
        ("started", "a", ""),
        ("unknown", "", ""),
        ("retry", "", ""),
        ("started", "b", "its run follows b"),
        ("success", "a", "its run is success"),
        ("revoked", "", "its run is revoked"),
        ("", "", "no run of the ledger has its tag"),
    ],
)
def test_a_living_application_needs_a_live_run(state: str, follows: str, problem: str) -> None:
    found = [Application("a", ALIVE, MARK, 7, 0), Application("ended", FAILED, MARK)]

    views = strays("here", found, {MARK: row(state, follows)} if state else {})

    assert [(view["id"], view["place"], view["problem"]) for view in views] == (
        [("a", "here", problem)] if problem else []
    )


@pytest.mark.parametrize(
    ("state", "follows", "problem"),
    [
        ("started", "a", ""),
        ("started", "", ""),
        ("started", "gone", "the cluster manager does not show gone"),
        ("started", "ended", "ended has ended there: failed"),
        ("received", "gone", ""),
        ("unknown", "gone", "its end is unknown, and a person says how it ended"),
    ],
)
def test_a_run_that_has_started_needs_its_application(state: str, follows: str, problem: str) -> None:
    found = {"a": Application("a", ALIVE, MARK), "ended": Application("ended", FAILED, MARK)}

    assert what_is_wrong(row(state, follows), found, "") == problem
    if state == "unknown":
        assert what_is_wrong(row(state, follows), found, "looked up") == "looked up"


def asked(rows: list[Row], living: list[Application], jobs: str = "a") -> dict[str, Any]:
    """What `orphans` answers with this ledger, whose answers have a limit, and these applications."""

    class Rows:
        def runs(self, *, job: str = "", state: str = "", limit: int = 100) -> list[Row]:
            return [one for one in rows if job in ("", one.job) and state in ("", one.state)][:limit]

        def run(self, name: str) -> Row | None:
            return next((one for one in rows if one.run == name), None)

    class Ledger:
        async def query(self, read: Any) -> Any:
            return read(Rows())

    manager = SimpleNamespace(place="yarn", of_cluster=lambda _mark: living)
    made: Any = OrphanMethods.__new__(OrphanMethods)
    made.reconciling = SimpleNamespace(manager=lambda *_: manager, cluster="prod", why=lambda _run: "")
    made._driver = SimpleNamespace(
        node=SimpleNamespace(jobs={name: SimpleNamespace(drives_elsewhere=True) for name in jobs})
    )
    made._ledger, made._lookups = Ledger(), Lookups()

    async def main() -> dict[str, Any]:
        found: dict[str, Any] = await made.orphans({}, SimpleNamespace(role=ADMIN))
        return found

    return trio.run(main)


def a_run(name: str, state: str, application_id: str = "") -> Row:
    made = row(state, application_id)
    made.run, made.job, made.node = name, name.partition("#")[0], "edge-1.7"
    return made


def alive(name: str, ident: str) -> Application:
    return Application(ident, ALIVE, run_mark("prod", name), 7, 0)


def test_many_runs_of_other_jobs_hide_none_that_has_an_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was called one that no run knows, and a person was told to end it."""
    monkeypatch.setattr(methods, "ROWS_MAX", 5)
    rows = [a_run(f"other#{number}", "started") for number in range(9)] + [a_run("a#1", "started", "app-1")]

    found = asked(rows, [alive("a#1", "app-1"), alive("a#forgotten", "app-2")])

    (one,) = found["applications"]
    assert one["id"] == "app-2"
    assert one["problem"].startswith(
        "no run of this node's jobs has its tag; more than 5 are started, and one of a job"
    )
    assert (found["runs"], found["problems"]) == ([], [])


def test_a_job_with_more_runs_than_are_read_has_no_application_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "ROWS_MAX", 5)
    rows = [a_run(f"a#{number}", "started", f"app-{number}") for number in range(9)]

    found = asked(rows, [alive("a#8", "app-8")], jobs="ab")

    assert [(one["id"], one["problem"]) for one in found["applications"]] == [
        ("app-8", "cannot be told: a live run of a may have its tag, and only 5 of a state are read")
    ]


def test_only_a_ledger_that_was_read_whole_has_no_such_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "ROWS_MAX", 3)
    ended = [a_run(f"a#{number}", "success") for number in range(3)]
    for rows, problem in (
        (ended[:2], "no run of the ledger has its tag"),
        (ended, "no live run has its tag, nor the newest 3 of each job"),
    ):
        assert [one["problem"] for one in asked(rows, [alive("a#9", "app")])["applications"]] == [problem]


def test_all_cluster_managers_together_have_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients wait for that long: with a time for each job, `coordctl orphans` gave up before the answer came."""
    over = threading.Event()

    class Ledger:
        async def query(self, _read: object) -> tuple[list[Row], list[Row], str]:
            return [], [], ""

    monkeypatch.setattr(methods, "LOOKUP_S", 0.3)
    made: Any = OrphanMethods.__new__(OrphanMethods)
    made.reconciling = SimpleNamespace(manager=lambda *_: over.wait(60.0) and None, cluster="prod")
    made._driver = SimpleNamespace(
        node=SimpleNamespace(jobs={name: SimpleNamespace(drives_elsewhere=True) for name in "abc"})
    )
    made._ledger, made._lookups = Ledger(), Lookups()

    async def main() -> dict[str, Any]:
        try:
            found: dict[str, Any] = await made.orphans({}, SimpleNamespace(role=ADMIN))
            return found
        finally:
            over.set()

    assert trio.run(main)["problems"] == [
        "the cluster manager of a did not answer within 0.3 s",
        "the cluster managers of b, c were not asked: the 0.3 s for all of them were over; ask again",
    ]
