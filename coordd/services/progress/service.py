"""Asks the Spark drivers of this node how far they are, and the other nodes about theirs.

A driver is asked in a thread, every POLL_S, at most PARALLEL_MAX at a time, each for at most ASK_S. What it answers, or
that it does not, changes nothing about its run.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import structlog
import trio

from coordd.core.jobs.job import Job, SparkSubmit, job_of
from coordd.core.ledger.words import STARTED, SUCCESS
from coordd.core.ready import Launch
from coordd.errors import CoorddError, RefusedError, UnavailableError
from coordd.ports import Driven, DriverUi, Ledger, Seen
from coordd.services.driver import Driver
from coordd.services.ledger import LedgerService
from coordd.services.pace import turn
from coordd.services.relay import Relay
from coordd.services.runners import RunnerHandle, Runners

log = structlog.get_logger("progress")

# How often the runs of this node are looked at, and how often one driver is asked (seconds). With each failure the
# pause doubles, up to the last value; at the start a driver has no UI yet.
LOOK_S = 1.0
POLL_S = 5.0
POLL_FIRST_S = 1.0
POLL_MAX_S = 60.0
# A driver on a cluster is asked less often: the cluster manager has to pass each question on.
FAR_POLL_S = 15.0

# The time for one driver, and how many are asked at once.
ASK_S = 4.0
PARALLEL_MAX = 2

# The kind of question to other nodes, how long their answers count (seconds), and how many characters of one are kept.
WHAT = "progress"
FRESH_S = 2.0
TEXT_LENGTH_MAX = 300

# The time left is the median of this many successes, less the time since the start.
SUCCESSES_MAX = 20

# Runs in one answer to another node; with more, the rest is not told.
TOLD_MAX = 100

# Of a run in deploy mode cluster whose cluster manager leads to no driver.
FAR = (
    "its driver is on the cluster (deploy mode cluster), and nothing leads there: look at the cluster manager's page of"
    " the application"
)

_COUNTS = ("stages", "stages_done", "tasks", "tasks_done", "tasks_failed")


# The way to the driver of an attempt; None: there is none.
OpenUi = Callable[[Driven, Launch, Job], DriverUi | None]


class _Watched:
    """One attempt whose driver is asked."""

    def __init__(self, ui: DriverUi | None, *, far: bool = False) -> None:
        self.ui = ui
        self.poll_s = FAR_POLL_S if far else POLL_S
        self.seen: Seen | None = None
        self.problem = "its driver has not been asked yet" if ui is not None else FAR
        self.usual_s: float | None = None  # the job's usual runtime
        self.next_at = 0.0
        self.pause_s = POLL_FIRST_S / 2
        self.over = ui is None  # it never answers
        self.busy = False
        self.learnt = False  # usual_s was looked up


class Progress:
    """How far the Spark runs of this node are."""

    def __init__(self, driver: Driver, ledger: LedgerService, runners: Runners, open_ui: OpenUi) -> None:
        self._driver = driver
        self._ledger = ledger
        self._runners = runners
        self._open_ui = open_ui
        self._watched: dict[str, _Watched] = {}  # by the attempt's directory
        self._threads = trio.CapacityLimiter(PARALLEL_MAX)
        self._heard: dict[str, tuple[float, dict[str, Any]]] = {}  # of other nodes: (when, the answer)
        self.relay: Relay | None = None  # without one, other nodes are not asked

    def serve(self, relay: Relay) -> None:
        """Answer other nodes, and ask them. Called before the relay runs."""
        self.relay = relay
        relay.serve(WHAT, self._answer)

    # ---- what is known

    def own(self, run: str) -> tuple[dict[str, Any] | None, str | None]:
        """(the progress of a run of this node, or why there is none); (None, None): not a Spark run of this node."""
        for runner in self._runners.runners.values():
            if runner.launch.run == run and not runner.ended and self._spark_job(runner) is not None:
                watched = self._watched.get(runner.directory)
                if watched is None or watched.seen is None:
                    return None, watched.problem if watched is not None else "its driver has not been asked yet"
                return self._view(runner, watched), None
        return None, None

    def percents(self) -> dict[str, int]:
        """How much of its tasks each Spark run of this node has done, rounded down."""
        known = {runner.launch.run: self._watched.get(runner.directory) for runner in self._alive()}
        return {
            run: watched.seen.tasks_done * 100 // watched.seen.tasks
            for run, watched in known.items()
            if watched is not None and watched.seen is not None and watched.seen.tasks
        }

    async def of(self, run: str, node: str, state: str) -> tuple[dict[str, Any] | None, str | None]:
        """As ``own``, for a run of any node (full_hostname)."""
        job = self._driver.node.jobs.get(job_of(run))
        if state != STARTED or not self._is_driven(job):
            return None, None
        if node == self._driver.node.full_hostname or self.relay is None:
            return self.own(run)
        said = (await self._of_others([node])).get(run)
        if said is None:
            return None, f"{node.rpartition('.')[0]} does not tell the progress now"
        return said["progress"], said["no_progress"]

    async def add_to(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add ``progress`` to these rows of runs, where it is known within a moment."""
        started = [row for row in rows if row.get("state") == STARTED]
        here = self._driver.node.full_hostname
        driven = [row for row in started if self._is_driven(self._driver.node.jobs.get(str(row["job"])))]
        others = {str(row["node"]) for row in driven if row.get("node") and row["node"] != here}
        said = await self._of_others(sorted(others)) if others and self.relay is not None else {}
        for row in driven:
            run = str(row["id"])
            row["progress"] = said[run]["progress"] if run in said else self.own(run)[0]

    # ---- asking drivers

    async def run(self) -> None:
        """Ask for ever."""
        async with trio.open_nursery() as nursery:
            while True:
                alive = list(self._alive())
                self._forget({runner.directory for runner in alive})
                now = trio.current_time()
                for runner in alive:
                    watched = self._watched.get(runner.directory) or self._begin(runner)
                    if not (watched.busy or watched.over) and now >= watched.next_at:
                        watched.busy = True
                        nursery.start_soon(self._ask, runner, watched)
                await turn(LOOK_S)

    def _alive(self) -> Iterable[RunnerHandle]:
        for runner in self._runners.runners.values():
            if runner.program and not runner.ended and self._spark_job(runner) is not None:
                yield runner

    def _spark_job(self, runner: RunnerHandle) -> Job | None:
        """The definition that it runs, if that has a driver."""
        job = self._driver.node.definition(runner.launch.job, runner.launch.digest)
        return job if self._is_driven(job) else None

    @staticmethod
    def _is_driven(job: Job | None) -> bool:
        return job is not None and isinstance(job.launch, SparkSubmit)

    def _begin(self, runner: RunnerHandle) -> _Watched:
        launch, job, host = runner.launch, self._spark_job(runner), self._driver.node.hostname
        assert job is not None
        assert isinstance(job.launch, SparkSubmit)
        conf = dict(job.launch.conf)
        driven = Driven(launch.run, launch.attempt, runner.program, runner.directory, conf, host, job.run_as)
        watched = self._watched[runner.directory] = _Watched(
            self._open_ui(driven, launch, job), far=job.drives_elsewhere
        )
        return watched

    def _forget(self, alive: set[str]) -> None:
        self._watched = {directory: one for directory, one in self._watched.items() if directory in alive}

    async def _ask(self, runner: RunnerHandle, watched: _Watched) -> None:
        try:
            if not watched.learnt:
                watched.usual_s = await self._usual_s(runner.launch.job)
                watched.learnt = True
            watched.seen = await self._look(runner, watched)
            watched.pause_s = watched.poll_s
        except RefusedError as exc:
            watched.over, watched.problem = True, str(exc)
        except CoorddError as exc:  # also ConfigError: of the files that lead to a cluster manager
            watched.problem = str(exc)
            watched.pause_s = min(2 * watched.pause_s, POLL_MAX_S)
        except Exception as exc:
            # The boundary of one driver, whose answers may be anything: our bug must not end the daemon.
            log.exception("progress.failed", run=runner.launch.run)
            watched.over, watched.problem = True, f"a bug in coordd: {type(exc).__name__}"
        finally:
            watched.busy = False
            watched.next_at = trio.current_time() + watched.pause_s

    async def _look(self, runner: RunnerHandle, watched: _Watched) -> Seen:
        assert watched.ui is not None
        with trio.move_on_after(2 * ASK_S):
            return await trio.to_thread.run_sync(
                watched.ui.look, runner.application_id, ASK_S, limiter=self._threads, abandon_on_cancel=True
            )
        raise UnavailableError(f"its driver was not asked within {2 * ASK_S:g} s: others are slow")

    async def _usual_s(self, job: str) -> float | None:
        """The median runtime of the last successes; None without any, or if the ledger is away."""

        def read(ledger: Ledger) -> list[float]:
            rows = ledger.runs(job=job, state=SUCCESS, limit=SUCCESSES_MAX)
            return [row.ended_at - row.started_at for row in rows if 0.0 < row.started_at <= row.ended_at]

        try:
            took = await self._ledger.query(read)
        except CoorddError:
            return None
        return statistics.median(took) if took else None

    # ---- telling

    def _view(self, runner: RunnerHandle, watched: _Watched) -> dict[str, Any]:
        assert watched.seen is not None
        left_s = None
        if watched.usual_s is not None and runner.started_at:
            left_s = round(max(0.0, watched.usual_s - (self._driver.now().wall - runner.started_at)), 1)
        return {**{key: getattr(watched.seen, key) for key in _COUNTS}, "left_s": left_s, "ui": watched.seen.ui}

    async def _answer(self, _sender: str, _subject: str) -> str:
        """The body of the answer to another node: all of this node's Spark runs."""
        runs = [runner.launch.run for runner in self._alive()][:TOLD_MAX]
        told = {run: self.own(run) for run in runs}
        return json.dumps({run: {"progress": seen, "no_progress": why} for run, (seen, why) in told.items()})

    async def _of_others(self, nodes: list[str]) -> dict[str, Any]:
        """What these nodes say, by run; a node that does not answer says nothing."""
        assert self.relay is not None
        now = trio.current_time()
        self._heard = {name: one for name, one in self._heard.items() if now - one[0] < FRESH_S}
        asked = [name for name in nodes if name not in self._heard]
        for name, body in (await self.relay.ask(WHAT, "", asked)).items():
            self._heard[name] = (now, told_of(body or "{}"))
        return {run: said for name in nodes for run, said in self._heard.get(name, (0.0, {}))[1].items()}


def told_of(body: str) -> dict[str, Any]:
    """The answer of another node, by run; an invalid answer counts as empty."""
    try:
        said = json.loads(body)
        return {run: _checked(one) for run, one in said.items() if isinstance(run, str)}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _checked(said: dict[str, Any]) -> dict[str, Any]:
    seen, why = said["progress"], said["no_progress"]
    if seen is not None:
        left_s, ui = seen["left_s"], str(seen["ui"])[:TEXT_LENGTH_MAX]
        counts = {key: max(0, int(seen[key])) for key in _COUNTS}
        seen = {**counts, "left_s": None if left_s is None else max(0.0, float(left_s)), "ui": ui}
    return {"progress": seen, "no_progress": None if why is None else str(why)[:TEXT_LENGTH_MAX]}
