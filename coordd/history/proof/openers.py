"""Did a run begin with attempt 1, because a backfill or a re-run of its parent opened it? Pure.

No event says who opened a run. So the audit of the acts is asked, and the lines that name the run's attempt 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from typing import Any

from coordd.core.groups.expand import group_of
from coordd.core.jobs.job import job_of
from coordd.core.names import host_of
from coordd.history.proof.acts import BACKFILL, NONE, REFUSED, REPEATS, Backfill, backfill, followers

ELECTED = "election-decided"
REJECTED, SENT = "task-rejected", "task-sent"

NO, PERHAPS, YES = range(3)
PERHAPS_FIRST = (
    "attempt 0 may never have been: a backfill, or a parent's re-run, opens a run without a row with attempt 1"
)

# Maximum delay (seconds) of an act's record after the grant, by another node, of what it opened.
LATE_S = 5.0


class Openers:
    """What people asked for that opens runs, and which runs had an attempt 0."""

    def __init__(self) -> None:
        self._plans: dict[str, list[tuple[float, Backfill]]] = defaultdict(list)  # by job
        self._followers: dict[str, float] = {}  # run or group -> since when it may run once more
        self._claimants: dict[str, frozenset[str]] = {}  # run -> the nodes that stood for its attempt 0
        self._same: dict[frozenset[str], frozenset[str]] = {}  # one object for equal sets of nodes
        self._was_0: set[str] = set()  # a line says how attempt 0 of this run ended, and not under which grant
        self._rejected: set[str] = set()  # ended with attempt 0, which nobody was granted

    def take(self, record: dict[str, Any], at: float) -> None:
        """A record of the audit."""
        method, subject = record.get("method"), record.get("subject")
        if not isinstance(subject, str) or record.get("outcome") == REFUSED:
            return
        if method == BACKFILL and (plan := backfill(subject)) is not None:
            self._plans[plan.job].append((at, plan))
        elif method in REPEATS:
            for name in followers(subject):
                self._followers[name] = min(at, self._followers.get(name, at))

    def named(self, kind: str, run: str, attempt: int, succession: object) -> None:
        """A line without a grant names this attempt."""
        if attempt:
            return
        if kind == ELECTED:
            names = succession if isinstance(succession, list) else []
            stood = frozenset([host_of(name) for name in names if isinstance(name, str)])
            stood |= self._claimants.get(run, frozenset())
            self._claimants[run] = self._same.setdefault(stood, stood)
        elif kind == REJECTED:
            self._rejected.add(run)
        elif kind != SENT:
            self._was_0.add(run)

    def first(self, run: str, granted: float, nodes: Container[str]) -> int:
        """Was attempt 1 of the run the first that was granted? No journal here has attempt 0; ``granted``: when
        attempt 1 was; ``nodes``: whose journals are here.

        A plan that skips what was launched says so. But attempt 0 may have failed, and been tried again while the plan
        ran: that cannot be excluded if the journal of a node is absent that stood for attempt 0. Other acts run once
        more what was launched, too.
        """
        if run in self._rejected:
            return YES
        if run in self._was_0:
            return NO
        plans = [plan for at, plan in self._plans.get(job_of(run), ()) if at <= granted + LATE_S and plan.covers(run)]
        if any(plan.redo == NONE for plan in plans):
            return YES if all(name in nodes for name in self._claimants.get(run, ())) else NO
        followed = min(self._followers.get(name, float("inf")) for name in (run, group_of(run)))
        return PERHAPS if plans or followed <= granted + LATE_S else NO
