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


def test_all_cluster_managers_together_have_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients wait for that long: with a time for each job, `coordctl orphans` gave up before the answer came."""
    over = threading.Event()

    class Ledger:
        async def query(self, _read: object) -> tuple[list[Row], list[Row]]:
            return [], []

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
