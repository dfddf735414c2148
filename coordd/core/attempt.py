"""The runner's decisions: hold one lease, start one program, end it when the lease is gone.

A sans-I/O machine: answers, exits and the time go in; actions come out, in the order of execution. The process around
it (coordd/runner) only executes them; the simulator runs this very class. Instants are seconds on the runner's own
CLOCK_BOOTTIME, except fire times, which only the ledger's gate judges.

    WAITING -> GATING -> READY -> RUNNING -> ENDING -> REPORTING -> DONE

The lease deadline is the instant at which the answered *request* was sent, plus the seconds left according to the
ledger, minus the clock-rate error of both sides. Counted from the answer, it would be too late by the round trip.

The gate is asked just ahead of the fire time. Its answer says what is left until then, and READY waits for that, plus
the clock-rate error. This is counted from the *receipt* of the answer: from the request, it would be too early.

Like rows.py this file is loaded before a job starts, so it imports no library.
"""

from coordd.core.actions import (
    ASK_GATE,
    ASK_RENEW,
    ASK_REPORT,
    ASK_RESTORE,
    EXIT,
    KILL,
    TERM,
    Action,
    AskGate,
    AskReport,
    AskRestore,
    Exec,
    Pet,
    Terms,
)
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.words import (
    CANCEL,
    EARLY,
    FAILURE,
    GATE_AHEAD_S,
    HAS_MATCHED,
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
    TIMED_OUT,
)

WAITING = "waiting"
GATING = "gating"
READY = "ready"  # the gate is open ahead of the fire time
RUNNING = "running"
ENDING = "ending"
REPORTING = "reporting"
DONE = "done"

MOVES: "dict[str, frozenset[str]]" = {
    WAITING: frozenset((GATING, REPORTING, DONE)),
    GATING: frozenset((WAITING, READY, RUNNING, REPORTING, DONE)),
    READY: frozenset((RUNNING, REPORTING, DONE)),
    RUNNING: frozenset((ENDING, REPORTING)),
    ENDING: frozenset((REPORTING,)),
    REPORTING: frozenset((DONE,)),
    DONE: frozenset(),
}

# The request of each phase.
QUESTIONS: "dict[str, str]" = {
    WAITING: ASK_RENEW,
    GATING: ASK_GATE,
    RUNNING: ASK_RENEW,
    ENDING: ASK_RENEW,
    REPORTING: ASK_REPORT,
}

# The last part of the kill grace is for SIGKILL, and the very last for the watcher, in case the runner is stopped.
KILL_PART = 0.3
WATCHER_PART = 0.2

# Minimum retry interval (seconds) after a request without an answer, counted from its start. A request that ran into
# the ledger's timeout is repeated at once, because every second counts then.
ASK_AGAIN_S = 0.2

# A gate that is early is asked again after at most this time (seconds): a person may resume a job, or end a quarantine.
EARLY_MAX_S = 10.0

# The gate is asked ahead of the fire time by LEAD_S (seconds), and by TRIPS times the longest of the last trips. A
# longer wait is less precise: the clock-rate error grows with it. Until a trip is measured, FIRST_TRIP_S is used.
LEAD_S = 0.005
TRIPS = 1.25
FIRST_TRIP_S = 0.005

# The program is told to start this long (seconds) before its instant, and waits for the rest: to wake a process takes
# time, on a busy machine milliseconds.
HEAD_START_S = 0.003

# A waiting runner renews once after this time (seconds): then connection, files and pages are ready for the gate.
WARM_UP_S = 0.05

# Why nothing was started although the gate was open.
TOO_LATE = "too late right before exec"

# No renewal begins this shortly (seconds) before the fire time: its answer would delay the gate.
QUIET_S = 0.5

# A report that the ledger does not accept is repeated for this time (seconds); then the daemon continues from the
# runner's files.
REPORT_LIMIT_S = 600.0


def lease_deadline(sent_at: float, left_s: float) -> float:
    """The instant after which the lease must not be trusted, counted from when the request was SENT."""
    return sent_at + left_s * (1 - 2 * RHO)


def exec_at(received_at: float, in_s: float) -> float:
    """The instant at which that time until the fire time is over, counted from when the answer was RECEIVED."""
    return received_at + in_s * (1 + 2 * RHO)


def watcher_kill_at(deadline: float, kill_grace_s: float) -> float:
    """When the watcher kills everything, unless the deadline has moved meanwhile."""
    return deadline - kill_grace_s * WATCHER_PART


class Attempt:
    """One attempt, as its runner sees it."""

    __slots__ = (
        "actions",
        "ahead_s",
        "ask_at",
        "asked_at",
        "deadline",
        "due_at",
        "ended_by",
        "exec_at",
        "exit_code",
        "final",
        "hurried",
        "kill_at",
        "not_before",
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
        "trip_s",
    )

    def __init__(self, terms: Terms, *, wait_s: float, now: float) -> None:
        """Start waiting for the fire time, ``wait_s`` seconds from now."""
        self.terms = terms
        self.phase = WAITING
        self.deadline = terms.deadline
        # Not before the node's own clock shows the fire time, either: programs look at it.
        self.not_before = now + max(0.0, wait_s)
        self.due_at = self.not_before  # the fire time, as far as is known
        self.trip_s = FIRST_TRIP_S  # the longest of the last round trips
        self.ahead_s = 0.0  # how far ahead of the fire time the last gate could be answered
        self.exec_at = 0.0  # from READY on: when the program may be executed
        self.ask_at = 0.0  # the next gate, renew or report
        self._aim()
        # for renewals while it waits for the gate; soon, because the first call is the slow one
        self.renew_at = now + WARM_UP_S
        self.asked_at = 0.0
        self.renewing = False  # a request is open
        self.hurried = False  # there was news while a renewal was open
        self.kill_at = float("inf")
        self.started_at = 0.0
        self.exit_code: int | None = None
        self.ended_by = ""  # why we ended it; "" if it ended by itself
        self.outcome = ""
        self.reason = ""
        self.final = False
        self.reported_since = 0.0
        self.restoring = False  # the next request restores the grant
        self.recovering_until = 0.0  # until then the ledger may go back again and forget
        self.actions: list[Action] = []

    # ---- inputs

    def timer(self, now: float) -> None:
        """Do everything that is due."""
        if self.renewing and now >= self.asked_at + self.terms.ledger_timeout_s:
            self.renewing = False  # no answer in time: ask again, which is safe
            if self.phase == WAITING:
                self.renew_at = now
            else:
                self.ask_at = now
        if self.phase in (WAITING, GATING, READY):
            self._timer_before(now)
        elif self.phase in (RUNNING, ENDING):
            self._timer_running(now)
        elif self.phase == REPORTING and now >= self.ask_at and not self.renewing:
            if now - self.reported_since > REPORT_LIMIT_S:
                self._done()
            else:
                self._ask(ASK_REPORT, now)

    def timer_at(self) -> float:
        """When ``timer`` must be called next."""
        if self.phase == DONE:
            return float("inf")
        at = self.asked_at + self.terms.ledger_timeout_s if self.renewing else self.ask_at
        if self.phase == WAITING:
            if not self.renewing and self.ask_at - self.renew_at > QUIET_S:
                at = min(at, self.renew_at)
            return min(at, self._end_at())
        if self.phase == READY:
            return min(self.exec_at - HEAD_START_S, self._end_at())
        if self.phase == RUNNING:
            at = min(at, self._end_at())
            if self.terms.timeout_s:
                at = min(at, self.started_at + self.terms.timeout_s)
        elif self.phase == ENDING:
            at = min(at, self.kill_at)
        return at

    def answered(self, answer: "Answer | None", *, sent_at: float, now: float, question: str = "") -> None:
        """An answer; None without one in time.

        ``question`` is the answered request. An answer to another request than this phase's is late (a renewal that was
        open when the program ended) and is ignored: it must not count as the report's. There is one exception: before
        the start, a late answer "cancelled" or "lost" counts, and nothing is executed.
        """
        if question == ASK_RESTORE:
            if self.restoring:
                self._restored(answer, sent_at, now)
            return
        if question and question != QUESTIONS.get(self.phase):
            if answer is not None and answer.word == RECOVERING:
                self._told_of_quarantine(answer, now)
            elif answer is not None and self.phase in (GATING, READY):  # a request that was given up
                if answer.word in (CANCEL, REVOKED):
                    self._report(REVOKED, "cancelled before it started", now)
                elif answer.word in (LOST, STALE):
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

    def exec_failed(self, reason: str, exit_code: int, *, now: float) -> None:
        """The program could not be executed at all. ``exit_code``: as a shell has it, 127 for an absent one, or 126."""
        self.exit_code = exit_code
        self._report(FAILURE, reason, now)

    def ended(self, exit_code: int, *, now: float, final: bool = False, trips: bool = False, detail: str = "") -> None:
        """The program has exited and no process of its tree is left. A negative code: ended by that signal.

        ``final``: its output says that a retry is useless. ``trips``: its output matches a pattern of the job's
        breaker. ``detail``: the line of the output that explains the failure.
        """
        self.exit_code = exit_code
        if self.ended_by:
            state, reason = self.outcome, self.ended_by
        elif exit_code == 0:
            state, reason = SUCCESS, ""
        else:
            state = FAILURE
            reason = f"ended by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
            if trips:
                reason += HAS_MATCHED
            if detail:
                reason += f": {detail}"  # after a colon: viewers do not see it
            self.final = final or exit_code in self.terms.final_exit_codes
        self._report(state, reason, now)

    def hurry(self, *, now: float) -> None:
        """There is news for the ledger: renew now."""
        if self.phase == RUNNING:
            self.ask_at = now
            self.hurried = self.renewing

    def cancel(self, reason: str, *, now: float) -> None:
        """A person, the ledger or a newer run wants it to end."""
        if self.phase in (WAITING, GATING, READY):
            self._report(REVOKED, reason, now)
        elif self.phase == RUNNING:
            self._end(REVOKED, reason, now)

    def shut_down(self, reason: str, *, now: float) -> None:
        """The machine shuts down: end it and report at once, so that another node need not wait."""
        if self.phase in (WAITING, GATING, READY):
            self._report(RETRY, reason, now)
        elif self.phase == RUNNING:
            self._end(LOST, reason, now)

    def take_actions(self) -> list[Action]:
        """The actions to execute now, in this order."""
        actions, self.actions = self.actions, []
        return actions

    # ---- a ledger that went back

    def _forgotten(self, answer: Answer, now: float) -> None:
        """The ledger does not know this grant, and waits for witnesses: restore it, then ask again."""
        self.restoring = True
        self._told_of_quarantine(answer, now)
        if self.phase == GATING:
            self._move(WAITING)
        if self.phase == WAITING:
            self.renew_at = now
            self.due_at = max(self.due_at, now + ASK_AGAIN_S)
            self.ask_at = max(self.ask_at, now + ASK_AGAIN_S)
        else:
            self.ask_at = now

    def _told_of_quarantine(self, answer: Answer, now: float) -> None:
        self.recovering_until = now + max(answer.left_s, answer.in_s)

    def _restored(self, answer: "Answer | None", sent_at: float, now: float) -> None:
        """The grant is restored, or the ledger knows better: the repeated request will tell."""
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
            # The gate may have opened or not; nothing was started, and we report that.
            self._report(RETRY, "refused: the lease was too near its end to start", now)
        elif self.phase == READY:
            if now >= self.exec_at - HEAD_START_S:
                self._start(now)
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
        """While the gate is far away, the lease is renewed: claims are made early, and clocks differ."""
        if answer is None:
            self.renew_at = max(now, sent_at + ASK_AGAIN_S)
            return
        self._measure(now - sent_at)
        self._aim()
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
            return
        self._measure(now - sent_at)
        if answer.word == EARLY or (answer.word == OK and not answer.in_s <= GATE_AHEAD_S):
            # Our wall clock is ahead of the ledger's. Or its own was set back since, or the answer is damaged.
            self._move(WAITING)
            in_s = min(EARLY_MAX_S, answer.in_s)
            self.due_at = now + in_s
            self.renew_at = now
            self._aim()
            if in_s <= self.ahead_s:
                self.ask_at = self.due_at  # an older version's ledger opens no gate ahead of the time
        elif answer.word == OK:
            # The gate does not extend the lease: the rest in its answer could only come from a clock that may have been
            # set back.
            if self._too_late(now):
                self._report(RETRY, "refused: the gate's answer came too late to start", now)
                return
            # The seconds left tell how long ago the lease was renewed: long ago if the claim's answer was late.
            age_s = max(0.0, self.terms.lease_s - answer.left_s)
            self.ask_at = now + max(0.0, self.terms.renew_interval_s - age_s)
            self.exec_at = max(self.not_before, exec_at(now, max(0.0, answer.in_s)))
            if self.exec_at > now:
                self._move(READY)
            else:
                self._start(now)
        elif answer.word == REVOKED:
            # Reported even if the ledger has ended it: if an earlier answer of the gate was lost, the row is STARTED.
            self._report(REVOKED, "cancelled before it started", now)
        else:
            self._done()  # stale: another holder has it

    def _start(self, now: float) -> None:
        self._move(RUNNING)
        self.started_at = max(now, self.exec_at)
        self.actions.append(Pet(self.deadline))
        self.actions.append(Exec(self.started_at))

    def _measure(self, trip_s: float) -> None:
        self.trip_s = max(trip_s, self.trip_s / 2)

    def _lead_s(self) -> float:
        return min(GATE_AHEAD_S, LEAD_S + TRIPS * self.trip_s)

    def _aim(self) -> None:
        """Ask the gate so early that its answer is here at the fire time."""
        self.ask_at = self.due_at - self._lead_s()

    def may_exec(self, now: float) -> bool:
        """The last check, right before exec: time has passed since the gate's answer."""
        return not self._too_late(now)

    def refused_late(self, *, now: float, reason: str = TOO_LATE) -> None:
        """``may_exec`` returned False, its process died, or it was to end meanwhile: nothing was started."""
        if self.outcome == REVOKED:
            self._report(REVOKED, self.ended_by, now, from_running=True)
        else:
            self._report(RETRY, f"refused: {reason}", now, from_running=True)

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
            self._end(FAILURE, f"{TIMED_OUT}{self.terms.timeout_s:g} s", now)
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
        """The lease was extended: never for longer than its length, whatever the ledger says."""
        self.deadline = max(self.deadline, lease_deadline(sent_at, min(left_s, self.terms.lease_s)))

    def _fences(self) -> bool:
        """``hold`` jobs are never killed because the ledger is away."""
        return self.terms.on_lost != "hold"

    def _end_at(self) -> float:
        ends = self._fences() or self.phase in (WAITING, READY)
        return self.deadline - self.terms.kill_grace_s if ends else float("inf")

    def _end(self, outcome: str, reason: str, now: float) -> None:
        """TERM now; KILL later, and in any case before the lease ends."""
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
            never_ran = self.phase in (WAITING, GATING) or self.outcome == RETRY
            self.actions.append(AskRestore(RECEIVED if never_ran else STARTED))
        elif question == ASK_GATE:
            self.ahead_s = min(GATE_AHEAD_S, 2 * self._lead_s())
            self.actions.append(AskGate(self.ahead_s))
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
