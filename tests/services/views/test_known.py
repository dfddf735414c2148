"""`why`: whether there is such a run, for its exit code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from support.small_cluster import job

from coordd.core.groups.expand import Expand
from coordd.core.jobs.job import After
from coordd.core.jobs.schedule import parse_schedule
from coordd.core.ledger.fires import SKIPPED
from coordd.errors import UnavailableError
from coordd.services.control.callers import OPERATOR, Caller
from coordd.services.views.explanations import Explanations
from coordd.services.views.fires import Fire
from services.control.test_why_answers import row

NOON = 1_795_435_200.0  # 2026-11-23T12:00:00Z
HOURLY = parse_schedule("@hourly")
JOBS = {
    "tick": job("tick", schedule=HOURLY),
    "hand": job("hand"),
    "child": job("child", after=After(jobs=("tick",))),
    "parts": job("parts", schedule=HOURLY, expand=Expand(key="part", values=("a", "b"))),
}
ROWS = {"tick#1", "parts#7~0"}
WAITING = {"parts#8~1"}


class Known(Explanations):
    """The methods, and what a node knows of its jobs. ``decided``: the fire times of earlier definitions."""

    def __init__(self, *decided: str, away: bool = False) -> None:
        node = SimpleNamespace(
            jobs=JOBS,
            pursuits=SimpleNamespace(pursuits={}),
            triggers=SimpleNamespace(requests=WAITING),
            following=SimpleNamespace(waiting=lambda *_: []),
            planner=SimpleNamespace(settled_to=lambda _: NOON),
            identity_from=0.0,
            skew_s=lambda _: 0.0,
        )
        driver: Any = SimpleNamespace(
            node=node, passed_over=lambda *_: "", now=lambda: SimpleNamespace(wall=NOON + 1800.0)
        )
        self._driver = driver
        ledger: Any = SimpleNamespace(query=self._query)
        self._ledger = ledger
        self._job_problems = lambda: {"broken": ["it cannot be read"]}
        self._decided = decided
        self._away = away

    async def _query(self, call: Any) -> Any:
        if self._away:
            raise UnavailableError("the ledger does not answer")
        ledger = SimpleNamespace(
            run=lambda run: row("success", run=run) if run in ROWS else None,
            runs=lambda *, job, limit: [row("success")] if job == "gone" else [],
            fired=lambda *_: [],
            ask=lambda _: SimpleNamespace(current={}),
        )
        return call(ledger)

    async def decision(self, run: str, *, looks: bool) -> Fire | None:
        return Fire(NOON, NOON, SKIPPED, "") if run in self._decided else None

    def is_known(self, subject: str) -> bool:
        caller = Caller(1, frozenset(), OPERATOR, 1, "ann")

        async def ask() -> bool:
            return await self._is_known(subject, caller, of_job="@" not in subject and "#" not in subject)

        return trio.run(ask)


@pytest.mark.parametrize(
    ("subject", "known"),
    [
        ("tick", True),
        ("broken", True),
        ("gone", True),  # its file is gone, its runs are not
        ("nobody", False),
        ("tick#1", True),
        ("tick#2", False),
        ("tick@2026-11-23T12:00:00Z", True),
        ("tick@2026-11-23T15:00:00Z", True),  # it is to come
        ("tick@2026-11-23T12:30:00Z", False),  # these were known too
        ("hand@2026-11-23T12:00:00Z", False),
        ("parts@2026-11-23T12:30:00Z", False),
        ("parts@yesterday", False),
        ("parts@2026-11-23T12:00:00Z", True),
        ("parts@2026-11-23T12:00:00Z~1", True),
        ("parts#7", True),
        ("parts#8", True),  # the ledger does not have it yet
        ("parts#9", False),
        ("child@2026-11-23T12:30:00Z", True),  # nobody knows which parent ends when
        ("broken@2026-11-23T12:30:00Z", True),
        ("tick@yesterday", False),
        ("nobody@2026-11-23T12:00:00Z", False),
    ],
)
def test_a_time_that_is_never_due_is_no_run(subject: str, known: bool) -> None:
    assert Known().is_known(subject) is known
    if "@" in subject or "#" in subject:
        assert Known(away=True).is_known(subject), "nobody can say so while the ledger does not answer"


def test_a_fire_time_of_an_earlier_definition_was_due() -> None:
    run = "tick@2026-11-23T12:30:00Z"
    assert Known(run).is_known(run)
