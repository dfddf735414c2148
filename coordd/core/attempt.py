"""The runner's decisions: hold one lease, start one program, end it when the lease is gone.

A sans-I/O machine: answers, exits and the time go in, actions come out in the order they are to be done. The
process around it (coordd/runner) only obeys; the simulator runs this very class. Instants are seconds on the
runner's own CLOCK_BOOTTIME, except fire times, which only the ledger's gate judges.

    WAITING -> GATING -> RUNNING -> ENDING -> REPORTING -> DONE

The lease deadline is the instant at which the *request* that was answered left, plus what the ledger said is
left, less the clock-rate error of both sides. Counted from the answer it would outlive the lease by the trip.

Like rows.py this file is loaded before a job starts, so it imports no library.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.words import (
    CANCEL,
    EARLY,
    FAILURE,
    LOST,
    OK,
    RECEIVED,
    RECOVERING,
    RETRY,
    REVOKED,
    RHO,
    STALE,
    STARTED,
    SUCCESS,
)

WAITING = "waiting"
GATING = "gating"
RUNNING = "running"
ENDING = "ending"
REPORTING = "reporting"
DONE = "done"

MOVES: "dict[str, frozenset[str]]" = {
    WAITING: frozenset((GATING, REPORTING, DONE)),
    GATING: frozenset((WAITING, RUNNING, REPORTING, DONE)),
    RUNNING: frozenset((ENDING, REPORTING)),
    ENDING: frozenset((REPORTING,)),
    REPORTING: frozenset((DONE,)),
    DONE: frozenset(),
}

# What the process is asked to do: the words of ``Action``.
ASK_GATE = "ask_gate"
ASK_RENEW = "ask_renew"
ASK_REPORT = "ask_report"
ASK_RESTORE = "ask_restore"
EXEC = "exec"
TERM = "term"
KILL = "kill"
PET = "pet"
EXIT = "exit"

# The question that each phase asks.
QUESTIONS: "dict[str, str]" = {
    WAITING: ASK_RENEW,
    GATING: ASK_GATE,
    RUNNING: ASK_RENEW,
    ENDING: ASK_RENEW,
    REPORTING: ASK_REPORT,
}

# The last part of the kill grace is for SIGKILL, and the very last for the watcher, should the runner be stopped.
KILL_PART = 0.3
WATCHER_PART = 0.2

# What was not answered is asked again, at the soonest so long after it was asked: one that ran into the ledger's
# timeout at once, since every second counts then.
ASK_AGAIN_S = 0.2

# A gate that is early is asked again after this at the latest: a person may resume a job, or end a quarantine.
EARLY_MAX_S = 10.0

# A runner that has to wait renews once this soon: the gate's call then finds connection, files and pages ready.
WARM_UP_S = 0.05

# No renewal begins this shortly before the fire time: its answer would hold the gate up.
QUIET_S = 0.5

# A report that the ledger does not take is repeated this long; then the daemon goes on from the run's files.
REPORT_LIMIT_S = 600.0


def lease_deadline(sent_at: float, left_s: float) -> float:
    """The instant after which the lease may not be believed, from when the request was SENT."""
    return sent_at + left_s * (1 - 2 * RHO)


def watcher_kill_at(deadline: float, kill_grace_s: float) -> float:
    """When the watcher kills everything, if nobody has moved the deadline meanwhile."""
    return deadline - kill_grace_s * WATCHER_PART


class Terms:
    """What an attempt is held under. Durations in seconds; ``deadline`` on CLOCK_BOOTTIME."""

    __slots__ = (
        "deadline",
        "final_exit_codes",
        "kill_grace_s",
        "lease_s",
        "ledger_timeout_s",
        "on_lost",
        "renew_interval_s",
        "timeout_s",
    )

    def __init__(
        self,
        *,
        deadline: float,
        lease_s: float,
        renew_interval_s: float,
        ledger_timeout_s: float,
        kill_grace_s: float,
        on_lost: str,
        timeout_s: float = 0.0,
        final_exit_codes: "tuple[int, ...]" = (),
    ) -> None:
        self.deadline = deadline
        self.lease_s = lease_s
        self.renew_interval_s = renew_interval_s
        self.ledger_timeout_s = ledger_timeout_s
        self.kill_grace_s = kill_grace_s
        self.on_lost = on_lost
        self.timeout_s = timeout_s
        self.final_exit_codes = final_exit_codes


class Action:
    """Something that the process is to do; where a word does not say it all, a class of its own does."""

    __slots__ = ("word",)

    def __init__(self, word: str) -> None:
        self.word = word


class Pet(Action):
    """The watcher may count on the lease until ``deadline``."""

    __slots__ = ("deadline",)

    def __init__(self, deadline: float) -> None:
        self.word = PET
        self.deadline = deadline


class AskReport(Action):
    """Tell the ledger how it ended."""

    __slots__ = ("exit_code", "final", "reason", "state")

    def __init__(self, state: str, exit_code: "int | None", reason: str, final: bool) -> None:
        self.word = ASK_REPORT
        self.state = state
        self.exit_code = exit_code
        self.reason = reason
        self.final = final


class AskRestore(Action):
    """The ledger went back and has forgotten the grant: tell it, and the ``state`` that the attempt is in."""

    __slots__ = ("state",)

    def __init__(self, state: str) -> None:
        self.word = ASK_RESTORE
        self.state = state


class Attempt:
    """One attempt, as its runner sees it."""

    __slots__ = (
        "actions",
        "ask_at",
        "asked_at",
        "deadline",
        "ended_by",
        "exit_code",
        "final",
        "hurried",
        "kill_at",
        "outcome",
        "phase",
        "reason",
        "recovering_until",
        "renew_at",
        "renewing",
        "reported_since",
        "restoring",
        "started_at",
        "terms",
    )

    def __init__(self, terms: Terms, *, wait_s: float, now: float) -> None:
        """Begin to wait for the fire time, ``wait_s`` seconds from now."""
        self.terms = terms
        self.phase = WAITING
        self.deadline = terms.deadline
        self.ask_at = now + max(0.0, wait_s)  # gate, renew or report is next asked then
        self.renew_at = now + WARM_UP_S  # while it waits for the gate; soon, for the first call is the slow one
        self.asked_at = 0.0
        self.renewing = False  # a question is out, and has not been answered
        self.hurried = False  # there was news while a renewal was out
        self.kill_at = float("inf")
        self.started_at = 0.0
        self.exit_code: int | None = None
        self.ended_by = ""  # why we ended it, "" when it ended by itself
        self.outcome = ""
        self.reason = ""
        self.final = False
        self.reported_since = 0.0
        self.restoring = False  # the next question puts the grant back
        self.recovering_until = 0.0  # until then the ledger may forget once more what it is told
        self.actions: list[Action] = []

    # ---- inputs

    def timer(self, now: float) -> None:
        """Do what is due."""
        if self.renewing and now >= self.asked_at + self.terms.ledger_timeout_s:
            self.renewing = False  # no answer in time: ask again, which is safe
            if self.phase == WAITING:
                self.renew_at = now
            else:
                self.ask_at = now
        if self.phase in (WAITING, GATING):
            self._timer_before(now)
        elif self.phase in (RUNNING, ENDING):
            self._timer_running(now)
        elif self.phase == REPORTING and now >= self.ask_at and not self.renewing:
            if now - self.reported_since > REPORT_LIMIT_S:
                self._done()
            else:
                self._ask(ASK_REPORT, now)

    def timer_at(self) -> float:
        """When ``timer`` wants to be called next."""
        if self.phase == DONE:
            return float("inf")
        at = self.asked_at + self.terms.ledger_timeout_s if self.renewing else self.ask_at
        if self.phase == WAITING:
            if not self.renewing and self.ask_at - self.renew_at > QUIET_S:
                at = min(at, self.renew_at)
            return min(at, self._end_at())
        if self.phase == RUNNING:
            at = min(at, self._end_at())
            if self.terms.timeout_s:
                at = min(at, self.started_at + self.terms.timeout_s)
        elif self.phase == ENDING:
            at = min(at, self.kill_at)
        return at

    def answered(self, answer: "Answer | None", *, sent_at: float, now: float, question: str = "") -> None:
        """An answer; None when there was none in time.

        ``question`` is what was asked. An answer to another question than this phase asks is late (a renewal
        that was under way when the program ended) and is ignored: it must not pass for the report's. Only that the
        attempt is cancelled, or lost, is heeded until it starts: nothing is executed after that was heard.
        """
        if question == ASK_RESTORE:
            if self.restoring:
                self._restored(answer, sent_at, now)
            return
        if question and question != QUESTIONS.get(self.phase):
            if answer is not None and answer.word == RECOVERING:
                self._told_of_quarantine(answer, now)
            elif answer is not None and self.phase == GATING:  # a renewal that was given up before the gate was asked
                if answer.word == CANCEL:
                    self._report(REVOKED, "cancelled before it started", now)
                elif answer.word == LOST:
                    self._done()
            return
        self.renewing = False
        if answer is not None and answer.word == RECOVERING:
            self._forgotten(answer, now)
            return
        if self.phase == WAITING:
            self._waiting_answered(answer, sent_at, now)
        elif self.phase == GATING:
            self._gate_answered(answer, sent_at, now)
        elif self.phase in (RUNNING, ENDING):
            self._renew_answered(answer, sent_at, now)
        elif self.phase == REPORTING:
            if answer is not None and answer.word in (OK, STALE):
                if answer.word == OK:
                    self.recovering_until = max(self.recovering_until, now + answer.left_s)
                if answer.word == OK and now < self.recovering_until:
                    self.ask_at = now + self.terms.renew_interval_s
                else:
                    self._done()
            else:
                self.ask_at = now + max(ASK_AGAIN_S, min(self.terms.renew_interval_s, 5.0))

    def exec_failed(self, reason: str, *, now: float) -> None:
        """The program could not be executed at all."""
        self.exit_code = 127
        self._report(FAILURE, reason, now)

    def ended(self, exit_code: int, *, now: float, final: bool = False, detail: str = "") -> None:
        """The program has exited and nothing of its tree is left. Negative: ended by that signal.

        ``final``: its output says that another try is of no use. ``detail``: the line of it that tells why it failed.
        """
        self.exit_code = exit_code
        if self.ended_by:
            state, reason = self.outcome, self.ended_by
        elif exit_code == 0:
            state, reason = SUCCESS, ""
        else:
            state = FAILURE
            reason = f"ended by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
            if detail:
                reason += f": {detail}"  # after a colon: viewers are not shown it
            self.final = final or exit_code in self.terms.final_exit_codes
        self._report(state, reason, now)

    def hurry(self, *, now: float) -> None:
        """There is news for the ledger: renew now rather than later."""
        if self.phase == RUNNING:
            self.ask_at = now
            self.hurried = self.renewing

    def cancel(self, reason: str, *, now: float) -> None:
        """A person, the ledger or a newer run wants it ended."""
        if self.phase in (WAITING, GATING):
            self._report(REVOKED, reason, now)
        elif self.phase == RUNNING:
            self._end(REVOKED, reason, now)

    def shut_down(self, reason: str, *, now: float) -> None:
        """The machine goes down: end it and say so at once, so that another node need not wait."""
        if self.phase in (WAITING, GATING):
            self._report(RETRY, reason, now)
        elif self.phase == RUNNING:
            self._end(LOST, reason, now)

    def take_actions(self) -> list[Action]:
        """What is to be done now, in this order."""
        actions, self.actions = self.actions, []
        return actions

    # ---- a ledger that went back

    def _forgotten(self, answer: Answer, now: float) -> None:
        """It does not know this grant, and waits for those who do: tell it, then ask again."""
        self.restoring = True
        self._told_of_quarantine(answer, now)
        if self.phase == GATING:
            self._move(WAITING)
        if self.phase == WAITING:
            self.renew_at = now
            self.ask_at = max(self.ask_at, now + ASK_AGAIN_S)
        else:
            self.ask_at = now

    def _told_of_quarantine(self, answer: Answer, now: float) -> None:
        self.recovering_until = now + max(answer.left_s, answer.in_s)

    def _restored(self, answer: "Answer | None", sent_at: float, now: float) -> None:
        """The grant is back, or the ledger knows better: the question itself tells which."""
        self.renewing = False
        again_at = now if answer is not None else max(now, sent_at + ASK_AGAIN_S)
        self.restoring = answer is None
        if self.phase == WAITING:
            self.renew_at = again_at
        elif self.phase != DONE:
            self.ask_at = again_at

    # ---- before exec

    def _timer_before(self, now: float) -> None:
        if self._too_late(now):
            # The gate may or may not have been passed; nothing was started, and we say so.
            self._report(RETRY, "refused: the lease was too near its end to start", now)
        elif self.renewing:
            return
        elif now >= self.ask_at:
            if self.phase == WAITING:
                self._move(GATING)
            self._ask(ASK_GATE, now)
        elif self.phase == WAITING and now >= self.renew_at:
            if self.ask_at - now > QUIET_S:
                self._ask(ASK_RENEW, now)
            else:
                self.renew_at = float("inf")  # the gate is next, and renews as well

    def _waiting_answered(self, answer: "Answer | None", sent_at: float, now: float) -> None:
        """The lease is renewed while the gate is far: claims are made ahead, and clocks differ."""
        if answer is None:
            self.renew_at = max(now, sent_at + ASK_AGAIN_S)
            return
        self.renew_at = now + self.terms.renew_interval_s
        if answer.word == LOST:
            self._done()
        elif answer.word == CANCEL:
            self._report(REVOKED, "cancelled before it started", now)
        else:
            self._renewed(sent_at, answer.left_s)

    def _gate_answered(self, answer: "Answer | None", sent_at: float, now: float) -> None:
        if answer is None:
            self.ask_at = max(now, sent_at + ASK_AGAIN_S)
        elif answer.word == EARLY:
            self._move(WAITING)  # our wall clock runs ahead of the ledger's
            self.ask_at = now + min(answer.in_s, EARLY_MAX_S)
            self.renew_at = now
        elif answer.word == OK:
            # The gate lends nothing: what it says is left only a clock could know that may have been set back.
            if self._too_late(now):
                self._report(RETRY, "refused: the gate's answer came too late to start", now)
                return
            self._move(RUNNING)
            self.started_at = now
            # What is left of the lease tells how long ago it was renewed: where the claim was answered late, long ago.
            age_s = max(0.0, self.terms.lease_s - answer.left_s)
            self.ask_at = now + max(0.0, self.terms.renew_interval_s - age_s)
            self.actions.append(Pet(self.deadline))
            self.actions.append(Action(EXEC))
        elif answer.word == REVOKED:
            # Said even if the ledger has ended it: where an earlier gate's answer was lost, the row is STARTED.
            self._report(REVOKED, "cancelled before it started", now)
        else:
            self._done()  # stale: somebody else has it

    def may_exec(self, now: float) -> bool:
        """The last check, right before exec: time has passed since the gate answered."""
        return not self._too_late(now)

    def refused_late(self, *, now: float) -> None:
        """``may_exec`` said no."""
        self._report(RETRY, "refused: too late right before exec", now, from_running=True)

    def _too_late(self, now: float) -> bool:
        return now >= self.deadline - self.terms.kill_grace_s

    # ---- while it runs

    def _timer_running(self, now: float) -> None:
        if self._fences() and now >= self.deadline:
            self.kill_at = float("inf")
            self._note_end(LOST, "the lease deadline had passed when the runner could act again")
            self.actions.append(Action(KILL))
        elif self.phase == RUNNING and now >= self._end_at():
            self._end(LOST, "the lease could not be renewed", now)
        elif self.phase == RUNNING and self.terms.timeout_s and now >= self.started_at + self.terms.timeout_s:
            self._end(FAILURE, f"timeout after {self.terms.timeout_s:g} s", now)
        elif self.phase == ENDING and now >= self.kill_at:
            self.kill_at = float("inf")
            self.actions.append(Action(KILL))
        if self.phase in (RUNNING, ENDING) and not self.renewing and now >= self.ask_at:
            self._ask(ASK_RENEW, now)

    def _renew_answered(self, answer: "Answer | None", sent_at: float, now: float) -> None:
        self.ask_at = max(now, sent_at + (self.terms.renew_interval_s if answer else ASK_AGAIN_S))
        if self.hurried:
            self.ask_at, self.hurried = now, False
        if answer is None:
            return
        if answer.word == LOST:
            if self.phase == RUNNING:
                self._end(LOST, "the ledger has given this attempt up", now)
            return
        self._renewed(sent_at, answer.left_s)
        self.actions.append(Pet(self.deadline))
        if answer.word == CANCEL and self.phase == RUNNING:
            self._end(REVOKED, "cancelled", now)

    def _renewed(self, sent_at: float, left_s: float) -> None:
        """The lease was lent again: never for longer than it lasts, whatever the ledger says."""
        self.deadline = max(self.deadline, lease_deadline(sent_at, min(left_s, self.terms.lease_s)))

    def _fences(self) -> bool:
        """``hold`` jobs are never killed for want of a ledger."""
        return self.terms.on_lost != "hold"

    def _end_at(self) -> float:
        return self.deadline - self.terms.kill_grace_s if self._fences() or self.phase == WAITING else float("inf")

    def _end(self, outcome: str, reason: str, now: float) -> None:
        """TERM now; KILL later, and in any case while the lease still holds."""
        self._move(ENDING)
        self._note_end(outcome, reason)
        self.actions.append(Action(TERM))
        grace_s = self.terms.kill_grace_s * (1 - KILL_PART)
        self.kill_at = now + grace_s
        if self._fences():
            self.kill_at = min(self.kill_at, self.deadline - self.terms.kill_grace_s * KILL_PART)

    def _note_end(self, outcome: str, reason: str) -> None:
        if self.phase == RUNNING:
            self._move(ENDING)
        if not self.ended_by:
            self.ended_by, self.outcome = reason, outcome

    # ---- after it

    def _report(self, state: str, reason: str, now: float, *, from_running: bool = False) -> None:
        assert self.phase != REPORTING or from_running, "an attempt ends once"
        self._move(REPORTING)
        self.outcome, self.reason = state, reason
        self.reported_since = now
        self._ask(ASK_REPORT, now)

    def _ask(self, question: str, now: float) -> None:
        self.renewing = True
        self.asked_at = now
        if self.restoring:
            self.actions.append(AskRestore(RECEIVED if self.phase in (WAITING, GATING) else STARTED))
        elif question == ASK_REPORT:
            self.actions.append(AskReport(self.outcome, self.exit_code, self.reason, self.final))
        else:
            self.actions.append(Action(question))

    def _done(self) -> None:
        self._move(DONE)
        self.actions.append(Action(EXIT))

    def _move(self, phase: str) -> None:
        assert phase in MOVES[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase
