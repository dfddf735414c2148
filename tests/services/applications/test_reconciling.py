"""Which lost runs are looked up: none hides another one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from coordd.core.jobs.applications import ALIVE, Application, run_mark
from coordd.core.jobs.job import Command, Job, SparkSubmit
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.rows import RUN_COLUMNS, Row
from coordd.core.ledger.words import OK, UNKNOWN, AttemptNumber, Policy, Token
from coordd.services.applications import reconciling
from coordd.services.applications.reconciling import Reconciling

DRIVEN = Job(name="driven", digest="d", launch=SparkSubmit("/a.jar", master="yarn", deploy_mode="cluster"))
HELD = Job(name="held", digest="d", launch=Command(("/bin/true",)), on_lost="hold")


def row(run: str) -> Row:
    made = Row([""] * len(RUN_COLUMNS))
    made.run, made.job, made.digest, made.state = run, run.partition("#")[0], "d", UNKNOWN
    made.policy, made.reason = Policy().pack(), "its lease lapsed"
    made.attempt, made.token, made.relaunches, made.cancel, made.received_at = AttemptNumber(0), Token(7), 0, 0, 1.0
    made.node, made.args, made.lease, made.fire_at, made.scheduled = "n1.1", "{}", 60.0, 0.0, 0
    return made


class Site:
    """A ledger of rows, newest first; each application lives on YARN."""

    def __init__(self, *rows: Row) -> None:
        self.rows = rows
        self.reported: list[str] = []
        self.broken: Collection[str] = ()  # runs whose look-up fails by a mistake of ours
        jobs = {one.name: one for one in (DRIVEN, HELD)}
        node = SimpleNamespace(
            jobs=jobs,
            drives_elsewhere=True,
            definition=lambda name, _: jobs.get(name),
            pursuits=SimpleNamespace(endings=SimpleNamespace(tell=None)),
            look_again=None,
        )
        driver = SimpleNamespace(node=node, feed=lambda *_: None)
        self.service = Reconciling(
            cast(Any, driver), cast(Any, self), self.manager, cluster="prod", settle_s=lambda: 9.0
        )

    def manager(self, job: Job, run: Row | None) -> Any:
        assert run is not None
        if run.run in self.broken:
            raise ValueError("a mistake of ours")
        alive = Application("application_1_0001", ALIVE, run_mark("prod", run.run), 7, 0)
        return SimpleNamespace(find=lambda mark, known, tokens: [alive])

    async def query(self, ask: Callable[[Any], Any]) -> Any:
        return ask(self)

    async def write(self, report: Any) -> Answer:
        self.reported.append(report.grant.run)
        return Answer(OK)

    def runs(self, *, job: str = "", state: str = "", limit: int = 100) -> list[Row]:
        return [one for one in self.rows if job in ("", one.job) and state in ("", one.state)][:limit]

    def attempts(self, run: str) -> list[Any]:
        return []


def test_runs_of_other_jobs_that_wait_for_a_person_hide_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "RUNS_MAX", 3)
    site = Site(*[row(f"held#{number}") for number in range(5)], row("driven#1"))

    trio.run(site.service.look)

    assert site.reported == ["driven#1"]


def test_a_look_up_that_fails_by_a_mistake_hides_none() -> None:
    site = Site(row("driven#1"), row("driven#2"), row("driven#3"))
    site.broken = ("driven#2",)

    trio.run(site.service.look)

    assert sorted(site.reported) == ["driven#1", "driven#3"]
    assert site.service.why("driven#2") == "the look-up failed: a bug in coordd: ValueError: a mistake of ours"
