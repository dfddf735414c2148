"""A node: inputs in, ``Ready`` out. It awaits nothing, reads no clock and draws no randomness of its own.

    receive, peer_dead       from the bus
    ledger_answered          an answer of the ledger
    trigger, open_election, drain, ...   commands of people
    runner_*                 events of this node's runners
    handle_timer             time has passed

After every input the shell pumps: ``core.perform`` takes ``ready()`` and does what it says, in its order. The same
class runs under trio in the daemon and under virtual time in the simulator.
"""

from __future__ import annotations

from typing import Any, TypeVar

from coordd.core.clock import LamportClock
from coordd.core.context import Context, Rng, Settings
from coordd.core.election import Election
from coordd.core.jobs.job import Job, jobs_digest
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.rows import Hold
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import RULES_SPOKEN, UNAVAILABLE
from coordd.core.members.detector import FailureDetector
from coordd.core.members.heartbeat import Heartbeats
from coordd.core.members.mingling import Mingling
from coordd.core.members.namesake import Namesakes
from coordd.core.members.outcomes import Outcomes
from coordd.core.node.abstaining import Abstaining
from coordd.core.node.alarms import Alarms
from coordd.core.node.brake import Brake
from coordd.core.node.drains import Drains
from coordd.core.node.elections import LAUNCHES, Elections
from coordd.core.node.following import Following
from coordd.core.node.plans.backfills import Backfills
from coordd.core.node.plans.reruns import Reruns
from coordd.core.node.rulebook import Rulebook
from coordd.core.node.shown import Shown
from coordd.core.node.states import DRAINING, HAPPENED, MINGLING, MOVES, READY, STARTING, STOPPING
from coordd.core.node.vouching import Vouching
from coordd.core.ready import Elected, Now, Outcome, Ready
from coordd.core.runs.passing import Passing
from coordd.core.runs.planner import Planner
from coordd.core.runs.pursuit import Pursuits
from coordd.core.runs.runners import NOT_WRITTEN, RunnerEvents
from coordd.core.runs.sweep import Sweep
from coordd.core.runs.triggers import Triggers
from coordd.core.runs.witness import Witness
from coordd.core.wire import events
from coordd.core.wire.events import Action, Candidacy, Packet, Task, WorkerState

W = TypeVar("W", bound=WorkerState)


class Node(Shown):
    """One node of the cluster."""

    def __init__(
        self,
        *,
        hostname: str,
        pid: int,
        incarnation: str,
        settings: Settings,
        clock_mark: int,
        rng: Rng,
        pin: str = "",
        acquainted: str = "",
    ) -> None:
        """``pin`` and ``acquainted``: the ledger that this node has used before (brake.py)."""
        clock = LamportClock(clock_mark)
        self.ctx = Context(hostname=hostname, pid=pid, incarnation=incarnation, settings=settings, clock=clock, rng=rng)
        self.heard = self.ctx.heard
        self.elections = Elections(self.ctx, self._candidacy)
        self.pursuits = Pursuits(self.ctx, self.elections, lambda now: self.sweep.soon(now))  # noqa: PLW0108 - it is made below
        self.outcomes = Outcomes(self.ctx)
        self.heartbeats = Heartbeats(self.ctx, self.outcomes, self._says)
        self.brake = Brake(self.ctx, pin, acquainted, self.heartbeats.ledger_changed, self.pursuits.slot_freed)
        self.witness = Witness(self.ctx)
        self.alarms = Alarms(self.ctx)
        self.abstaining = Abstaining(self.ctx, self.pursuits.slot_freed)
        self.drains = Drains(self.ctx, self._drained)
        self.rulebook = Rulebook(self.ctx)
        told = self.rulebook.definitions
        self.planner = Planner(self.ctx, self.pursuits.begin, lambda: told.stale, told.brought_back)
        self.passing = Passing(self.ctx, self.planner.cursors, self.pursuits.pursuits)
        self.backfills = Backfills(self.ctx, self.pursuits.begin)
        self.following = Following(self.ctx, self.pursuits.begin)
        self.reruns = Reruns(self.ctx, self.pursuits.begin)
        self.detector = FailureDetector(self.ctx, self.heartbeats)
        self.namesakes = Namesakes(self.ctx, self.heartbeats.reply, self._become)
        self.topics = set(LAUNCHES)
        self.triggers = Triggers(self.ctx, self.pursuits.begin)
        self.requests = self.triggers.requests  # accepted, not in the ledger yet
        self.ledger_up = True
        self.mingling = Mingling(self.ctx, self._says, self._enter)
        self.sweep = Sweep(self.ctx, self.pursuits, self._swept)
        self.vouching = Vouching(self.ctx, self.witness, self.sweep.look_again)
        # Inputs from this node's runners.
        runners = RunnerEvents(self.ctx, self.pursuits, self.sweep)
        self.runner_adopted, self.runner_gone = runners.adopted, runners.gone
        self.runner_started, self.runner_ended = runners.started, runners.ended
        self.exec_granted, self.testimonies = runners.granted, runners.testimonies
        self.launch_failed, self.launch_refused = runners.launch_failed, runners.launch_refused
        self._handlers = self._by_event()

    def _by_event(self) -> dict[type, Any]:
        """The handler of each event type."""
        return {
            events.WorkerElect: self._on_elect,
            events.WorkerElectAck: self._on_ack,
            events.WorkerHello: self._on_hello,
            events.WorkerHelloReply: self._on_hello_reply,
            events.WorkerOnline: self._on_worker,
            events.WorkerHeartbeat: self._on_worker,
            events.WorkerOffline: self._on_offline,
            events.WorkerBeat: self.detector.beat_heard,
            events.WorkerSuspect: self.detector.suspects_heard,
            events.WorkerVouch: self.detector.vouch_heard,
            events.ControlCancel: self._on_cancel,
            events.ControlRevoke: self._on_revoke,
            events.ControlClear: self._on_clear,
        }

    # ---- life

    def start(self, peers: tuple[str, ...] | None, now: Now) -> None:
        """Mingle: ask all nodes what was missed. ``peers``: those that the transport knows, None if it cannot tell."""
        if not self.ctx.settings.mingle:
            self._enter(now)
            return
        self._become(MINGLING)
        self.mingling.begin(peers, self.elections.bus_up, now)

    def stop(self, now: Now) -> None:
        """Stop opening and answering elections, and say good-bye. Runners continue."""
        if self.ctx.state != STOPPING:
            self._become(STOPPING)
            self.ctx.record(self._says(events.WorkerOffline), now, sync=True)

    def drain(self, draining: Hold | bool, now: Now) -> None:
        """Take no new runs (active ones continue), or take them again (False), without the ledger."""
        self.drains.keep_here(Hold(by="", at=now.wall) if draining is True else draining or None, now)

    def drain_kept(self, hostname: str, hold: Hold | None, now: Now) -> None:
        """The ledger keeps a drain of a node, or has ended it (None)."""
        self.drains.changed(hostname, hold, now)

    def set_jobs(self, jobs: dict[str, Job], now: Now) -> None:
        """Use these job files from now on."""
        before = self.rulebook.definitions.take(jobs, now)
        digest, self.ctx.jobs_digest = self.ctx.jobs_digest, jobs_digest(jobs)
        if digest != self.ctx.jobs_digest and self.ctx.state in (READY, DRAINING):
            self.heartbeats.news(now)
        arrive = self.ctx.state != STARTING and not self.rulebook.definitions.published
        self.planner.take(before, now, reloaded=arrive)
        for name in before:
            if name not in jobs or jobs[name].digest != before[name].digest:
                self.pursuits.redefined(name)
        self.look_again(now)

    # ---- inputs: the bus

    def receive(self, packet: Packet, now: Now) -> None:
        """A peer's packet; it may be late, repeated or out of order."""
        ctx = self.ctx
        if packet.cluster != ctx.settings.cluster:
            return
        if packet.hostname == ctx.hostname:
            self.namesakes.heard(packet, now)
            return
        clock = ctx.clock
        only_greets = all(isinstance(event, events.WorkerHello) for event in packet.events)
        if only_greets and ctx.membership.has_namesake(packet.hostname, packet.incarnation):
            # It has restarted, or it is a second node with that name, which will be refused: its next messages tell.
            # Until then it gets an answer, and the member that we know stays in the list.
            for event in packet.events:
                if isinstance(event, events.WorkerHello):
                    self.heartbeats.hello_heard(event, packet.sender, now)
            return
        member = ctx.membership.hear(packet.hostname, packet.pid, packet.incarnation, 0, now.mono)
        if member is None:
            if ctx.membership.has_namesake(packet.hostname, packet.incarnation):
                self._take_facts(packet, now)  # late, from an earlier life of that node: what became of runs stays true
            return
        handlers = self._handlers
        sender = member.name
        for event in packet.events:
            if not clock.adjust(event.clock):
                count = clock.jumps_refused
                if count & (count - 1) == 0:  # 1, 2, 4, 8, …: a flood must not fill the log
                    ctx.note("clock.jump_refused", peer=sender, clock=event.clock, count=count)
                continue
            member.clock = event.clock
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event, packet, sender, now)
            elif isinstance(event, Task):
                self._on_task(event, now)
        if ctx.membership.changes:
            self._members_changed(now)

    def receive_late(self, packet: Packet, now: Now) -> None:
        """Facts about runs that were sent late: neither a sign of life nor an election.

        An old hello is answered: a node with a wrong wall clock proves with its next message that it lives.
        """
        if packet.cluster != self.ctx.settings.cluster:
            return
        for event in packet.events:
            if isinstance(event, events.WorkerHello) and packet.hostname != self.ctx.hostname:
                self.heartbeats.hello_heard(event, packet.sender, now)
        self._take_facts(packet, now)

    def _take_facts(self, packet: Packet, now: Now) -> None:
        for event in packet.events:
            if isinstance(event, Task) and self.ctx.clock.adjust(event.clock):
                self._on_task(event, now)

    def peer_dead(self, name: str, now: Now) -> None:
        """A hint from the transport: nobody listens at this full_hostname any more."""
        if self.ctx.membership.proof_of_death(name):
            self.detector.dead(name)
        self.mingling.not_missing(name, now)
        self._members_changed(now)

    def bus_changed(self, up: bool, now: Now) -> None:
        """The bus was lost, or is up (again): then this node asks what it has missed, as at its start.

        A node without a bus is deaf: the silence of other nodes means nothing, now and right afterwards.
        """
        ctx = self.ctx
        if up == self.elections.bus_up:
            return
        if up or ctx.state != STARTING:
            ctx.note("bus.connected" if up else "bus.lost")
        ctx.membership.judged_from = now.mono if up else float("inf")
        if not up:
            ctx.membership.isolate(True)
        self._decided(self.elections.bus_changed(up, now), now)
        self.brake.bus_up = up
        self.brake.judge(now)
        if not up or ctx.state in (STARTING, STOPPING):
            return
        self.mingling.bus_came(now)
        self.heartbeats.greet(now)
        self.sweep.soon(now)  # for revocations and ends that nobody could send us

    # ---- inputs: the ledger

    def ledger_answered(self, request: int, answer: Answer | OpenAnswer, sent_at: float, now: Now) -> None:
        """The answer to a request; ``UNAVAILABLE`` if none came in time. ``sent_at`` in mono."""
        if answer.word != UNAVAILABLE:
            self.ctx.round_trip_s += 0.1 * ((now.mono - sent_at) - self.ctx.round_trip_s)
        self.ctx.answered(request, answer, sent_at, now)

    # ---- inputs: people

    def trigger(self, of: Registration, reply_id: int, now: Now) -> None:
        """Trigger a run. The reply comes once the ledger has it, or, without the ledger, this node's disk."""
        self.triggers.trigger(of, reply_id, now)

    def recover_request(self, of: Registration, now: Now) -> None:
        """A trigger that this node accepted before a restart; the ledger may not have it."""
        self.triggers.trigger(of, 0, now)

    def open_election(self, ident: str, topic: str, action: Action | None, now: Now) -> Election:
        """Open an election on request of a person."""
        known = ident in self.elections.by_id
        election = self.elections.open(ident, topic, action, now)
        if not known and election.succession is not None:
            self._decided([election], now)
        return election

    def hurry_cancel(self, run: str, reason: str, attempt: int, now: Now) -> None:
        """The ledger has a cancellation: tell the runner now, here or elsewhere, before its next renewal."""
        self.ctx.out.cancels.append((run, reason))
        self.ctx.record(events.ControlCancel(run=run, reason=reason, attempt=attempt), now)

    def revoked(self, runs: tuple[str, ...], reason: str, now: Now) -> None:
        """A person has revoked them, and the ledger has it: tell the other nodes, and sweep now."""
        for run in runs:
            said = events.ControlRevoke(run=run, reason=reason)
            self.ctx.publish(said, now)
            self.outcomes.revoked(said, now.wall)
        self.look_again(now)

    def look_again(self, now: Now) -> None:
        """The ledger has changed: sweep now."""
        self.sweep.look_again(now)

    def clear_alarms(self, idents: tuple[str, ...], note: str, by: str, now: Now) -> list[str]:
        """A person has looked at these alarms; returns the ids that were active."""
        return self.alarms.clear(idents, note, by, now)

    def recall(self, event: Task) -> None:
        """An event of an attempt, of this node or another, new or from the journal."""
        self.witness.saw(event)
        self.alarms.saw(event)

    def accept_ledger(self, identity: str, now: Now) -> None:
        """A person says that the ledger with this identity is the right one."""
        self.brake.accept(identity, now)
        self.look_again(now)

    # ---- inputs: this machine

    def impaired(self, why: str) -> None:
        """Why its journal cannot be written; "" if it can (again): then attempts that were returned for that reason may
        start here.
        """
        ctx = self.ctx
        if ctx.impaired and not why:
            ctx.launch_problems = {job: told for job, told in ctx.launch_problems.items() if told != NOT_WRITTEN}
        ctx.impaired = why

    def runtime_failed(self, why: str) -> None:
        """Why its runtime directory cannot be written; "" if it can (again)."""
        self.ctx.runtime_failure = why

    def cannot_launch(self, problems: dict[str, str]) -> None:
        """Job -> why this node cannot start it; the complete present list."""
        self.ctx.launch_problems = problems

    def loaded(self, average: tuple[float, float, float], budget: int | None, concurrency: dict[str, int]) -> None:
        """The load averages of the last 1, 5 and 15 minutes, and what strategies say (None, left out: no strategy)."""
        self.ctx.loaded(average, budget, concurrency)

    def reconfigured(self, settings: Settings) -> None:
        """The configuration was read again."""
        self.ctx.settings = settings

    def stamp(self) -> int:
        """A stamp for a line that the shell itself writes to the journal."""
        return self.ctx.clock.forward()

    # ---- time

    def handle_timer(self, now: Now) -> None:
        """Do everything that is due."""
        ctx = self.ctx
        while due := ctx.due(now.mono):
            kind, key = due
            if kind == "pursuit":
                self.pursuits.timer(key, now)
            elif kind == "line":
                self.pursuits.line_moved(key, now)
            elif kind == "ended":
                self.pursuits.run_ended(key, now)
            elif kind == "election":
                self._decided(self.elections.timer(now), now)
            elif kind == "lacking":
                self.elections.look(now)
            elif kind == "sweep":
                self.sweep.begin(now)
                ctx.arm(now.mono + ctx.settings.renew_interval_s, "sweep")
            elif kind == "sweep_soon":
                self.look_again(now)
            elif kind == "heartbeat":
                if ctx.state != STOPPING:
                    self.heartbeats.heartbeat(now)
            elif kind == "members":
                self._members_swept(now)
            elif kind == "plan":
                if ctx.state in (READY, DRAINING):
                    self.planner.plan(key, now)
            elif kind == "register":
                self.triggers.timer(key, now)
            elif kind == "aside":
                self.pursuits.endings.elsewhere.judge(now)
            elif kind == "vouch":
                self.vouching.go_on(now)
            elif kind == "mingle":
                self.mingling.timer(now)

    def timer_at(self) -> float:
        """When ``handle_timer`` must be called next (mono); infinity if nothing is due."""
        timers = self.ctx.timers
        return timers[0][0] if timers else float("inf")

    def ready(self) -> Ready:
        """What the shell must do now. Each item is returned once; the next call starts empty."""
        out, self.ctx.out = self.ctx.out, Ready()
        for event in out.journal:
            if isinstance(event, Task):
                self.recall(event)
                self.outcomes.saw(event, event.timestamp)
        if out.messages or out.journal or out.unicasts:
            out.clock_mark = self.ctx.clock.reserve()
        return out

    def wants_something(self) -> bool:
        """True when ``ready()`` has anything to do."""
        return self.ctx.out.any()

    def performed(self, outcome: Outcome, now: Now) -> None:
        """The result: what the disk refused."""
        if outcome.refused is not None:
            self.impaired(outcome.refused and f"its journal cannot be written: {outcome.refused}")
        for launch in outcome.unlaunched:
            self.launch_failed(launch, NOT_WRITTEN, now)
        for run in outcome.unkept:
            self.triggers.not_kept(run)

    # ---- the bus, event by event

    def _on_elect(self, event: events.WorkerElect, packet: Packet, sender: str, now: Now) -> None:
        if self.ctx.state == STOPPING:
            return
        action = event.action if event.topic in LAUNCHES else None
        if action is not None:
            self.pursuits.join(action, now)
        election, decided = self.elections.elect_heard(event, sender, now)
        if action is not None:
            self.pursuits.joined(action, election, now)
        if election is not None and decided:
            self._decided([election], now)

    def _on_ack(self, event: events.WorkerElectAck, packet: Packet, sender: str, now: Now) -> None:
        election = self.elections.ack_heard(event, sender, now)
        if election is not None:
            self._decided([election], now)

    def _on_worker(self, event: WorkerState, packet: Packet, sender: str, now: Now) -> None:
        member = self.ctx.membership.members[packet.hostname]
        if event.jobs_digest not in (member.jobs_digest, self.ctx.jobs_digest):
            self.ctx.note("jobs.differ", peer=sender, theirs=event.jobs_digest, ours=self.ctx.jobs_digest)
        before = (member.ledger, member.pinned)
        self.ctx.membership.update(member, event)
        if (member.ledger, member.pinned) != before:
            self.brake.judge(now)
        self.heartbeats.state_heard(member, now)

    def _on_hello(self, event: events.WorkerHello, packet: Packet, sender: str, now: Now) -> None:
        self._on_worker(event, packet, sender, now)
        self.heartbeats.hello_heard(event, sender, now)

    def _on_hello_reply(self, event: events.WorkerHelloReply, packet: Packet, sender: str, now: Now) -> None:
        self._on_worker(event, packet, sender, now)
        for job, token in event.tokens.items():
            self.ctx.told_token(job, token, sender, now)
        self.ctx.membership.told(event.known, now.mono, vouched=False)
        self.outcomes.told(event.outcomes, sender, now)
        self.mingling.not_missing(sender, now)

    def _on_offline(self, event: events.WorkerOffline, packet: Packet, sender: str, now: Now) -> None:
        self.ctx.membership.offline(self.ctx.membership.members[packet.hostname], event.clock)

    def _on_cancel(self, event: events.ControlCancel, packet: Packet, sender: str, now: Now) -> None:
        if (held := self.pursuits.running.get(event.run)) and event.attempt in (-1, held[0]):  # not for a later attempt
            self.ctx.out.cancels.append((event.run, event.reason))

    def _on_revoke(self, event: events.ControlRevoke, packet: Packet, sender: str, now: Now) -> None:
        self.outcomes.revoked(event, now.wall)
        self.sweep.soon(now)

    def _on_clear(self, event: events.ControlClear, packet: Packet, sender: str, now: Now) -> None:
        self.alarms.clear_heard(event)

    def _on_task(self, event: Task, now: Now) -> None:
        self.recall(event)
        self.outcomes.saw(event, now.wall)
        self.pursuits.heard(event, now)
        if not isinstance(event, (events.TaskSent, events.TaskReceived, events.TaskStarted)):
            self.pursuits.endings.heard(event, now)
            self.ctx.arm(now.mono, "ended", event.name)  # hundreds may end at one instant
            self.sweep.soon(now)

    # ---- steps

    def _enter(self, now: Now) -> None:
        """Mingling is over: take part."""
        self._become(READY)
        self.ctx.record(self._says(events.WorkerOnline), now)
        self.heartbeats.entered(now)
        self.sweep.begin(now)
        self.ctx.arm(now.mono + self.ctx.settings.renew_interval_s, "sweep")
        self._members_swept(now)

    def _become(self, state: str) -> None:
        assert state in MOVES[self.ctx.state], f"{self.ctx.state} -> {state}"
        self.ctx.state = self.ctx.out.state = state
        self.ctx.note("node.state_changed", state=state)

    def _drained(self, draining: bool, now: Now) -> None:
        self._become(DRAINING if draining else READY)
        self.ctx.publish(self._says(events.WorkerHeartbeat), now)
        if not draining:
            self.pursuits.slot_freed(now)

    def _says(self, kind: type[W]) -> W:
        ctx = self.ctx
        return kind(
            freq=ctx.membership.fanout_interval_s,
            active=len(self.pursuits.running),
            processed=ctx.processed,
            loadavg=ctx.loadavg,
            sw_ver=ctx.settings.version,
            sw_sys=ctx.settings.system,
            state=ctx.state,
            tags=ctx.settings.tags,
            jobs_digest=ctx.jobs_digest,
            ledger=ctx.ledger,
            pinned=ctx.pinned,
            rules=RULES_SPOKEN,
            failing=bool(ctx.failing),
        )

    def _candidacy(self, topic: str, action: Action | None, clock: int) -> Candidacy:
        """This node's one statement in an election."""
        ctx = self.ctx
        if topic not in self.topics:
            return Candidacy(0, clock, ctx.full_hostname, f"unknown topic {topic!r}")
        if topic not in LAUNCHES:
            return Candidacy(0, clock, ctx.full_hostname, "" if ctx.state == READY else ctx.state)
        if action is None:
            return Candidacy(0, clock, ctx.full_hostname, "no action")
        job = ctx.definition_for(action)
        load, abstains = self.pursuits.load(job, action), self.pursuits.abstains(job, action) or ctx.aside
        return Candidacy(load, clock, ctx.full_hostname, abstains, ctx.ledger)

    def _decided(self, elections: list[Election], now: Now) -> None:
        """Act on elections that are decided: a pursuit takes its place, a hand-made election goes to the shell."""
        for election in elections:
            if election.topic in LAUNCHES:
                self.pursuits.decided(election, now)
            elif election.rank(self.ctx.full_hostname) == 0:
                self.ctx.out.elected.append(Elected(election.id, election.topic, election.action))

    def _swept(self, answer: Answer | OpenAnswer, sent_at: float, now: Now) -> None:
        up = isinstance(answer, OpenAnswer)
        if up != self.ledger_up:
            self.ledger_up = up
            self.ctx.note("ledger.restored" if up else "ledger.lost")
        if isinstance(answer, OpenAnswer):
            self.brake.ledger_says(answer, now)
            self.witness.ledger_says(answer.recovering_s, answer.epoch)
            self.vouching.swept(answer, now)
            self.rulebook.swept(answer, self.pursuits.pursuits, self.planner, self.elections.bus_up, now)
            self.planner.horizons(answer, now)
            self.passing.swept(answer)
            self.drains.swept(answer, sent_at, now)
            self.backfills.swept(answer)
            self.following.swept(answer, now)
            self.reruns.swept(answer)

    def _members_swept(self, now: Now) -> None:
        self.detector.turn(now)
        self._members_changed(now)

    def _members_changed(self, now: Now) -> None:
        for what, member in self.ctx.membership.take_changes():
            self.ctx.note(f"node.{HAPPENED[what]}", peer=member.name)
            if what != "join":
                self._decided(self.elections.lost(member.name, now), now)
        self.brake.judge(now)
