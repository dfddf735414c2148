"""The service of metrics: collects the counts and the present values, and keeps listener and file alive."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import structlog
import trio

from coordd import __version__
from coordd.config.sections import MetricsConfig
from coordd.core.election import Election
from coordd.core.jobs.job import HOOK, Job
from coordd.core.ledger.rows import Row
from coordd.errors import CoorddError, UnavailableError
from coordd.ports import Ledger
from coordd.services.breakers.view import of_jobs
from coordd.services.checks import view as check_views
from coordd.services.checks.service import Checks
from coordd.services.driver import Driver
from coordd.services.ledger import CONNECTED, LedgerService, boottime
from coordd.services.metrics import families
from coordd.services.metrics.counted import Buckets, Counted, OfJob
from coordd.services.metrics.exposition import CONTENT_TYPE, Exposition, Gauges, Node
from coordd.services.metrics.listener import Listener, Page
from coordd.services.metrics.textfile import TextFile
from coordd.services.pace import in_thread, turn
from coordd.services.publishing.methods import MessageMethods
from coordd.services.readiness import Readiness, node_problem, stuck
from coordd.services.sinks.files import SINKS
from coordd.services.sinks.service import Sinks
from coordd.services.tracing.service import Tracing
from coordd.services.triggering.service import Triggering
from coordd.services.views.fires import Fire
from coordd.services.views.troubles import Troubles, expected_s

log = structlog.get_logger("metrics")

# How often (seconds) the ledger is read for what only it knows, and the file is written.
LOOK_S = 10.0
FILE_S = 15.0

# A text is as good for this time (seconds): many readers do not cost more than one.
FRESH_S = 1.0

# Stretches and failed attempts that are looked up with one look.
LOOKED_UP_MAX = 100

# The measured times of requests that wait to be counted.
TIMES_MAX = 100_000

SettledFires = Callable[[Job, float, float], Awaitable[Sequence[Fire]]]


class Metrics:
    """All metrics of one daemon."""

    def __init__(
        self,
        config: MetricsConfig,
        driver: Driver,
        ledger: LedgerService,
        troubles: Troubles,
        readiness: Readiness,
        settled_fires: SettledFires,
        sinks: Sinks | None = None,
    ) -> None:
        """``settled_fires``: what became of the fire times of a job that are due between two instants."""
        self._driver = driver
        self._ledger = ledger
        self._troubles = troubles
        self._readiness = readiness
        self._settled_fires = settled_fires
        self._sinks = sinks
        self.tracing: Tracing | None = None  # if traces are sent
        self.triggering: Triggering | None = None
        self.messages: MessageMethods | None = None
        self.checks: Checks | None = None
        self._exposition = Exposition(driver.node.settings.cluster)
        self.counted = Counted(driver.node.full_hostname, lambda: driver.node.jobs)
        self._elections = 0
        self._election = Buckets(families.ELECTION_S)
        self._times: deque[tuple[str, float]] = deque(maxlen=TIMES_MAX)  # filled by the ledger's threads
        self._ops: dict[str, Buckets] = {}
        self._succeeded: Mapping[str, float] = {}
        self._text: tuple[float, bytes] = (-FRESH_S, b"")
        self._writing = trio.Lock()
        self._file = TextFile(config.textfile) if config.textfile else None
        self._listener: Listener | None = None
        if config.listen:
            pages = {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz}
            self._listener = Listener(config.address, pages)
        driver.listeners.append(self.counted.saw)
        driver.node.elections.on_decided = self._decided
        ledger.timed = lambda op, seconds: self._times.append((op, seconds))

    @property
    def problems(self) -> list[str]:
        """Why they cannot be read, for `doctor`."""
        return [part.problem for part in (self._listener, self._file) if part is not None and part.problem]

    async def run(self) -> None:
        """Serve for ever."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look)
                if self._listener is not None:
                    nursery.start_soon(self._listener.run)
                if self._file is not None:
                    nursery.start_soon(self._write, self._file)
        finally:
            if self._file is not None:
                self._file.remove()

    async def text(self, *, is_open: bool = True) -> bytes:
        """OpenMetrics, or the older format for files."""
        async with self._writing:
            at, text = self._text
            if is_open and boottime() - at < FRESH_S:
                return text
            text = await self._exposition.text(self._of_jobs(), self._of_node(), is_open=is_open)
            if is_open:
                self._text = (boottime(), text)
            return text

    # ---- pages

    async def _metrics(self) -> Page:
        return Page(200, await self.text(), CONTENT_TYPE)

    async def _healthz(self) -> Page:
        late = stuck(self._driver)
        return Page(503, f"{late}\n".encode()) if late else Page(200, b"alive\n")

    async def _readyz(self) -> Page:
        problem = node_problem(self._driver, self._ledger)
        return Page(503, f"{problem}\n".encode()) if problem else Page(200, b"ready\n")

    # ---- what happens

    def _decided(self, election: Election) -> None:
        if election.opened_by == self._driver.node.full_hostname:
            self._elections += 1
            self._election.add(election.decided_at - election.opened_at)

    async def _write(self, file: TextFile) -> None:
        while True:
            text = await self.text(is_open=False)
            with contextlib.suppress(UnavailableError):  # no thread is free: the next turn writes it
                await in_thread(partial(file.write, text))
            await turn(FILE_S)

    async def _look(self) -> None:
        while True:
            self.counted.forget()
            try:
                await self._read()
            except CoorddError as exc:  # the next look tries again
                log.debug("metrics.ledger_not_read", reason=str(exc))
            await turn(LOOK_S)

    async def _read(self) -> None:
        counted, jobs = self.counted, self._driver.node.jobs
        names, failed = list(jobs), list(counted.failures)[:LOOKED_UP_MAX]

        def read(ledger: Ledger) -> tuple[dict[str, float], dict[str, Row | None]]:
            return ledger.succeeded(names), {run: ledger.run(run) for run in failed}

        self._succeeded, rows = await self._ledger.query(read)
        for run, row in rows.items():
            counted.failure_is(run, row)
        for _ in range(min(len(counted.stretches), LOOKED_UP_MAX)):
            stretch = counted.stretches[0]
            job = jobs.get(stretch.job)
            if job is not None:
                counted.settled(job, await self._settled_fires(job, stretch.after, stretch.upto))
            counted.stretches.pop(0)

    # ---- values

    def _of_jobs(self) -> dict[str, tuple[Gauges, OfJob]]:
        node, counted = self._driver.node, self.counted
        next_at, late, wall = node.planner.next_at, self._troubles.found.late_jobs, self._driver.now().wall
        found = {
            name: (
                Gauges(
                    self._succeeded.get(name) or None,
                    expected_s(job, wall, self._succeeded.get(name, 0.0)) or None,
                    next_at.get(name),
                    float(name in late) if job.expect_within_s else None,
                ),
                counted.job(name),
            )
            for name, job in node.jobs.items()
            if not name.startswith(HOOK)
        }
        # From the start, so that the first failure is an increase.
        found[families.OTHER] = (Gauges(), counted.job(families.OTHER))
        return found

    def _of_node(self) -> Node:
        driver, ledger = self._driver, self._ledger
        while self._times:
            op, seconds = self._times.popleft()
            self._ops.setdefault(op, Buckets(families.LEDGER_S)).add(seconds)
        only = {
            families.ELECTIONS: self._elections,
            families.LEDGER_UP: ledger.state == CONNECTED,
            families.OUTBOX: driver.outbox.waiting if driver.outbox is not None else 0,
            families.NODE_READY: not node_problem(driver, ledger),
            families.CLUSTER_READY: not self._readiness.problem,
            families.ALARMS: len(driver.node.alarms.standing),
            families.UNKNOWN_RUNS: len(self._troubles.found.unknown),
            families.DEAD_LETTERS: len(self._troubles.found.dead),
        }
        values: dict[families.Family, Mapping[str, float]] = {
            family: {"": float(value)} for family, value in only.items()
        }
        state = driver.bus.state
        values[families.BUS_UP] = {"": float(state == "connected")} if state != "off" else {}
        values[families.MEMBERS] = driver.node.member_counts()
        jobs = of_jobs(driver.node.jobs, driver.node.drains.holds).values()
        values[families.BREAKER_OPEN] = {
            **{breaker.name: float(breaker.is_open) for breaker in driver.breakers},
            **{one.name: float(one.is_open) for one in jobs},
        }
        rows = self.checks.rows() if self.checks is not None else ()
        values[families.CHECK_STATE] = {row.check.key: check_views.rank(row.state) for row in rows}
        counts = self._sinks.counts if self._sinks is not None else {}
        for family, word in (
            (families.SINK_COPIED, "copied"),
            (families.SINK_FAILED, "failed"),
            (families.SINK_WAITING, "waiting"),
            (families.SINK_DEAD, "dead"),
        ):
            values[family] = {sink: float(counts.get((sink, word), 0)) for sink in SINKS}
        counted = self.triggering.counted() if self.triggering is not None else {}
        for place, family in enumerate(families.TRIGGERS):
            values[family] = {name: float(said[place]) for name, said in counted.items()}
        values |= dict(zip(families.PUBLISHED, self._published(), strict=True))
        spans = self.tracing.counts if self.tracing is not None else {}
        values[families.TRACE_SPANS] = {word: float(spans.get(word, 0)) for word in ("sent", "dropped")}
        values[families.TRACE_WAITING] = {"": float(spans.get("waiting", 0))}
        values[families.BUILD] = {__version__: 1.0}
        return Node(values, self._election, self._ops)

    def _published(self) -> list[dict[str, float]]:
        """Of each destination of messages, in the order of families.PUBLISHED."""
        told = self.messages.counted(self._driver.now().wall) if self.messages is not None else {}
        return [{name: said[place] for name, said in told.items()} for place in range(len(families.PUBLISHED))]
