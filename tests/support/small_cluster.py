"""A single node, or a few nodes with one ledger. Time moves only when a test moves it, and nothing is random."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from coordd.core.attempt import FIRST_TRIP_S, LEAD_S, TRIPS, exec_at
from coordd.core.context import Settings
from coordd.core.jobs.job import Command, Job, Schedule
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import Current, JobState, OpenAnswer, OpenRun
from coordd.core.ledger.requests import Activate, Claim, ListEnded, ListOpen, PassOver
from coordd.core.ledger.rows import JobRow, LedgerTime
from coordd.core.ledger.runner_requests import Gate, Registration, Renew, Report, Request
from coordd.core.ledger.steps import Life
from coordd.core.ledger.words import EARLY, OK, PENDING, REVOKED, UNAVAILABLE, Policy
from coordd.core.node.node import Node
from coordd.core.perform import perform, pump
from coordd.core.ready import Elected, Launch, LedgerRequest, Notice, Now, Ready, Reply
from coordd.core.wire.events import PROTOCOL_MAJOR, Event, Packet, Task, WorkerHeartbeat, event_type
from support.ledger_calls import grant_of, run_of
from support.memory import MemoryLedger

# 2025-01-29T08:00:00Z. No test depends on this date.
EPOCH = 1_738_137_600.0
MONO = 1000.0

R = TypeVar("R", bound=Request[Any])

# Maximum number of steps at one instant; with more, the test is in an endless loop.
STEPS_MAX = 10_000

# The runners here ask their gate this long (seconds) ahead of the fire time.
GATE_LEAD_S = LEAD_S + TRIPS * FIRST_TRIP_S

SETTINGS = Settings()


def job(name: str = "sales", **changes: Any) -> Job:
    """A job that runs a command. The defaults are those of a job file."""
    launch = changes.pop("launch", Command(argv=("/bin/true",)))
    every_s = changes.pop("every_s", 0.0)
    if every_s:
        changes["schedule"] = Schedule(kind="every", every_s=every_s)
    return Job(name=name, digest=changes.pop("digest", "d1"), launch=launch, **changes)


def asked_for(run: str = "sales#1", of: Job | None = None, **changes: Any) -> Registration:
    """A trigger in the form in which the control socket hands it to the node."""
    of = of or job(run.partition("#")[0])
    return Registration(run, of.name, of.digest, of.policy(), EPOCH, scheduled=False, **changes)


def open_run(
    run: str, state: str = PENDING, *, of: Job | None = None, due_in_s: float = 0.0, wall: float = EPOCH, **columns: Any
) -> OpenRun:
    """A row in the form in which the sweep shows it."""
    of = of or job(run.partition("#")[0].partition("@")[0])
    made = Registration(run, of.name, of.digest, Policy(), wall, scheduled="@" in run)
    now = LedgerTime(wall, 500.0)
    row = Life()._new_row(made, now)
    row.state = state
    row.not_before = wall + due_in_s
    row.lease = of.lease_s
    row.until = 500.0 + columns.pop("left_s", of.lease_s)
    for column, value in columns.items():
        setattr(row, column, value)
    return OpenRun(row, now)


def open_answer(
    *runs: OpenRun, jobs: Iterable[str] = ("sales",), horizon: float = EPOCH, last: float = 0.0
) -> OpenAnswer:
    """The ledger's answer to a sweep. The members of ``jobs`` that are definitions count from the horizon on."""
    current = {}
    if isinstance(jobs, Mapping):
        current = {
            name: Current(sequence=1, digest=job.digest, counts_from=horizon)
            for name, job in jobs.items()
            if job.schedule is not None
        }
    state = JobState(horizon=horizon, last_fire_at=last, suspended=False, fence=0)
    return OpenAnswer(list(runs), dict.fromkeys(jobs, state), EPOCH, current=current)


class QuietShell:
    """A ``core.perform.Shell`` without a machine: disks accept everything, other steps
    have no effect and take no time.
    """

    def stop(self, reason: str) -> None: ...
    def save_mark(self, mark: int) -> None: ...
    def save_pin(self, identity: str) -> None: ...
    def save_definitions(self, definitions: Mapping[str, tuple[str, int, float]]) -> None: ...
    def journal(self, events: Sequence[Event], *, sync: bool) -> str:
        return ""

    def save_alarms(self) -> None: ...
    def keep_request(self, of: Registration) -> str:
        return ""

    def forget_request(self, run: str) -> None: ...
    def ask(self, requests: Sequence[LedgerRequest]) -> None: ...
    def launch(self, launch: Launch) -> None: ...
    def cancel(self, run: str, reason: str) -> None: ...
    def publish(self, events: list[Event]) -> None: ...
    def send(self, name: str, event: Event) -> None: ...
    def elected(self, elected: Elected) -> None: ...
    def reply(self, reply: Reply) -> None: ...
    def log(self, journal: Sequence[Event], notices: Sequence[Notice]) -> None: ...
    def state(self, state: str) -> None: ...


class Lone:
    """One node. The test itself plays its peers, its ledger and its clock."""

    def __init__(self, *jobs: Job, settings: Settings = SETTINGS, name: str = "a", peers: tuple[str, ...] = ()) -> None:
        self.now = Now(MONO, EPOCH)
        self.node = Node(
            hostname=name, pid=1, incarnation=f"1-{name}", settings=settings, clock_mark=0, rng=random.Random(1)
        )
        self.open: dict[int, LedgerRequest] = {}  # requests that the ledger has not answered
        self.asked: list[LedgerRequest] = []
        self.said: list[Event] = []
        self.unicasts: list[tuple[str, Event]] = []
        self.journal: list[Event] = []
        self.launches: list[Launch] = []
        self.cancels: list[tuple[str, str]] = []
        self.replies: list[Reply] = []
        self.notices: list[Notice] = []
        self.kept: list[Registration] = []
        self.elected: list[str] = []
        self.fatal = ""
        self.peers: dict[str, int] = {}
        self.node.set_jobs({one.name: one for one in jobs}, self.now)
        for peer in peers:
            self.hear(peer, WorkerHeartbeat(state="ready", jobs_digest=self.node.ctx.jobs_digest))
        self.take()

    def ready(self) -> Lone:
        """Bring the node to the state after mingling, with an empty ledger. Earlier messages are forgotten."""
        self.node.start((), self.now)
        self.take()
        self.sweep()
        self.forget()
        return self

    def forget(self) -> None:
        for told in (self.said, self.unicasts, self.journal, self.launches, self.cancels, self.replies, self.notices):
            told.clear()
        self.asked.clear()

    def take(self) -> Ready:
        """Record the actions of the node without performing them."""
        first = ready = self.node.ready()
        noting = Noting(self)
        while ready.any():
            outcome = perform(ready, noting)
            if outcome is not None:
                self.node.performed(outcome, self.now)
            ready = self.node.ready()
        return first

    def do(self, call: Callable[..., Any], *args: Any) -> Ready:
        """Give the node one input now."""
        call(*args, self.now)
        return self.take()

    def hear(
        self, sender: str, *events: Event, clock: int = 1, incarnation: str = "", cluster: str = "default"
    ) -> Ready:
        """Let events of ``hostname.pid`` arrive."""
        hostname, _, pid = sender.rpartition(".")
        for event in events:
            event.clock = event.clock or clock
        packet = Packet(PROTOCOL_MAJOR, cluster, hostname, int(pid), incarnation or f"1-{hostname}", 0, 0, list(events))  # type: ignore[arg-type]  # each Event is one of AnyEvent
        self.node.receive(packet, self.now)
        return self.take()

    def questions(self, op: str) -> list[LedgerRequest]:
        """The requests of one kind that still wait for an answer."""
        return [request for request in self.open.values() if request.request.op == op]

    def waiting(self, kind: type[R]) -> list[R]:
        """The contents of the requests of one kind that still wait for an answer."""
        return [one.request for one in self.open.values() if isinstance(one.request, kind)]

    def requests(self, kind: type[R]) -> list[R]:
        """The requests of one kind since the test last forgot them."""
        return [one.request for one in self.asked if isinstance(one.request, kind)]

    def answer(self, op: str, answer: Answer | OpenAnswer, *, sent_at: float | None = None) -> Ready:
        """Answer the oldest open request of one kind."""
        request = self.questions(op)[0]
        del self.open[request.id]
        if isinstance(answer, OpenAnswer) and answer.wall == EPOCH:
            answer.wall = EPOCH + self.now.mono - MONO  # the ledger's clock continues, and is right
        self.node.ledger_answered(request.id, answer, self.now.mono if sent_at is None else sent_at, self.now)
        return self.take()

    def sweep(self, *runs: OpenRun, horizon: float = EPOCH, last: float = 0.0) -> Ready:
        """Answer the node's next sweep with these open rows."""
        if not self.questions("open"):
            self.do(self.node.look_again)
        return self.answer("open", open_answer(*runs, jobs=self.node.ctx.jobs, horizon=horizon, last=last))

    def wait(self, seconds: float) -> None:
        """Let time pass, and wake the node whenever it wants that. The ledger and the peers stay silent."""
        end = self.now.mono + seconds
        for _ in range(STEPS_MAX):
            at = self.node.timer_at()
            if at > end:
                break
            self.pass_time(max(0.0, at - self.now.mono))
            self.node.handle_timer(self.now)
            self.take()
        else:
            raise AssertionError("the node is woken again and again")
        self.pass_time(end - self.now.mono)

    def pass_time(self, seconds: float) -> None:
        self.now = Now(self.now.mono + seconds, self.now.wall + seconds)

    def step_wall(self, seconds: float) -> None:
        """Move only the wall clock."""
        self.now = Now(self.now.mono, self.now.wall + seconds)

    def heard_said(self, *types: str) -> list[Event]:
        """The messages of these types that the node has sent."""
        return [event for event in self.said if event_type(event) in types]


class Noting(QuietShell):
    """A shell that notes what a lone node wants."""

    def __init__(self, lone: Lone) -> None:
        self.lone = lone

    def now(self) -> Now:
        return self.lone.now

    def stop(self, reason: str) -> None:
        self.lone.fatal = reason

    def journal(self, events: Sequence[Event], *, sync: bool) -> str:
        self.lone.journal += events
        return ""

    def keep_request(self, of: Registration) -> str:
        self.lone.kept.append(of)
        return ""

    def ask(self, requests: Sequence[LedgerRequest]) -> None:
        self.lone.asked += requests
        self.lone.open.update({request.id: request for request in requests})

    def launch(self, launch: Launch) -> None:
        self.lone.launches.append(launch)

    def cancel(self, run: str, reason: str) -> None:
        self.lone.cancels.append((run, reason))

    def publish(self, events: list[Event]) -> None:
        self.lone.said += events

    def send(self, name: str, event: Event) -> None:
        self.lone.unicasts.append((name, event))

    def elected(self, elected: Elected) -> None:
        self.lone.elected.append(elected.id)

    def reply(self, reply: Reply) -> None:
        self.lone.replies.append(reply)

    def log(self, journal: Sequence[Event], notices: Sequence[Notice]) -> None:
        self.lone.notices += notices


class Shell(QuietShell):
    """One node of a small cluster, and the work that its machine did for it."""

    def __init__(self, cluster: Cluster, name: str, boot: int) -> None:
        self.cluster = cluster
        self.name = name
        self.alive = self.bus = True
        self.node = Node(
            hostname=name,
            pid=boot,
            incarnation=f"{boot}-{name}",
            settings=cluster.settings,
            clock_mark=0,
            rng=random.Random(f"{name}{boot}"),
        )
        self.launches: list[Launch] = []
        self.gate_at: dict[str, float] = {}  # run -> when it asks its gate, for its runners that wait
        self.start_at: dict[str, float] = {}  # run -> fire time, for its runners whose gate is open
        self.renew_at: dict[str, float] = {}  # run -> next renewal, for its runners whose program runs
        self.replies: list[Reply] = []
        self.journaled: list[Event] = []
        self.notices: list[Notice] = []
        self.requests: dict[str, Registration] = {}  # requests that it keeps on its disk

    def launch_of(self, run: str) -> Launch:
        """The newest launch of a run on this node."""
        return next(one for one in reversed(self.launches) if one.run == run)

    def do(self, call: Callable[..., Any], *args: Any) -> None:
        if self.alive:
            call(*args, self.cluster.time())
            self.pump()

    def pump(self) -> None:
        pump(self.node, self)

    def now(self) -> Now:
        return self.cluster.time()

    def journal(self, events: Sequence[Event], *, sync: bool) -> str:
        self.journaled += events
        return ""

    def keep_request(self, of: Registration) -> str:
        self.requests[of.run] = of
        self.cluster.tell(self.name, f"keeps {of.run} on its disk")
        return ""

    def forget_request(self, run: str) -> None:
        self.requests.pop(run, None)

    def ask(self, requests: Sequence[LedgerRequest]) -> None:
        for request in requests:
            self.cluster.queue.append((self.cluster.asked, (self, request, self.cluster.mono)))

    def launch(self, launch: Launch) -> None:
        self.launches.append(launch)
        self.cluster.queue.append((self.cluster.launched, (self, launch)))

    def publish(self, events: list[Event]) -> None:
        self.cluster.says(self, events, "")

    def send(self, name: str, event: Event) -> None:
        self.cluster.says(self, [event], name)

    def reply(self, reply: Reply) -> None:
        self.replies.append(reply)
        self.cluster.tell(self.name, f"answers the caller: {reply.kind or reply.result}")

    def log(self, journal: Sequence[Event], notices: Sequence[Notice]) -> None:
        self.notices += notices
        for notice in notices:
            if notice.event.startswith("node."):
                self.cluster.tell(self.name, f"notes {notice.event} {' '.join(str(v) for v in notice.fields.values())}")


class Cluster:
    """A few nodes, one ledger, and a bus without delay. Programs run until the test ends them."""

    def __init__(self, *names: str, jobs: Iterable[Job] = (), settings: Settings = SETTINGS) -> None:
        self.settings = settings
        self.mono = MONO
        self.queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.log: list[str] = []
        self.said: list[tuple[str, Event]] = []
        self.ledger_away = False
        self.ledger = MemoryLedger(clock=lambda: LedgerTime(self.time().wall, self.mono))
        self.jobs = {one.name: one for one in jobs}
        for one in jobs:
            self.ledger._store.put_job(JobRow(one.name, horizon=EPOCH))
            self.ledger._store.put_meta("identity_from", "0")
        self.shells: dict[str, Shell] = {}
        for name in names:
            self.boot(name, 1)
        for name in names:
            self.start(name)

    def time(self) -> Now:
        return Now(self.mono, EPOCH + self.mono - MONO)

    def tell(self, who: str, what: str) -> None:
        self.log.append(f"{self.mono - MONO:7.3f}  {who:<6} {what}")

    # ---- nodes

    def boot(self, name: str, boot: int) -> Shell:
        shell = self.shells[name] = Shell(self, name, boot)
        shell.node.set_jobs(self.jobs, self.time())
        return shell

    def start(self, name: str) -> None:
        shell = self.shells[name]
        others = [s for s in self.shells.values() if s is not shell and s.alive and s.node.ctx.state != "starting"]
        shell.do(shell.node.start, tuple(s.node.ctx.full_hostname for s in others))
        self.settle()

    def kill(self, name: str) -> None:
        """The machine dies, with its runners."""
        self.tell(name, "is killed, with everything that it runs")
        self.shells[name].alive = False

    def __getitem__(self, name: str) -> Node:
        return self.shells[name].node

    def trigger(self, name: str, of: Registration, reply: int = 1) -> None:
        self.tell(name, f"is asked to run {of.run}")
        shell = self.shells[name]
        shell.do(shell.node.trigger, of, reply)
        self.settle()

    def person_asks(self, request: Request[Answer]) -> None:
        """A person asks the ledger for something."""
        about = run_of(request) or getattr(request, request.wire[0])
        self.tell("", f"a person asks the ledger: {request.op} {about} -> {worded(self.ledger.ask(request))}")

    # ---- the world

    def settle(self) -> None:
        """Deliver everything that is under way. No time passes."""
        for _ in range(STEPS_MAX):
            if not self.queue:
                return
            call, args = self.queue.popleft()
            call(*args)
        raise AssertionError("the nodes go on talking for ever")

    def wait(self, seconds: float) -> None:
        """Let time pass, and wake nodes and runners when they want that."""
        end = self.mono + seconds
        for _ in range(STEPS_MAX):
            self.settle()
            there = [shell for shell in self.shells.values() if shell.alive]
            runners = [
                at
                for shell in there
                for at in (*shell.gate_at.values(), *shell.start_at.values(), *shell.renew_at.values())
            ]
            at = min([shell.node.timer_at() for shell in there] + runners, default=float("inf"))
            if at > end:
                break
            self.mono = max(self.mono, at)
            for shell in there:
                if shell.node.timer_at() <= self.mono:
                    shell.do(shell.node.handle_timer)
                for run in [run for run, gate_at in shell.gate_at.items() if gate_at <= self.mono]:
                    del shell.gate_at[run]
                    self.launched(shell, shell.launch_of(run))
                for run in [run for run, start_at in shell.start_at.items() if start_at <= self.mono]:
                    del shell.start_at[run]
                    self._start(shell, shell.launch_of(run))
                for run in [run for run, renew_at in shell.renew_at.items() if renew_at <= self.mono]:
                    self._renew(shell, shell.launch_of(run))
        else:
            raise AssertionError("the nodes are woken again and again")
        self.mono = end

    def says(self, shell: Shell, events: list[Event], only: str) -> None:
        ctx = shell.node.ctx
        packet = Packet(PROTOCOL_MAJOR, "default", ctx.hostname, ctx.pid, ctx.incarnation, 0, 0, list(events))  # type: ignore[arg-type]  # each Event is one of AnyEvent
        for event in events:
            self.said.append((shell.name, event))
            if not isinstance(event, WorkerHeartbeat):
                self.tell(shell.name, f"{'writes to ' + only if only else 'says'} {told(event)}")
        for peer in self.shells.values():
            wanted = only in ("", peer.node.ctx.full_hostname) and peer.node.ctx.state != "starting"
            if peer is not shell and peer.alive and wanted and shell.bus and peer.bus:
                self.queue.append((peer.do, (peer.node.receive, packet)))

    def asked(self, shell: Shell, request: LedgerRequest, sent_at: float) -> None:
        answer: Answer | OpenAnswer = Answer(UNAVAILABLE)
        if not self.ledger_away:
            answer = self.ledger.ask(request.request)
        if not isinstance(request.request, (ListOpen, ListEnded)):
            self.tell(shell.name, f"asks the ledger: {said_of(request.request)} -> {worded(answer)}")
        shell.do(lambda now: shell.node.ledger_answered(request.id, answer, sent_at, now))

    # ---- runners

    def launched(self, shell: Shell, launch: Launch) -> None:
        """The runner of a run asks its gate, and starts the program when it is due."""
        grant = grant_of(launch.run, launch.attempt, launch.token, launch.nonce)
        answer = self.ledger.ask(Gate(grant=grant, ahead_s=2 * GATE_LEAD_S))
        self.tell(shell.name, f"runner asks the ledger: gate {launch.run}/{launch.attempt} -> {worded(answer)}")
        assert isinstance(answer, Answer)
        if answer.word == OK and answer.in_s > 0:
            shell.start_at[launch.run] = exec_at(self.mono, answer.in_s)
        elif answer.word == OK:
            self._start(shell, launch)
        elif answer.word == EARLY:
            shell.gate_at[launch.run] = self.mono + max(0.0, answer.in_s - GATE_LEAD_S)

    def cancelled(self, name: str, run: str) -> None:
        """The runner of a run whose gate is open is told that the run is cancelled."""
        shell = self.shells[name]
        del shell.start_at[run]
        self.tell(name, f"runner of {run} is told to end, and has started nothing")
        shell.renew_at[run] = self.mono + self.settings.renew_interval_s
        self.end(name, run, REVOKED, None)

    def _start(self, shell: Shell, launch: Launch) -> None:
        shell.renew_at[launch.run] = self.mono + self.settings.renew_interval_s
        shell.do(shell.node.runner_started, launch)

    def _renew(self, shell: Shell, launch: Launch) -> None:
        self.ledger.ask(
            Renew(
                grant=grant_of(launch.run, launch.attempt, launch.token, launch.nonce),
                lease_s=launch.lease_s,
                launched=True,
            )
        )
        shell.renew_at[launch.run] = self.mono + self.settings.renew_interval_s

    def end(self, name: str, run: str, state: str = "success", exit_code: int | None = 0) -> None:
        """The program of a run has exited on a node. Its runner reports the end, and its daemon tells all nodes."""
        shell = self.shells[name]
        launch = shell.launch_of(run)
        del shell.renew_at[run]
        answer = self.ledger.ask(
            Report(
                grant=grant_of(launch.run, launch.attempt, launch.token, launch.nonce), state=state, exit_code=exit_code
            )
        )
        self.tell(name, f"runner asks the ledger: report {run}/{launch.attempt} {state} -> {worded(answer)}")
        shell.do(shell.node.runner_ended, launch, state, exit_code, "", "", 1.0)
        self.settle()

    def state(self, run: str) -> str:
        row = self.ledger.run(run)
        return row.state if row else ""

    def launches(self, run: str) -> list[tuple[str, int]]:
        """(node, attempt) of every launch of a run."""
        return [(s.name, launch.attempt) for s in self.shells.values() for launch in s.launches if launch.run == run]


def told(event: Event) -> str:
    """An event as a line that people can read."""
    kind = event_type(event)
    if isinstance(event, Task):
        return f"{kind} {event.run}/{event.attempt}"
    candidacy = getattr(event, "candidacy", None)
    if candidacy is not None:
        stands = f"abstains, {candidacy.abstains}" if candidacy.abstains else f"stands with clock {candidacy.clock}"
        return f"{kind} {getattr(event, 'id', '')}: {candidacy.name} {stands}"
    return kind


def said_of(request: Request[Any]) -> str:
    """A request, without the parts that differ from test to test."""
    attempt = f"/{request.attempt}" if isinstance(request, Claim) else ""
    subject = request.job if isinstance(request, (Activate, PassOver)) else run_of(request)
    return f"{request.op} {subject}{attempt}"


def worded(answer: Any) -> str:
    """An answer, without the parts that differ from test to test."""
    fields = {"attempt": answer.attempt, "by": answer.by, "state": answer.state}
    return " ".join([answer.word, *(f"{name}={value}" for name, value in fields.items() if value)])
