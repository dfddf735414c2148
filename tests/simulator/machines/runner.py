"""A runner and its watcher in the simulator: core.attempt decides as in production, and the processes are simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coordd.core import attempt as life
from coordd.core.actions import (
    ASK_RENEW,
    ASK_REPORT,
    EXIT,
    KILL,
    TERM,
    AskGate,
    AskReport,
    AskRestore,
    Exec,
    Pet,
    Terms,
)
from coordd.core.attempt import Attempt
from coordd.core.jobs.job import Job
from coordd.core.ledger.runner_requests import Commit, Gate, Registration, Renew, Report, Request, Restore
from coordd.core.ledger.words import OK, RECOVERING, Policy
from coordd.core.ready import Launch
from simulator.judging.judge import Child
from simulator.policies import BREAKERS, RETRIES, RUN_S
from simulator.terms import LEDGER_TIMEOUT, RENEW

if TYPE_CHECKING:
    from simulator.world import Host, World


# Faults that can strike between the gate and exec.
BEFORE_EXEC = frozenset(("pause_runner", "freeze", "kill_runner", "power"))

# Seconds that programs run, and seconds that programs live after SIGTERM.
PROGRAMS_S = (0.5, 3.0, 6.0, 12.0, 25.0)
TERMS_S = (0.05, 0.5, 2.0, 30.0)

SUCCEEDS = 0.8
EXEC_FAILS = 0.05
GUARDED = "guarded"  # the job whose programs publish under a commit


class Runner:
    """The runner of one attempt, with its watcher and its program."""

    def __init__(self, world: World, host: Host, launch: Launch, job: Job) -> None:
        """``job``: the definition that is executed, as the daemon had it when it wrote the runner's spec."""
        self.world, self.host, self.launch, self.job = world, host, launch, job
        self.on_lost = job.on_lost
        self.key = (launch.run, launch.attempt, launch.token)
        now = world.mono(host)
        self.attempt = Attempt(
            Terms(
                deadline=launch.deadline,
                lease_s=launch.lease_s,
                renew_interval_s=RENEW,
                ledger_timeout_s=LEDGER_TIMEOUT,
                kill_grace_s=world.plan.kill_grace_s,
                on_lost=job.on_lost,
            ),
            wait_s=launch.due_at - now,
            now=now,
        )
        self.child: Child | None = None
        self.alive = True
        self.node = host.daemon.name if host.daemon is not None else ""
        self.paused_until = 0.0
        self.awake_at = 0.0  # since when the runner can act
        self.waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.watcher_at = float("inf")
        self.timer_set = float("inf")
        self.told = False
        self.was_ready = False  # its gate was open ahead of the fire time
        self.told_until = 0.0  # end of the quarantine, as the ledger said: until then it may lose writes again
        self.taken = False  # the ledger's last answer said that it has our report
        host.runners.append(self)
        self.timer(0.0)

    def _late(self, call: Callable[..., None], *args: Any) -> bool:
        if not self.alive:
            return True
        if self.world.now < self.paused_until:
            self.waiting.append((call, args))
            return True
        return False

    def pause(self, seconds: float) -> None:
        if self.alive:
            self.world.say(f"{self.host.name} runner of {self.launch.run}/{self.launch.attempt} paused {seconds:.1f}")
            self.world.records.befell(self.host.index, "pause_runner", self.world.now, seconds)
            self.awake_at = self.paused_until = max(self.paused_until, self.world.now + seconds)
            self.world.at(seconds, self.resume)

    def resume(self) -> None:
        if self.world.now < self.paused_until and not self.world.chaos_over:
            return
        self.paused_until = 0.0
        self.awake_at = self.world.now
        waiting, self.waiting = self.waiting, []
        for call, args in waiting:
            call(*args)

    def timer(self, at: float) -> None:
        if self._late(self.timer, at):
            return
        if at == self.timer_set:
            self.timer_set = float("inf")
        self.attempt.timer(self.world.mono(self.host))
        self.obey()

    def cancel(self, reason: str) -> None:
        if not self._late(self.cancel, reason):
            if self.attempt.phase in (life.WAITING, life.GATING, life.READY):
                self.world.judge.leave.told_to_end(self.launch)
            self.attempt.cancel(reason, now=self.world.mono(self.host))
            self.obey()

    def shut_down(self) -> None:
        """The runner's machine shuts down cleanly."""
        if not self._late(self.shut_down):
            self.attempt.shut_down("the machine goes down", now=self.world.mono(self.host))
            self.obey()

    def obey(self) -> None:
        world, host = self.world, self.host
        for action in self.attempt.take_actions():
            word = action.word
            grant = self.launch.grant
            if isinstance(action, AskGate):
                self._ask(Gate(grant=grant, ahead_s=action.ahead_s))
            elif word == ASK_RENEW:
                launched = self.attempt.phase in (life.RUNNING, life.ENDING)
                self._ask(Renew(grant=grant, lease_s=self.launch.lease_s, launched=launched))
            elif isinstance(action, AskReport):
                self._ask(
                    Report(
                        grant=grant,
                        state=action.state,
                        exit_code=action.exit_code,
                        reason=action.reason,
                        final=action.final,
                    )
                )
                self.tell()
            elif isinstance(action, AskRestore):
                self._ask(self._witness(action.state))
            elif isinstance(action, Pet):
                if self.on_lost != "hold":
                    self.watcher_at = life.watcher_kill_at(action.deadline, world.plan.kill_grace_s)
                    world.at((self.watcher_at - world.mono(host)) / host.rate, self._watch, self.watcher_at)
            elif isinstance(action, Exec):
                self._strike_before_exec()
                wait_s = max(0.0, action.at - world.mono(host)) / host.rate
                world.at(wait_s + world.rng.uniform(0.0, 0.003), self._exec)
            elif word == TERM:
                if self.child is not None:
                    world.at(world.rng.choice(TERMS_S), self._child_dies, "term")
            elif word == KILL:
                self._child_dies("kill")
            elif word == EXIT:
                world.judge.left(self.key, host, self.told_until if self.taken else 0.0)
                self._leave()
                return
        if self.attempt.phase == life.READY and not self.was_ready:
            self.was_ready = True
            self._strike_before_exec()
            world.people.come_late(host, self.launch.run)
        at = self.attempt.timer_at()
        if at < self.timer_set and at != float("inf"):
            self.timer_set = at
            world.at((at - world.mono(host)) / host.rate, self.timer, at)

    def _strike_before_exec(self) -> None:
        """In worlds that strike at the worst moment: strike between the gate and exec."""
        world = self.world
        if not world.targeted or world.rng.random() > 0.08:
            return
        fault = world.rng.choice(sorted(world.targeted & BEFORE_EXEC) or [""])
        if fault:
            world.fault_log[fault + "_before_exec"] += 1
            world.say(f"FAULT {fault} {self.host.name} before exec")
        if fault == "pause_runner":
            self.pause(world.rng.uniform(1, 20))
        elif fault == "freeze":
            world.freeze(self.host, world.rng.uniform(1, 20))
        elif fault == "kill_runner":
            self.killed()
        elif fault == "power":
            world.at(0.0, world.power_cut, self.host, world.rng.uniform(2, 20))

    def _ask(self, request: Request[Any]) -> None:
        sent = self.world.mono(self.host)
        question = f"ask_{request.op}"
        self.world.server_of(self.host).ask(
            self.host, request, lambda answer: self._answered(answer, sent, question, request)
        )

    def _witness(self, state: str) -> Restore:
        """The request that tells a ledger everything about our grant, after the ledger has forgotten the grant."""
        launch, job = self.launch, self.job
        scheduled = "@" in launch.run
        of = Registration(
            launch.run,
            launch.job,
            job.digest,
            Policy.unpack(self.launch.policy),
            launch.fire_at,
            scheduled=scheduled,
            args=launch.args,
            due=launch.due,
        )
        return Restore(of=of, grant=launch.grant, node=self.node, lease_s=launch.lease_s, state=state)

    def _answered(self, answer: Any, sent: float, question: str, request: Request[Any]) -> None:
        if not self._late(self._answered, answer, sent, question, request):
            self.taken = question == ASK_REPORT and answer is not None and answer.word == OK
            if answer is not None and answer.word == RECOVERING and question == life.QUESTIONS.get(self.attempt.phase):
                self.told_until = self._recovers_until(request)
            if self.taken:
                self.told_until = max(self.told_until, self._recovers_until(request))
            self.attempt.answered(answer, sent_at=sent, now=self.world.mono(self.host), question=question)
            self.obey()

    def _recovers_until(self, request: Request[Any]) -> float:
        """The end of the quarantine in which the request was executed, as the answer says; 0.0 without a quarantine."""
        server = self.world.server
        at = server.asked_at.get(id(request), 0.0)
        if not server.setbacks or at < server.setbacks[-1].at:
            return 0.0
        until = server.setbacks[-1].opens_at
        return until if until < float("inf") else 0.0

    def _exec(self) -> None:
        if self._late(self._exec) or self.attempt.phase not in (life.RUNNING, life.ENDING):
            return
        world = self.world
        # The real runner does nothing between the action and exec. Here a pause may have come between them.
        if self.attempt.phase == life.ENDING or not self.attempt.may_exec(world.mono(self.host)):
            self.attempt.refused_late(now=world.mono(self.host))
            self.obey()
            return
        if "launch_fails" in world.rough and world.rng.random() < EXEC_FAILS:
            world.fault_log["exec_fails"] += 1
            self.attempt.exec_failed("no such program", 127, now=world.mono(self.host))
            self.obey()
            return
        code = self._exit_code(world.rng.random() < SUCCEEDS)
        self.child = Child(
            self.launch.run, self.launch.attempt, self.host.index, world.now, code, token=self.launch.token
        )
        world.judge.launched(self.child, self.launch, self.job)
        if self.host.daemon is not None:
            self.host.daemon.runner_started(self.launch)
        world.at(world.rng.choice(RUN_S if RETRIES in world.plan.kinds else PROGRAMS_S), self._child_dies, "exit")

    def _exit_code(self, drawn: bool) -> int:
        """Of its program. ``drawn``: it succeeds, if that does not depend on the machine."""
        world = self.world
        if not world.plan.kinds & {RETRIES, BREAKERS}:
            return 0 if drawn else 3
        since, where = world.plan.fails
        return 3 if world.now >= since and (self.launch.job, self.host.index) in where else 0

    def _child_dies(self, how: str) -> None:
        child = self.child
        if child is None or child.ended is not None:
            return
        if self.world.now < self.host.frozen_until:
            self.world.at(self.world.thaws_in(self.host) + 0.1, self._child_dies, how)
            return
        if how == "exit" and child.exit_code == 0 and self.launch.job == GUARDED and not child.published:
            self._publish(child, 3)
            return
        self.world.judge.died(child, how)
        self._reap(child.exit_code if how == "exit" else -15)

    def _publish(self, child: Child, tries: int) -> None:
        """The program asks the ledger whether it may publish its result, and then ends."""
        launch = self.launch

        def answered(answer: Any) -> None:
            if child.ended is not None:
                return
            if answer is None and tries:
                self._publish(child, tries - 1)
                return
            child.published = True
            if answer is None or answer.word != OK:
                child.exit_code = 4
            self._child_dies("exit")

        self.world.server.ask(self.host, Commit(grant=launch.grant), answered)

    def _reap(self, code: int) -> None:
        if not self._late(self._reap, code) and self.attempt.phase in (life.RUNNING, life.ENDING):
            self.attempt.ended(code, now=self.world.mono(self.host))
            self.obey()

    def tell(self) -> None:
        """Tell the daemon how the attempt ended. If no daemon runs, the next daemon is told when it starts."""
        attempt = self.attempt
        if attempt.phase in (life.REPORTING, life.DONE) and self.host.daemon is not None and not self.told:
            self.told = True
            self.host.daemon.runner_ended(self.launch, attempt.outcome, attempt.exit_code, attempt.reason)

    def _leave(self) -> None:
        self.alive = False
        if self in self.host.runners:
            self.host.runners.remove(self)
        daemon, attempt = self.host.daemon, self.attempt
        if self.world.plan.production and attempt.outcome and (not self.told or daemon is None or daemon.paused):
            # The end is in the runner's file. If this daemon dies before it reads the file, the next daemon reads it.
            self.host.facts.append((self.launch, attempt.outcome, attempt.exit_code, attempt.reason))
        if daemon is not None and not self.told:
            daemon.runner_gone(self.launch)

    # ---- the watcher, and runners that are killed

    def _watch(self, at: float) -> None:
        if self.world.now < self.host.frozen_until:
            self.world.at(self.world.thaws_in(self.host) + self.world.rng.uniform(0, 0.1), self._watch, at)
        elif at == self.watcher_at and self in self.host.runners and self.attempt.phase != life.DONE:
            if self.child is not None and self.child.ended is None:
                self.world.judge.ended_by_watcher(self)
            self._emptied("watcher: the lease was not renewed in time")

    def killed(self) -> None:
        """SIGKILL ends the runner alone. Its watcher then ends everything else and reports that."""
        if self.alive:
            self.world.say(f"{self.host.name} runner of {self.launch.run}/{self.launch.attempt} killed")
            self.alive = False
            self.world.records.befell(self.host.index, "kill_runner", self.world.now)
            self.world.at(self.world.rng.uniform(0.01, 0.2), self._emptied, "watcher: the runner died")

    def _emptied(self, reason: str) -> None:
        if self not in self.host.runners:
            return
        if self.world.now < self.host.frozen_until:  # its watcher is frozen too
            self.world.at(self.world.thaws_in(self.host), self._emptied, reason)
            return
        self.alive = False
        if self.child is not None:
            self.world.judge.died(self.child, "watcher")
        state = "lost" if self.child is not None or self.attempt.phase == life.RUNNING else "retry"
        ended = self.child is not None and self.child.how == "exit"
        if not ended:
            report = Report(grant=self.launch.grant, state=state, reason=reason)
            self.world.server.ask(self.host, report, lambda _: None)
            if self.world.plan.production:
                self._last_words(state, reason)
        self._leave()

    def _last_words(self, state: str, reason: str) -> None:
        """The watcher writes the end into the runner's file. The daemon reads the file now, or when it is back."""
        daemon, fact = self.host.daemon, (self.launch, state, None, reason)
        if daemon is None or daemon.paused:
            self.host.facts.append(fact)
        if daemon is not None:
            self.told = True
            daemon.runner_ended(*fact)

    def vanish(self) -> None:
        """The machine loses power."""
        self.alive = False
        if self.child is not None:
            self.world.judge.died(self.child, "power")
