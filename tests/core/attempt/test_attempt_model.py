"""The life of one attempt under any sequence of inputs. The runner never breaks its rules, and always ends.

The oracle keeps its own record: when each request was sent, the ledger's answers, and whether the program is alive. It
derives the lease and the permitted actions from this record alone, and not from the attempt's phases.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.search import examples

from coordd.core.actions import (
    ASK_GATE,
    ASK_RENEW,
    ASK_REPORT,
    ASK_RESTORE,
    EXIT,
    KILL,
    TERM,
    AskReport,
    Exec,
    Pet,
    Terms,
)
from coordd.core.attempt import HEAD_START_S, REPORT_LIMIT_S, Attempt
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.words import CANCEL, EARLY, GATE_AHEAD_S, LOST, OK, RECOVERING, REVOKED, RHO, STALE

LEASE_S, RENEW_S, TIMEOUT_S, GRACE_S = 60.0, 5.0, 2.0, 10.0
QUESTIONS = (ASK_GATE, ASK_RENEW, ASK_REPORT, ASK_RESTORE)

# The possible answers to each request.
SAYS = {
    ASK_GATE: (OK, OK, EARLY, STALE, REVOKED, RECOVERING),
    ASK_RENEW: (OK, OK, OK, CANCEL, LOST, RECOVERING),
    ASK_REPORT: (OK, STALE, RECOVERING),
    ASK_RESTORE: (OK, STALE),
}

# The longest time until an attempt ends after the last input. By then the runner has given up its report.
END_S = REPORT_LIMIT_S + 10 * LEASE_S


class AttemptMachine(RuleBasedStateMachine):
    """One runner that obeys its attempt. ``now`` is its CLOCK_BOOTTIME."""

    @initialize(
        wait_s=st.sampled_from((0.0, 0.0, 1.0, 20.0, 90.0)),
        hold=st.booleans(),
        timeout_s=st.sampled_from((0.0, 30.0)),
        forsaken=st.sampled_from((False, False, False, True)),
    )
    def begin(self, wait_s: float, hold: bool, timeout_s: float, forsaken: bool) -> None:
        self.forsaken = forsaken
        self.now = 1000.0
        self.hold = hold
        self.deadline = self.now + LEASE_S
        terms = Terms(
            deadline=self.deadline,
            lease_s=LEASE_S,
            renew_interval_s=RENEW_S,
            ledger_timeout_s=TIMEOUT_S,
            kill_grace_s=GRACE_S,
            on_lost="hold" if hold else "relaunch",
            timeout_s=timeout_s,
        )
        self.attempt = Attempt(terms, wait_s=wait_s, now=self.now)
        self.timeout_s = timeout_s
        self.started_at: float | None = None
        self.due_at: float | None = None  # the earliest instant of the fire time that an answer of the gate has told
        self.alive = False
        self.term_at: float | None = None
        self.killed = False
        self.wanted = False  # a person or the ledger has asked for the end of the attempt
        self.asked: list[tuple[str, float]] = []  # requests without an answer, and when they were sent
        self.reported: Any = None  # what was reported about the end
        self.report_taken = False
        self.recovering_until = 0.0
        self.silenced = False  # before the launch the ledger has said that another node has the grant
        # the ledger has said that it does not know the grant; the runner must restore the grant first
        self.forgotten = False
        self.exited = False

    # ---- the process around it

    def obey(self) -> None:
        """Perform the requested actions in their order."""
        for action in self.attempt.take_actions():
            word = action.word
            assert not self.exited, f"{word} after its exit"
            if word in QUESTIONS:
                self.asked.append((word, self.now))
            if isinstance(action, AskReport):
                assert not self.alive, "an end is reported while the program lives"
                told = (action.state, action.exit_code, action.reason, action.final)
                assert self.reported in (None, told), "the end is told in two ways"
                self.reported = told
            elif isinstance(action, Pet):
                assert action.deadline == self.deadline, "the watcher counts on another lease"
            elif isinstance(action, Exec):
                self.execute(action.at)
            elif word == TERM:
                self.told_to_end()
            elif word == KILL:
                self.killed_now()
            elif word == EXIT:
                assert not self.alive, "it leaves a program behind"
                self.exited = True

    def execute(self, at: float) -> None:
        assert self.due_at is not None, "exec without leave"
        assert at >= self.due_at, "exec before the fire time"
        assert self.now <= at <= self.now + HEAD_START_S, "exec at another time"
        assert self.started_at is None, "S1: exec a second time"
        assert self.now < self.deadline - GRACE_S, "exec at the end of the lease"
        assert not self.wanted, "exec of what was cancelled"
        self.started_at = self.now
        self.alive = True

    def told_to_end(self) -> None:
        assert self.alive
        assert self.term_at is None, "TERM a second time"
        assert not self.killed
        assert self.hold or self.now < self.deadline, "past the deadline there is no time for TERM"
        self.term_at = self.now
        self.may_end()

    def killed_now(self) -> None:
        past = self.now >= self.deadline and not self.hold
        assert self.alive
        assert past or self.term_at is not None, "KILL without TERM before it, and in time"
        if not past:
            assert self.term_at is not None
            assert self.now > self.term_at, "TERM is given a while"
        self.killed = True
        self.may_end()

    def may_end(self) -> None:
        """A program is ended only for a reason. With ``hold``, an absent ledger is not a reason."""
        assert self.started_at is not None
        late = bool(self.timeout_s) and self.now >= self.started_at + self.timeout_s
        no_lease = not self.hold and self.now >= self.deadline - GRACE_S
        assert self.wanted or late or no_lease or self.term_at not in (None, self.now), "ended for no reason"

    def wake(self) -> None:
        self.attempt.timer(self.now)
        self.obey()
        if not self.exited:
            assert self.attempt.timer_at() > self.now, "woken again without anything to do"

    # ---- possible inputs

    @rule(seconds=st.sampled_from((0.1, 1.0, 3.0, 9.0)))
    def time_passes_and_it_wakes_when_it_wants_to(self, seconds: float) -> None:
        until = self.now + seconds
        while (at := self.attempt.timer_at()) <= until:
            self.now = max(self.now, at)
            self.wake()
        self.now = until

    @rule(seconds=st.sampled_from((0.5, 4.0, 20.0)))
    def all_goes_well_for_a_while(self, seconds: float) -> None:
        """So that the search often gets past a launch."""
        self.wake()
        until = self.now + seconds
        while not self.exited and (at := self.attempt.timer_at()) <= until and not self.reported:
            while self.asked:
                self.hear(len(self.asked) - 1, OK)
            self.now = max(self.now, at)
            self.wake()

    @rule(seconds=st.sampled_from((1.0, 15.0, 50.0, 70.0)), answer_first=st.booleans())
    def the_machine_is_frozen(self, seconds: float, answer_first: bool) -> None:
        """After a freeze the runner sees an answer first, or its timer."""
        self.now += seconds
        if answer_first and self.asked and not self.exited:
            self.hear(len(self.asked) - 1, OK)
        self.wake()

    @precondition(lambda self: self.asked and not self.exited)
    @rule(data=st.data())
    def the_ledger_answers(self, data: st.DataObject) -> None:
        """The answer to any open request, also to a request that was given up long ago."""
        index = data.draw(st.integers(0, len(self.asked) - 1))
        word = data.draw(st.sampled_from(SAYS[self.asked[index][0]]))
        # How far ahead of the fire time the gate opens. More than it may is a damaged answer.
        in_s = data.draw(st.sampled_from((0.0, 0.0, 0.004, GATE_AHEAD_S, 0.3, 1e9)))
        self.hear(index, word, in_quarantine=data.draw(st.booleans()), in_s=in_s)

    def hear(self, index: int, word: str, *, in_quarantine: bool = False, in_s: float = 0.0) -> None:
        question, sent_at = self.asked.pop(index)
        left_s = LEASE_S if word in (OK, CANCEL) else 30.0
        if question == ASK_GATE and word == OK and in_s <= GATE_AHEAD_S:
            due_at = self.now + in_s * (1 + 2 * RHO)
            self.due_at = due_at if self.due_at is None else min(self.due_at, due_at)
        if question == ASK_REPORT and word == OK and not in_quarantine:
            left_s = 0.0
        deadline = self.attempt.deadline
        if (question, word) != (ASK_GATE, OK):
            in_s = 1.0 if word == EARLY else left_s
        answer = Answer(word, left_s=left_s, in_s=in_s)
        self.attempt.answered(answer, question=question, sent_at=sent_at, now=self.now)
        if self.attempt.deadline != deadline:
            assert word in (OK, CANCEL), "a lease of nothing"
            assert question in (ASK_GATE, ASK_RENEW), "only the ledger's grant of time is one"
            assert self.attempt.deadline == max(self.deadline, sent_at + left_s * (1 - 2 * RHO))
            self.deadline = self.attempt.deadline
        if question == ASK_RENEW and word in (CANCEL, LOST):
            self.wanted = True
        if word == RECOVERING:
            self.recovering_until = self.now + left_s
            self.forgotten = True
        if question == ASK_REPORT and word in (OK, STALE):
            if word == OK:
                self.recovering_until = max(self.recovering_until, self.now + left_s)
            self.report_taken = word == STALE or self.now >= self.recovering_until
        if (question, word) == (ASK_GATE, REVOKED):
            self.wanted = True
        if (question, word) in {(ASK_GATE, STALE), (ASK_RENEW, LOST)}:
            self.silenced = True
        self.obey()

    @precondition(lambda self: self.asked and not self.exited)
    @rule()
    def no_answer_comes(self) -> None:
        question, sent_at = self.asked.pop()
        self.attempt.answered(None, question=question, sent_at=sent_at, now=self.now)
        self.obey()

    @precondition(lambda self: self.started_at is not None or self.now > 1010.0)
    @rule(word=st.sampled_from(("cancel", "shut_down")))
    def somebody_wants_its_end(self, word: str) -> None:
        getattr(self.attempt, word)("somebody", now=self.now)
        self.wanted = True
        self.obey()

    @rule()
    def there_is_news(self) -> None:
        self.attempt.hurry(now=self.now)
        self.wake()

    @precondition(lambda self: self.alive)
    @rule(code=st.sampled_from((0, 1, -9)))
    def the_program_ends(self, code: int) -> None:
        self.alive = False
        self.attempt.ended(code, now=self.now)
        self.obey()

    # ---- invariants

    @invariant()
    def nothing_lives_past_its_deadline(self) -> None:
        """A freeze may make the runner late. As soon as it acts again, it ends everything."""
        if self.alive and not self.hold and self.now >= self.deadline - GRACE_S:
            self.wake()
            assert self.killed or (self.term_at is not None and self.now < self.deadline), "no TERM in time"

    @invariant()
    def it_goes_only_when_it_may(self) -> None:
        if not self.exited:
            return
        given_up = 0.0 < self.attempt.reported_since < self.now - REPORT_LIMIT_S
        if self.reported is not None:
            assert self.report_taken or given_up, "it left and its report was not taken"
        elif not (
            self.forgotten and given_up
        ):  # otherwise it had to restore the grant first, and got no answer to that request
            assert self.started_at is None, "it left and never told the end"
            assert self.silenced, "it left, and the grant was still its own"

    def teardown(self) -> None:
        """If the ledger accepts the report, or if there is no ledger, the runner ends in bounded time."""
        if not hasattr(self, "attempt"):
            return
        end_at = self.now + END_S
        while not self.exited:
            if self.alive and (self.killed or self.term_at is not None or self.hold):
                self.finish_program()
            assert self.now < end_at, "it never ends"
            self.now = max(self.now, self.attempt.timer_at())
            self.wake()
            if not self.forsaken and self.asked and not self.exited:
                self.hear(len(self.asked) - 1, CANCEL if self.asked[-1][0] == ASK_RENEW else OK)
        self.it_goes_only_when_it_may()

    def finish_program(self) -> None:
        self.alive = False
        self.attempt.ended(-9 if self.killed else 0, now=self.now)
        self.obey()


AttemptMachine.TestCase.settings = examples(200, steps=40)
TestAttempt = AttemptMachine.TestCase
