"""Which applications, and which runs, are orphans."""

from __future__ import annotations

import pytest

from coordd.core.jobs.applications import ALIVE, FAILED, Application, run_mark
from coordd.core.ledger.rows import RUN_COLUMNS, Row
from coordd.services.applications.methods import strays, what_is_wrong

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
