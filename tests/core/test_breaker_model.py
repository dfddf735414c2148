"""The circuit breaker, compared with a simple one that remembers every outcome."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.search import examples

from coordd.core.breaker import (
    CLOSED,
    COOL_DOWN_MAX_S,
    COOL_DOWN_MIN_S,
    FAILURE_RATE_MAX,
    FAILURES,
    HALF_OPEN,
    OPEN,
    PROBE_LIMIT_S,
    WINDOW,
    Breaker,
    Rule,
)

FAILURES_MAX = 5


class BreakerMachine(RuleBasedStateMachine):
    """The simple breaker: a list of all outcomes since it last closed, and the permits that still count."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker("ledger", Rule(((FAILURES_MAX, FAILURES),)))
        self.now = 0.0
        self.state = CLOSED
        self.outcomes: list[bool] = []
        self.trips = 0  # opened that number of times since it last closed
        self.open_until = 0.0
        self.probe_at = 0.0
        self.permits: list[tuple[int, int]] = []  # every permit ever given, and the era in which it was given
        self.era = 0  # changes with each state and with each probe

    def close(self) -> None:
        self.state, self.outcomes, self.trips = CLOSED, [], 0
        self.era += 1

    @rule(seconds=st.sampled_from((0.1, 0.6, 3.0, 31.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def ask(self) -> None:
        if self.state == OPEN and self.now >= self.open_until:
            self.state = HALF_OPEN
            self.probe_at = -PROBE_LIMIT_S
            self.era += 1
        allowed = self.state == CLOSED or (self.state == HALF_OPEN and self.now >= self.probe_at + PROBE_LIMIT_S)
        permit = self.breaker.allow(self.now)
        assert bool(permit) == allowed
        if permit and self.state == HALF_OPEN:
            self.probe_at = self.now
            self.era += 1
        if permit:
            assert all(era == self.era for given, era in self.permits if given == permit), "a permit comes back"
            self.permits.append((permit, self.era))

    @precondition(lambda self: self.permits)
    @rule(data=st.data(), works=st.sampled_from((False, False, True)), jitter=st.floats(0, 1))
    def an_outcome_is_told(self, data: st.DataObject, works: bool, jitter: float) -> None:
        """Report the outcome of any permit: early or late, and perhaps twice."""
        permit, era = data.draw(st.sampled_from([*self.permits, *self.permits[-1:] * 9]))
        self.tell(permit, era, works, jitter)

    @precondition(lambda self: self.state == CLOSED)
    @rule(outcomes=st.lists(st.sampled_from((True, False, False)), min_size=WINDOW // 2, max_size=WINDOW))
    def it_is_used_for_a_while(self, outcomes: list[bool]) -> None:
        for works in outcomes:
            self.ask()
            self.tell(*self.permits[-1], works, 1.0)
            if self.state != CLOSED:
                return

    def tell(self, permit: int, era: int, works: bool, jitter: float) -> None:
        if works:
            self.breaker.succeeded(permit, self.now)
        else:
            self.breaker.failed(permit, "no answer", self.now, jitter)
        if era != self.era or self.state == OPEN:
            return  # the permit belongs to an earlier state
        self.outcomes.append(works)
        last = self.outcomes[-WINDOW:]
        in_a_row = self.outcomes[-FAILURES_MAX:] == [False] * FAILURES_MAX
        too_often = len(last) == WINDOW and last.count(False) / WINDOW > FAILURE_RATE_MAX
        if works and self.state == HALF_OPEN:
            self.close()
        elif not works and (self.state == HALF_OPEN or in_a_row or too_often):
            cool_down_s = min(COOL_DOWN_MIN_S * 2**self.trips, COOL_DOWN_MAX_S)
            self.open_until = self.now + cool_down_s * (0.5 + 0.5 * jitter)
            self.trips += 1
            self.state = OPEN
            self.era += 1

    @rule()
    def a_person_resets_it(self) -> None:
        self.breaker.reset(self.now)
        self.close()

    @invariant()
    def both_say_the_same(self) -> None:
        assert (self.breaker.state, self.breaker.is_open) == (self.state, self.state != CLOSED)
        wait_s = max(0.0, self.open_until - self.now) if self.state == OPEN else 0.0
        assert self.breaker.retry_in_s(self.now) == wait_s


BreakerMachine.TestCase.settings = examples(100, steps=40)
TestBreaker = BreakerMachine.TestCase
