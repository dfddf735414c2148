"""Testimonies: what a node tells the ledger at its start about attempts of its earlier daemons that left no runner.

The shell knows that such an attempt is over (knowledge.py), or finds its end in the journal. The ledger compares token
and nonce, so a node can end only an attempt that it was granted. The question is repeated until it is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from coordd.core.context import Context
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.runner_requests import Report
from coordd.core.ledger.words import LOST, OK, RECOVERING, UNAVAILABLE
from coordd.core.ready import Launch, Now
from coordd.core.runs.endings import Endings
from coordd.core.wire.events import Task

# The ledger has taken it: (the attempt, why it is over, now).
Taken = Callable[[Launch, str, Now], None]


class _Testimony(NamedTuple):
    """``launch``: to be published once the ledger has it; None if the journal has its end already."""

    report: Report
    launch: Launch | None


class Testimonies:
    """Those that the ledger does not have yet."""

    __slots__ = ("_asked", "_ctx", "_endings", "_taken", "_told", "waiting")

    def __init__(self, ctx: Context, endings: Endings, taken: Taken) -> None:
        self._ctx = ctx
        self._endings = endings
        self._taken = taken
        self.waiting: dict[str, _Testimony] = {}  # by a name that the shell gives
        self._asked: set[str] = set()  # the ledger has not answered yet
        self._told: set[str] = set()  # published

    def over(self, name: str, launch: Launch, reason: str, _now: Now) -> None:
        """That attempt is certainly over, and nobody knows how it ended."""
        self._give(name, Report(grant=launch.grant, state=LOST, reason=reason), launch)

    def ended(self, name: str, event: Task, _now: Now) -> None:
        """The journal has the end of that attempt; the ledger may not have it."""
        self._give(name, self._endings.report_of(event), None)

    def again(self, _now: Now) -> None:
        """Ask again what had no answer."""
        for name in sorted(self.waiting.keys() - self._asked):
            self._ask(name)

    def _give(self, name: str, report: Report, launch: Launch | None) -> None:
        self.waiting[name] = _Testimony(report, launch)
        self._ask(name)

    def _ask(self, name: str) -> None:
        self._asked.add(name)
        self._ctx.ask(self.waiting[name].report, partial(self._answered, name))

    def _answered(self, name: str, answer: Answer, _sent_at: float, now: Now) -> None:
        self._asked.discard(name)
        if answer.word in (UNAVAILABLE, RECOVERING):
            return
        report, launch = self.waiting[name]
        if answer.word == OK and launch is not None and name not in self._told:
            self._told.add(name)
            self._taken(launch, report.reason, now)
        if answer.word == OK and answer.left_s > 0.0:
            return  # in quarantine: the ledger may go back once more
        del self.waiting[name]
