"""Leftovers: open rows that nobody else settles. They are later than their start_within, or have no living holder, and
no node may launch their job.

Only the ledger decides that such a row is over, from the row itself (``settle``); a node only asks. So the node need
not know the job: a node without a new job cannot end its future runs, and the rows of a job that was removed everywhere
still end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container
from functools import partial

from coordd.core.context import Context
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenRun
from coordd.core.ledger.requests import Settle, Watched
from coordd.core.ledger.words import RECEIVED, RHO, STARTED, UNKNOWN
from coordd.core.ready import Now
from coordd.core.runs.endings import Endings
from coordd.core.runs.lease_watch import LeaseWatch, watched_on
from coordd.core.wire.events import Action

# Maximum number of open questions: after a long absence of the ledger there may be thousands of rows.
AT_A_TIME = 32

# Maximum number of watched holders; others follow as these are settled.
WATCHED_MAX = 10_000

# A lapsed lease is watched this many times longer than by nodes that may launch the job: they take the run over, we
# could only settle it.
PATIENCE = 2.0


class Leftovers:
    """The leftovers that one node sees."""

    __slots__ = ("_ctx", "_endings", "_watched", "asked", "late_at")

    def __init__(self, ctx: Context, endings: Endings) -> None:
        self._ctx = ctx
        self._endings = endings
        self._watched: dict[str, LeaseWatch | None] = {}  # run -> the watch of its holder; None: it begins again
        self.asked: set[str] = set()  # runs of which the ledger has not answered yet
        self.late_at = math.inf  # when the first row will be overdue (mono), of those that were seen since a whole pass

    @property
    def watched(self) -> Collection[str]:
        """The runs whose holders are watched."""
        return self._watched.keys()

    def begins(self) -> None:
        """A pass over all open rows begins."""
        self.late_at = math.inf

    def row_seen(self, row: OpenRun, now: Now) -> None:
        """An open row, from a sweep."""
        self.late_at = min(self.late_at, now.mono + max(0.0, row.late_in_s))
        if row.overdue:
            self._ask(row, None)
        elif row.state not in (RECEIVED, STARTED) or not row.token:
            self._watched.pop(row.run, None)
        else:
            self._watch(row, now)

    def swept(self, gone: Container[str]) -> None:
        """The sweep has shown that these have no open row."""
        for run in [run for run in self._watched if run in gone]:
            del self._watched[run]

    def unswept(self) -> None:
        """The ledger did not answer: earlier watching proves nothing any more. The rows are asked for by name again."""
        self._watched = dict.fromkeys(self._watched)

    def _answered(self, row: OpenRun, answer: Answer, _sent_at: float, now: Now) -> None:
        """The ledger's answer about a row; if it has ended the row, publish that for the history."""
        self.asked.discard(row.run)
        if answer.ended is not None:
            action = Action(row.job, row.run, row.attempt, row.fire_at, bool(row.scheduled), row.digest, row.args)
            self._endings.tell(action, answer, now)
        elif row.state == STARTED and answer.state == UNKNOWN:  # by this question: a sweep had seen it running
            self._ctx.note("run.unknown", run=row.run, job=row.job, node=answer.by)

    def _watch(self, row: OpenRun, now: Now) -> None:
        if row.run not in self._watched and len(self._watched) >= WATCHED_MAX:
            return
        known = self._watched.get(row.run)
        watch = watched_on(known, row.token, row.beat, row.lease, self._ctx.settings, now.mono)
        self._watched[row.run] = watch
        seconds = now.mono - watch.since
        if row.left_s <= 0 and seconds >= PATIENCE * row.lease * (1 + 2 * RHO):
            self._ask(row, watch.watched(now.mono))

    def _ask(self, row: OpenRun, watched: Watched | None) -> None:
        if len(self.asked) < AT_A_TIME and row.run not in self.asked:
            self.asked.add(row.run)
            settle = Settle(run=row.run, attempt=row.attempt, watched=watched)
            self._ctx.ask(settle, partial(self._answered, row))
