"""One attempt with its own clock, and the ledger's answers."""

from __future__ import annotations

from coordd.core.actions import ASK_RENEW, Action, AskReport, Terms
from coordd.core.attempt import RUNNING, Attempt
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.words import OK, RHO

START = 1000.0
LEASE_S, RENEW_S, TIMEOUT_S, GRACE_S = 60.0, 5.0, 2.0, 10.0
DEADLINE = START + LEASE_S * (1 - 2 * RHO)


class Runner:
    """An attempt, its clock, and its actions."""

    def __init__(self, *, wait_s: float = 0.0, deadline: float = DEADLINE, **terms: object) -> None:
        self.now = START
        held = {"on_lost": "relaunch", **terms}
        self.attempt = Attempt(
            Terms(
                deadline=deadline,
                lease_s=LEASE_S,
                renew_interval_s=RENEW_S,
                ledger_timeout_s=TIMEOUT_S,
                kill_grace_s=GRACE_S,
                **held,  # type: ignore[arg-type]  # typed where the keywords are made
            ),
            wait_s=wait_s,
            now=START,
        )
        self.done: list[Action] = []
        self.asked_at = START
        self.attempt.timer(START)
        self.take()

    def take(self) -> list[object]:
        """The words of the actions since the last call."""
        actions = self.attempt.take_actions()
        self.done += actions
        if any(action.word.startswith("ask") for action in actions):
            self.asked_at = self.now
        return [action.word for action in actions]

    def wait(self, seconds: float) -> list[object]:
        """Let time pass without an answer. Returns all actions."""
        end = self.now + seconds
        words = []
        while (at := self.attempt.timer_at()) <= end:
            self.now = max(self.now, at)
            self.attempt.timer(self.now)
            words += self.take()
        self.now = end
        return words

    def sleep(self, seconds: float) -> list[object]:
        """Stop the process for that time (seconds); then its timer runs."""
        self.now += seconds
        self.attempt.timer(self.now)
        return self.take()

    def answer(self, answer: Answer | None, *, after_s: float = 0.01, question: str = "") -> list[object]:
        """Give the answer to the last request after that number of seconds."""
        self.now = max(self.now, self.asked_at + after_s)
        self.attempt.answered(answer, sent_at=self.asked_at, now=self.now, question=question)
        return self.take()

    def do(self, what: str, *args: object, **more: object) -> list[object]:
        getattr(self.attempt, what)(*args, now=self.now, **more)
        return self.take()

    @property
    def report(self) -> tuple[object, ...]:
        """(state, exit code, reason, final) of the first report."""
        first = next(action for action in self.done if isinstance(action, AskReport))
        return first.state, first.exit_code, first.reason, first.final

    @property
    def words(self) -> list[object]:
        """The words of all actions so far."""
        return [action.word for action in self.done]


def left(seconds: float = LEASE_S, word: str = OK) -> Answer:
    return Answer(word, left_s=seconds)


def running(**terms: object) -> Runner:
    """A runner past the gate, shortly after START."""
    runner = Runner(**terms)  # type: ignore[arg-type]  # typed where the keywords are made
    runner.answer(left())
    assert runner.attempt.phase == RUNNING
    return runner


def renewed(runner: Runner, times: int = 1) -> None:
    for _ in range(times):
        assert ASK_RENEW in runner.wait(RENEW_S)
        runner.answer(left())
