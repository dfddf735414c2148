"""How far drivers are: when they are asked, what is kept and told. Without a daemon, in trio's time."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from coordd.core.jobs.job import Command, Job, SparkSubmit
from coordd.core.ledger.words import AttemptNumber, Token
from coordd.core.ready import Launch, Now
from coordd.errors import RefusedError, UnavailableError
from coordd.ports import Driven, Seen
from coordd.services.progress.service import POLL_MAX_S, POLL_S, Progress, told_of
from coordd.services.runners import RunnerHandle

WALL = 1_763_683_200.0
SEEN = Seen(3, 1, 40, 12, 0, "http://edge-1:4040")
TOLD = {"stages": 3, "stages_done": 1, "tasks": 40, "tasks_done": 12, "tasks_failed": 0, "ui": "http://edge-1:4040"}

LAUNCHES: dict[str, SparkSubmit | Command] = {
    "etl": SparkSubmit("/a.py", conf={"spark.ui.port": "4050"}),
    "far": SparkSubmit("/a.py", deploy_mode="cluster"),
    "nowhere": SparkSubmit("/a.py", deploy_mode="cluster"),
    "sh": Command(("true",)),
}


class FakeDriver:
    """A driver's UI. ``answers`` are used up one by one; the last one stays."""

    def __init__(self, driven: Driven, answers: list[Any], asked: list[tuple[float, str]]) -> None:
        self.driven = driven
        self._answers = answers
        self._asked = asked

    def look(self, application_id: str, within_s: float) -> Seen:
        assert within_s > 0
        self._asked.append((trio.current_time(), application_id))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Seen)
        return answer


class Setup:
    """A node with runs, and what it asks."""

    def __init__(self, *answers: Any, took: list[float] | None = None) -> None:
        self.asked: list[tuple[float, str]] = []
        self.opened: list[Driven] = []
        self.took = took
        self.said: dict[str, str | None] = {}
        self.relayed: list[list[str]] = []
        self.runners: dict[str, RunnerHandle] = {}
        jobs = {name: Job(name=name, digest="d", launch=launch) for name, launch in LAUNCHES.items()}
        node = SimpleNamespace(
            jobs=jobs, definition=lambda job, _digest: jobs.get(job), hostname="edge-1", full_hostname="edge-1.7"
        )
        driver: Any = SimpleNamespace(node=node, now=lambda: Now(0.0, WALL))
        left = list(answers or [SEEN])

        def open_ui(driven: Driven, launch: Launch, job: Job) -> FakeDriver | None:
            assert (driven.run, driven.attempt, job.name) == (launch.run, launch.attempt, launch.job)
            self.opened.append(driven)
            return FakeDriver(driven, left, self.asked) if job.name != "nowhere" else None

        self.progress = Progress(driver, self, SimpleNamespace(runners=self.runners), open_ui)  # type: ignore[arg-type]  # stand-ins
        self.progress.serve(SimpleNamespace(serve=lambda *_: None, ask=self.relay))  # type: ignore[arg-type]  # the same

    def add(self, run: str, program: int = 77) -> RunnerHandle:
        job = run.partition("#")[0]
        launch = Launch(run, job, AttemptNumber(0), Token(7), "nonce", 0.0, "{}", 100.0, 60.0)
        runner = self.runners[f"/runs/{run}"] = RunnerHandle(f"/runs/{run}", launch, waits=False)
        runner.program, runner.started_at, runner.application_id = program, WALL - 60.0, "local-1"
        return runner

    async def query(self, read: Callable[[Any], Any]) -> Any:
        if self.took is None:
            raise UnavailableError("the ledger is away")
        rows = [SimpleNamespace(started_at=100.0, ended_at=100.0 + took) for took in self.took]
        return read(SimpleNamespace(runs=lambda **_: [*rows, SimpleNamespace(started_at=0.0, ended_at=9.0)]))

    async def relay(self, what: str, subject: str, names: list[str]) -> dict[str, str | None]:
        assert (what, subject) == ("progress", "")
        self.relayed.append(names)
        return {name: self.said.get(name) for name in names}


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a thread: the clock does not jump meanwhile."""

    async def called(look: Callable[..., Any], *args: Any, **_: Any) -> Any:
        return look(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", called)


def for_a_while(setup: Setup, seconds: float) -> None:
    """Let the service run, in a clock that jumps from deadline to deadline."""

    async def main() -> None:
        with trio.move_on_after(seconds):
            await setup.progress.run()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_only_drivers_of_this_node_are_asked() -> None:
    setup = Setup()
    for run in ("sh#1", "gone#1"):
        setup.add(run)
    setup.add("etl#waits", program=0)
    setup.add("etl#over").ended = True
    setup.add("etl#1")
    setup.add("far#1").application_id = "driver-1"
    for_a_while(setup, 2.0)

    assert [one.run for one in setup.opened] == ["etl#1", "far#1"]
    assert setup.opened[0][1:] == (0, 77, "/runs/etl#1", {"spark.ui.port": "4050"}, "edge-1", "")
    assert {name for _, name in setup.asked} == {"local-1", "driver-1"}
    assert setup.progress.percents() == {"etl#1": 30, "far#1": 30}


def test_a_driver_on_a_cluster_that_leads_to_none_has_a_reason_for_no_progress() -> None:
    """Both fields were null, where the runbook says that one of them tells why."""
    setup = Setup()
    setup.add("nowhere#1")
    for_a_while(setup, 2.0)

    async def main() -> list[tuple[Any, str | None]]:
        asked = (("nowhere#1", "edge-1.7", "started"), ("nowhere#1", "edge-1.7", "success"))
        return [await setup.progress.of(*one) for one in (*asked, ("sh#1", "edge-1.7", "started"))]

    (seen, why), over, no_spark = trio.run(main)

    assert seen is None
    assert (why or "").startswith("its driver is on the cluster (deploy mode cluster), and nothing leads there")
    assert over == no_spark == (None, None)
    assert setup.asked == []


def test_a_driver_is_asked_at_an_interval_and_less_often_if_it_does_not_answer() -> None:
    setup = Setup()
    setup.add("etl#1")
    for_a_while(setup, 4 * POLL_S + 1.5)
    gaps = [after - before for (before, _), (after, _) in zip(setup.asked, setup.asked[1:], strict=False)]
    assert len(gaps) == 4
    assert min(gaps) >= POLL_S

    silent = Setup(UnavailableError("its UI is not there yet"))
    silent.add("etl#1")
    for_a_while(silent, 400.0)
    gaps = [after - before for (before, _), (after, _) in zip(silent.asked, silent.asked[1:], strict=False)]
    assert gaps == sorted(gaps)
    assert POLL_MAX_S <= gaps[-1] <= POLL_MAX_S + 2.0
    assert silent.progress.own("etl#1") == (None, "its UI is not there yet")


def test_one_failure_keeps_the_last_answer() -> None:
    setup = Setup(SEEN, UnavailableError("busy"), SEEN._replace(tasks_done=20))
    setup.add("etl#1")
    for_a_while(setup, POLL_S + 2.0)
    seen, why = setup.progress.own("etl#1")

    assert len(setup.asked) == 2
    assert seen is not None
    assert (seen["tasks_done"], why) == (12, None)


@pytest.mark.parametrize(
    ("answer", "why"),
    [(RefusedError("the UI is off"), "the UI is off"), (KeyError("oops"), "a bug in coordd: KeyError")],
)
def test_a_driver_that_never_answers_is_asked_once(answer: Exception, why: str) -> None:
    setup = Setup(answer)
    setup.add("etl#1")
    for_a_while(setup, 30.0)

    assert len(setup.asked) == 1
    assert setup.progress.own("etl#1") == (None, why)


@pytest.mark.parametrize(("took", "left_s"), [([90.0, 100.0, 500.0], 40.0), ([30.0], 0.0), ([], None), (None, None)])
def test_the_time_left_is_the_median_of_the_last_successes_less_what_has_passed(
    took: list[float] | None, left_s: float | None
) -> None:
    setup = Setup(took=took)
    setup.add("etl#1")
    for_a_while(setup, 2.0)

    assert setup.progress.own("etl#1") == ({**TOLD, "left_s": left_s}, None)


def test_a_run_that_is_over_is_forgotten() -> None:
    setup = Setup()
    runner = setup.add("etl#1")
    for_a_while(setup, 2.0)
    assert setup.progress.own("etl#1")[0]
    runner.ended = True
    for_a_while(setup, 2.0)

    assert setup.progress.own("etl#1") == (None, None)
    assert setup.progress._watched == {}


def test_other_nodes_are_asked_about_their_runs_once_in_a_moment() -> None:
    setup = Setup()
    setup.said = {"edge-2.8": json.dumps({"etl#2": {"progress": {**TOLD, "left_s": 5.5}, "no_progress": None}})}
    rows: list[dict[str, Any]] = [
        {"id": "etl#2", "job": "etl", "state": "started", "node": "edge-2.8"},
        {"id": "etl#3", "job": "etl", "state": "started", "node": "edge-3.9"},
        {"id": "etl#4", "job": "etl", "state": "success", "node": "edge-2.8"},
        {"id": "sh#1", "job": "sh", "state": "started", "node": "edge-4.9"},
    ]

    async def main() -> None:
        await setup.progress.add_to(rows)
        assert await setup.progress.of("etl#2", "edge-2.8", "started") == ({**TOLD, "left_s": 5.5}, None)
        assert await setup.progress.of("etl#3", "edge-3.9", "started") == (
            None, "edge-3 does not tell the progress now",
        )  # fmt: skip
        assert await setup.progress.of("etl#3", "edge-3.9", "success") == (None, None)
        assert setup.relayed[0] == ["edge-2.8", "edge-3.9"]
        assert [name for names in setup.relayed[1:] for name in names] == []

    trio.run(main)
    assert [row.get("progress") for row in rows] == [{**TOLD, "left_s": 5.5}, None, None, None]
    assert "progress" not in rows[2]


def test_what_it_tells_another_node_is_what_the_other_reads() -> None:
    setup = Setup()
    setup.add("etl#1")
    for_a_while(setup, 2.0)
    body: list[str] = []

    async def main() -> None:
        body.append(await setup.progress._answer("edge-2.8", ""))

    trio.run(main)
    assert told_of(body[0]) == {"etl#1": {"progress": {**TOLD, "left_s": None}, "no_progress": None}}


@pytest.mark.parametrize(
    "body",
    ["", "[]", "{", "[" * 100_000, '{"a#1": 1}', '{"a#1": {}}', '{"a#1": {"progress": {}, "no_progress": null}}',
     '{"a#1": {"progress": {"left_s": "x"}, "no_progress": null}}'],
)  # fmt: skip
def test_an_answer_of_another_node_that_makes_no_sense_says_nothing(body: str) -> None:
    assert told_of(body) == {}
