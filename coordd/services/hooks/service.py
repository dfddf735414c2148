"""The service of hooks: it notices events, and registers one run of each hook that wants one.

Every node does so for every event that it learns of. A run's id is made from the event's key, so the ledger has it
once, and the usual election decides who makes the call. A node's own deed is registered at once; the other nodes look
a little later whether it is known. Ends of runs are also read from the ledger now and then: it still has them when
every node that knew of one has died.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog

from coordd.config.hooks.hook import EVENT_PARAM, Hook
from coordd.config.hooks.sink import SinkHook
from coordd.core.jobs.arguments import packed
from coordd.core.jobs.job import HOOK, Job, job_of, triggered_run
from coordd.core.jobs.limits import claimed_policy
from coordd.core.ledger.breaker.text import OPEN
from coordd.core.ledger.rows import Row
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.sound import run_fault
from coordd.core.ledger.words import NEVER, RETRY
from coordd.core.names import host_of
from coordd.core.ready import Notice
from coordd.core.trace import trace_id
from coordd.core.wire import events
from coordd.core.wire.events import Event, Task
from coordd.errors import CoorddError, RefusedError, UnavailableError
from coordd.ports import Ledger
from coordd.services.breakers.view import of_jobs
from coordd.services.checks.news import News
from coordd.services.checks.service import Checks
from coordd.services.driver import Driver
from coordd.services.hooks import followed, happenings, lineage, outcome
from coordd.services.hooks.followed import Followed
from coordd.services.hooks.happenings import Happening, short
from coordd.services.hooks.listeners import EventTrigger, Listener, of_jobs as triggers_of
from coordd.services.hooks.nodes import ABOUT_PEERS, Nodes
from coordd.services.hooks.since import Since
from coordd.services.ledger import LedgerService, boottime
from coordd.services.pace import turn
from coordd.services.readiness import Readiness
from coordd.services.triggering.registering import breaker_lets, may_start
from coordd.services.views.troubles import Troubles

log = structlog.get_logger("hooks")

# How often (seconds) the service looks at what it waits for.
LOOK_S = 0.5
# Without a hook it only looks whether a reload has brought one.
IDLE_S = 2.0

# An end is looked up in the ledger this long (seconds) after it was heard, and again until it is there.
OWN_S = 0.2
HEARD_S = 3.0
AGAIN_S = 2.0
GIVE_UP_S = 120.0
LOOKED_UP_MAX = 50

# How often (seconds) the newest ends are read from the ledger, how many of each state, and how old they may be.
READ_S = 20.0
READ_ROWS = 100
READ_AGE_S = 86_400.0
# Sinks must not miss an end. So with one, that many are read at the start and then every so often.
SINK_READ_S = 300.0
SINK_ROWS = 1000
# Rows that are looked at each time: all at once would hold the daemon's loop.
OFFERED_MAX = 250

# Events that wait, events of one hook within a minute, and events that are remembered as told.
WAITING_MAX = 1000
A_MINUTE = 60
TRIGGERED_A_MINUTE = 1000  # of the triggers of one job
SINK_A_MINUTE = 600
TOLD_MAX = 20_000

# Events over a hook's limit that wait for the next minute, because no row of the ledger gives them again.
KEPT_MAX = 100

# The cluster must have been not ready for this long (seconds) before it is news that it is ready.
NOT_READY_S = 5.0

# Ends that may be news.
ENDS = (events.TaskSucceeded, events.TaskFailed, events.TaskRevoked, events.TaskRejected, events.TaskRetried)


class Hint(NamedTuple):
    """A run that may have ended: look it up ``at`` that time (CLOCK_BOOTTIME), until ``until``."""

    at: float
    until: float


class Waiting(NamedTuple):
    """An event that is told ``at`` that time (CLOCK_BOOTTIME), unless another node has told it by then."""

    at: float
    happening: Happening
    wall: float
    of_row: bool = False  # the ledger is read again, and still has it
    kept: bool = False  # it was over a hook's limit


class Hooks:
    """All hooks of one daemon."""

    def __init__(
        self,
        hooks: Sequence[Hook],
        path: str,
        driver: Driver,
        ledger: LedgerService,
        troubles: Troubles,
        readiness: Readiness,
    ) -> None:
        """``path``: the file that says since when this node has each hook."""
        self.hooks: tuple[Listener, ...] = ()
        self._configured: tuple[Hook, ...] = ()
        self._digest = ""  # of the jobs whose triggers are among the hooks
        self._since = Since(path)
        self._driver = driver
        self._ledger = ledger
        self._troubles = troubles
        self._readiness = readiness
        self._hints: dict[str, Hint] = {}
        self._waiting: dict[tuple[str, str], Waiting] = {}  # by event and key
        self._told: OrderedDict[str, None] = OrderedDict()  # runs
        self._minute: dict[str, tuple[int, int]] = {}  # hook's job -> (minute, how many)
        self._opened: dict[str, int] = {}
        self._broken: dict[str, float] = {}  # the breakers of jobs, and when each opened last (Unix seconds)
        self.checks: Checks | None = None  # set by the composition root
        self._checked = News()
        self._nodes = Nodes()
        self._late: set[str] = set()
        self._not_ready_at: float | None = None
        self._read_at = self._sinks_read_at = 0.0
        self._ended_rows: deque[Row] = deque()  # of the ledger, not looked at yet
        self._followed = Followed()
        self._heard = driver.recent_total
        self.dropped = 0
        self.traced = False  # events about a run have its trace
        driver.listeners.append(self._saw)
        if hooks:
            self.use(hooks)

    def use(self, hooks: Sequence[Hook], jobs: Mapping[str, Job] | None = None) -> None:
        """The configuration was read, or read again. ``jobs``: those that the node is about to take."""
        self._configured, self._digest = tuple(hooks), self._driver.node.jobs_digest
        triggers = triggers_of(self._driver.node.jobs if jobs is None else jobs)
        self.hooks = (*self._configured, *[one for one in triggers if one.job.enabled])
        # A job that is not enabled keeps its triggers: what happens meanwhile waits in the ledger.
        self._since.use((*self._configured, *triggers), self._driver.now().wall)

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            if self._digest != self._driver.node.jobs_digest:
                self.use(self._configured)
            if self.hooks:
                self._hear()
                self._look()
                try:
                    await self._read()
                except UnavailableError as exc:  # the next look tries again
                    log.debug("hooks.ledger_not_read", reason=str(exc))
                await self._tell()
            await turn(LOOK_S if self.hooks else IDLE_S)

    # ---- noticing

    def _saw(self, journal: Sequence[Event], notices: Sequence[Notice]) -> None:
        """This node's own deeds, and what it notes."""
        if not self.hooks:
            return
        for event in journal:
            if isinstance(event, events.TaskStarted):
                self._started(event, 0.0)
            elif isinstance(event, ENDS):
                self._ended(event, self._driver.node.full_hostname, OWN_S)
        for notice in notices:
            if notice.event in ABOUT_PEERS:
                self._about_peer(notice)
            elif notice.event == "run.unknown":
                self._hint(str(notice.fields["run"]), HEARD_S)
            elif notice.event == "alarm.raised":
                alarm = self._driver.node.alarms.standing.get(str(notice.fields["id"]))
                if alarm is not None:  # otherwise somebody has cleared it at once
                    self._offer(happenings.alarm_raised(alarm), HEARD_S)

    def _about_peer(self, notice: Notice) -> None:
        node = self._driver.node
        peer = str(notice.fields["peer"])
        member = node.members.get(host_of(peer))
        incarnation = member.incarnation if member is not None and member.name == peer else ""
        ready = node.state in ("ready", "draining")
        told = self._nodes.noticed(notice, incarnation, self._driver.now().wall, ready=ready)
        if told is not None:
            self._offer(told, HEARD_S)

    def _hear(self) -> None:
        """Events of other nodes since the last look."""
        driver = self._driver
        new = min(driver.recent_total - self._heard, len(driver.recent))
        self._heard = driver.recent_total
        for packet, event in [driver.recent[place] for place in range(len(driver.recent) - new, len(driver.recent))]:
            if packet.sender == driver.node.full_hostname or not packet.incarnation:
                continue  # our own; told, from before this node was there
            if isinstance(event, events.TaskStarted):
                self._started(event, HEARD_S)
            elif isinstance(event, ENDS):
                self._ended(event, packet.sender, HEARD_S)

    def _started(self, event: events.TaskStarted, after_s: float) -> None:
        if not event.name.startswith(HOOK):
            self._offer(happenings.started(event), after_s)

    def _ended(self, event: Task, sender: str, after_s: float) -> None:
        if event.name.startswith(HOOK):
            return  # an event about a hook would call hooks for ever
        if isinstance(event, events.TaskRetried) and (event.result != RETRY or event.node != sender):
            self._offer(happenings.lost_attempt(event.run, event.attempt, event.node, event.reason), after_s)
            if event.node != sender:
                self._offer(happenings.taken_over(event.run, event.attempt, event.node, event.reason), after_s)
        self._hint(event.run, after_s)

    def _hint(self, run: str, after_s: float) -> None:
        if job_of(run).startswith(HOOK) or len(self._hints) >= WAITING_MAX:
            return  # reading the ledger finds it
        now = boottime()
        self._hints[run] = Hint(now + after_s, now + GIVE_UP_S)

    def _look(self) -> None:
        """What nobody sends: breakers, checks, drains, and the readiness of the cluster."""
        node, now = self._driver.node, self._driver.now()
        if node.identity_from != NEVER:  # else no sweep has shown the holds yet
            for told in self._nodes.looked(node.drains.holds):
                self._offer(told, HEARD_S)
        for breaker in self._driver.breakers:
            if breaker.opened > self._opened.get(breaker.name, 0):
                told = happenings.breaker_opened(
                    node.hostname, node.incarnation, breaker.name, breaker.opened, breaker.reason
                )
                self._offer(told, 0.0)
            self._opened[breaker.name] = breaker.opened
        for one in of_jobs(node.jobs, node.drains.holds).values():
            since = one.kept.since
            if one.kept.state == OPEN and since > self._broken.get(one.name, 0.0):
                self._broken[one.name] = since
                self._offer(happenings.job_breaker_opened(one.job.name, one.name, since, one.sentence()), HEARD_S)
        for change in self._checked.of(self.checks.rows()) if self.checks is not None else ():
            self._offer(happenings.check_changed(change), HEARD_S if change.row.check.shared else 0.0)
        if self._readiness.problem:
            if self._not_ready_at is None and node.state in ("ready", "draining"):
                self._not_ready_at = now.mono
        elif self._not_ready_at is not None:
            if now.mono - self._not_ready_at >= NOT_READY_S:
                self._offer(happenings.cluster_ready(node.member_counts()["alive"], now.wall), HEARD_S)
            self._not_ready_at = None

    async def _read(self) -> None:
        """Look up runs that may have ended, and late jobs; from time to time read the newest ends."""
        now = boottime()
        due = [run for run, hint in self._hints.items() if hint.at <= now][:LOOKED_UP_MAX]
        late = self._troubles.found.late_jobs
        new = sorted(job for job in late.keys() - self._late if not job.startswith(HOOK))
        states = [state for state in followed.STATES if any(hook.wants(f"run.{state}") for hook in self.hooks)]
        self._offer_rows()
        whole = now >= self._read_at and not self._ended_rows
        if not (due or new or whole):
            self._late &= late.keys()
            return

        for_sinks = now >= self._sinks_read_at and any(isinstance(hook, SinkHook) for hook in self.hooks)
        limit = SINK_ROWS if for_sinks else READ_ROWS
        of_triggers = self._followed.next(self.hooks, now) if whole else ()

        def read(ledger: Ledger) -> tuple[dict[str, Row | None], dict[str, float], list[Row], int]:
            rows = [row for state in states for row in ledger.runs(state=state, limit=limit)] if whole else []
            more, count = followed.read(ledger, of_triggers)
            return {run: ledger.run(run) for run in due}, ledger.succeeded(new) if new else {}, rows + more, count

        looked_up, succeeded, rows, count = await self._ledger.query(read)
        self._followed.were_read(count)
        self._late = {*(self._late & late.keys()), *new}
        for job in new:
            self._offer(happenings.late(job, late[job], succeeded.get(job, 0.0)), HEARD_S)
        for run, row in looked_up.items():
            self._looked_up(run, row, now)
        if whole:
            self._read_at = now + READ_S
            if for_sinks:
                self._sinks_read_at = now + SINK_READ_S
            self._ended_rows.extend(rows)
            self._offer_rows()

    def _looked_up(self, run: str, row: Row | None, now: float) -> None:
        if row is not None and not run_fault(row) and self._offer_row(row):
            self._hints.pop(run, None)
            return
        hint = self._hints[run]
        over = row is None or row.state == RETRY or now >= hint.until
        if over:
            del self._hints[run]
        else:
            self._hints[run] = Hint(now + AGAIN_S, hint.until)  # its runner has not reported yet

    def _offer_rows(self) -> None:
        """The next ends that were read from the ledger."""
        oldest = self._driver.now().wall - READ_AGE_S
        room = WAITING_MAX // 2 - len(self._waiting)  # the others wait here, and are not dropped
        for _ in range(min(OFFERED_MAX, room, len(self._ended_rows))):
            row = self._ended_rows.popleft()
            if not run_fault(row) and not row.job.startswith(HOOK) and _at(row) >= oldest:
                self._offer_row(row)

    def _offer_row(self, row: Row) -> bool:
        happening = happenings.of_row(row)
        if happening is not None:
            if row.started_at:  # whose start nobody may have told: its node died
                self._offer(happenings.started(row), 0.0, row.started_at)
            self._offer(happening, 0.0, _at(row))
        return happening is not None

    # ---- telling

    def _offer(self, happening: Happening, after_s: float, at: float = 0.0) -> None:
        """Tell it after that time, if a hook wants it and nobody has told it. ``at``: when it was (Unix seconds), if
        not now.
        """
        wall = at or self._driver.now().wall
        if (happening.event, happening.key) in self._waiting:
            return
        if not any(self._is_news(hook, happening, wall) for hook in self.hooks):
            return
        if len(self._waiting) >= WAITING_MAX:
            self._drop(happening, f"{WAITING_MAX} events wait already")
            return
        self._waiting[happening.event, happening.key] = Waiting(boottime() + after_s, happening, wall, of_row=bool(at))

    def _is_news(self, hook: Listener, happening: Happening, wall: float) -> bool:
        """True if the hook wants it, was there at that time, and its run is not known here."""
        takes = hook.takes(happening.event, happening.fields.get("job"), ended=happening.row is not None)
        if not takes or wall < self._since.of(hook) or not self._may(hook):
            return False
        pursuits = self._driver.node.pursuits
        return not any(
            run in self._told or run in pursuits.pursuits or run in pursuits.epitaphs for run in _runs(hook, happening)
        )

    def _may(self, hook: Listener) -> bool:
        """False while a run of the trigger's job would be held or rejected: ends of runs wait in the ledger."""
        if not isinstance(hook, EventTrigger):
            return True
        driver = self._driver
        job = driver.node.jobs.get(hook.job_name, hook.job)
        if may_start(driver, job):
            return False
        if breaker_lets(driver, job) is None:
            return True
        pursuits, mine = driver.node.pursuits, (f"{job.name}#", f"{job.name}@")  # one run tries
        return not any(run.startswith(mine) for run in pursuits.pursuits.keys() | pursuits.running.keys())

    async def _tell(self) -> None:
        now = boottime()
        due: list[tuple[Listener, Waiting]] = []
        for key, waiting in [(key, waiting) for key, waiting in self._waiting.items() if waiting.at <= now]:
            if len(due) >= LOOKED_UP_MAX:
                break
            del self._waiting[key]
            due += [(hook, waiting) for hook in self.hooks if self._is_news(hook, waiting.happening, waiting.wall)]
        await self._remember_told(due)
        for hook, waiting in due:
            if self._is_news(hook, waiting.happening, waiting.wall):  # the one before it may have been the same
                await self._register(hook, waiting)

    async def _remember_told(self, due: list[tuple[Listener, Waiting]]) -> None:
        """Remember those that the ledger has a run of. After a restart most ends of the last day were told long ago:
        they must not use up a hook's minute.
        """
        wanted = [set(_runs(hook, one.happening)) for hook, one in due]
        if not wanted:
            return
        try:
            known = await self._ledger.query(
                lambda ledger: {run for runs in wanted for run in runs if ledger.run(run) is not None}
            )
        except UnavailableError:
            return  # a request that the ledger cannot take now is kept
        for (hook, waiting), runs in zip(due, wanted, strict=True):
            if runs & known:
                self._remember(hook, waiting.happening)

    async def _register(self, hook: Listener, waiting: Waiting) -> None:
        """Ask for one run of the hook; the ledger has it once."""
        node, happening = self._driver.node, waiting.happening
        job = node.jobs.get(hook.job_name)
        if job is None:
            return  # not taken yet, or no longer configured
        minute, count = self._minute.get(hook.job_name, (0, 0))
        present = int(boottime() // 60)
        count = count + 1 if minute == present else 1
        self._minute[hook.job_name] = (present, count)
        most = _most(hook)
        if count > most:
            if not self._keep(waiting, 60.0 * (present + 1), every=isinstance(hook, SinkHook)):
                self._drop(happening, f"more than {most} events of {hook.job_name} within a minute")
            return
        try:
            args = self._args(hook, job, waiting)
        except RefusedError as exc:
            self._drop(happening, str(exc))
            return
        of = Registration(
            _runs(hook, happening)[0],
            hook.job_name,
            job.digest,
            claimed_policy(job, args, node.hostname, node.concurrency),
            self._driver.now().wall,
            scheduled=False,
            args=args,
            by=hook.by,
        )
        try:
            reply = await self._driver.trigger(of)
        except CoorddError as exc:
            log.warning("hook.not_registered", hook=hook.job_name, about=happening.event, reason=str(exc))
            return
        if reply.kind not in ("", "conflict"):  # conflict: another node has told it in its own words
            log.warning("hook.not_registered", hook=hook.job_name, about=happening.event, reason=reply.message)
            return
        self._remember(hook, happening)
        if not reply.kind:
            sentence = short(happening.fields.get("sentence"))
            log.info("hook.registered", hook=hook.job_name, run=of.run, about=happening.event, sentence=sentence)

    def _args(self, hook: Listener, job: Job, waiting: Waiting) -> str:
        """The arguments of the run. Raises RefusedError."""
        if isinstance(hook, EventTrigger):
            return hook.args(waiting.happening)
        assert isinstance(hook, Hook)
        node, happening = self._driver.node, waiting.happening
        if isinstance(hook, SinkHook) and happening.row is not None:
            told = outcome.document(happening.row, cluster=node.settings.cluster, args=hook.args)
            return packed({EVENT_PARAM: told})
        if hook.namespace:
            told = lineage.document(happening, hook.namespace, at=waiting.wall, cluster=node.settings.cluster)
            return packed({EVENT_PARAM: told})
        run, cluster = happening.fields.get("run"), node.settings.cluster
        trace = trace_id(cluster, run) if run and self.traced else ""
        told = happening.document(at=waiting.wall, cluster=cluster, node=node.hostname, trace_id=trace)
        return packed({EVENT_PARAM: told})

    def _remember(self, hook: Listener, happening: Happening) -> None:
        """It is told."""
        self._told[_runs(hook, happening)[0]] = None
        while len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)

    def _keep(self, waiting: Waiting, until: float, *, every: bool) -> bool:
        """Let it wait until then (CLOCK_BOOTTIME); False if the ledger gives it again, or too many wait so. ``every``:
        none may be missed, and it has a place among those that wait.
        """
        key = waiting.happening.event, waiting.happening.key
        if every:
            self._waiting[key] = waiting._replace(at=until)
            return True
        if waiting.of_row or (key not in self._waiting and sum(one.kept for one in self._waiting.values()) >= KEPT_MAX):
            return False
        self._waiting[key] = waiting._replace(at=until, kept=True)
        return True

    def _drop(self, happening: Happening, why: str) -> None:
        """A storm must not become a storm of calls; a person reads the log, the metrics and the ledger."""
        self.dropped += 1
        self._sinks_read_at = 0.0
        self._followed.again()
        if self.dropped & (self.dropped - 1) == 0:  # 1, 2, 4, 8, …
            log.error("hook.dropped", about=happening.event, key=happening.key, reason=why, count=self.dropped)


def _runs(hook: Listener, happening: Happening) -> list[str]:
    """The run that tells it, and further ones by which another node may have told it."""
    if isinstance(hook, EventTrigger):
        return hook.runs(happening)
    return [triggered_run(hook.job_name, ident) for ident in happening.idents()]


def _most(hook: Listener) -> int:
    """Its events within a minute."""
    if isinstance(hook, SinkHook):
        return SINK_A_MINUTE
    return A_MINUTE if isinstance(hook, Hook) else TRIGGERED_A_MINUTE


def _at(row: Row) -> float:
    """When the run ended, or was last heard of (Unix seconds)."""
    return row.ended_at or row.started_at or row.received_at
