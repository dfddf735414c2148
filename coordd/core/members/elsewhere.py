"""What fails here and succeeds on another node: its retry goes there first, and a node with several such runs stands
aside for a while.

Both only order the nodes. A node that stands aside states that it abstains, and takes a run all the same if no other
node stands, or if half of the run's ``start_within`` has passed. The ledger knows nothing of it.

Never more than (N - 1)/2 of N nodes stand aside. A node announces it in three heartbeats, and stands aside only after
them: a node that has missed all three takes it for lost, and counts it in no N. Of the nodes that have announced it,
those with the lowest hostnames stand aside, as many as may. So in any set that stands aside, the node with the highest
hostname has counted all others.
"""

from __future__ import annotations

from coordd.core.context import Context
from coordd.core.members.membership import ALIVE, SUSPECT
from coordd.core.ready import Now
from coordd.core.wire.events import Action, Task, TaskFailed, TaskRetried, TaskSucceeded

# Failed attempts of this node that are remembered, and for how long (seconds).
FAILED_MAX = 2000
FRESH_S = 6 * 3600.0

# This many runs that failed here and succeeded elsewhere make a node stand aside.
STRIKES = 3

# For this long (seconds) at first. It doubles each time, up to the second figure.
ASIDE_S = 60.0
ASIDE_MAX_S = 3600.0
# After this long (seconds) without standing aside, it begins with the first figure again.
FORGIVEN_S = 24 * 3600.0

# This many heartbeats announce it.
ANNOUNCED = 3

# The load that ranks a candidate behind all others.
LAST = 1_000_000


class Elsewhere:
    """What one node knows of its failures, and whether it stands aside for them."""

    __slots__ = ("_ctx", "_failed", "_from", "_last_s", "_strikes", "until")

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        # run -> (attempt, token, when) that failed here; when: -inf if it was lost, which may be the ledger's fault
        self._failed: dict[str, tuple[int, int, float]] = {}
        self._strikes: dict[str, list[str]] = {}  # job -> its runs that failed here and succeeded elsewhere
        self._from = 0.0  # when it was announced long enough (mono)
        self._last_s = 0.0  # how long the last time took
        self.until = float("-inf")  # the end of the present or last time (mono)

    def heard(self, event: Task, now: Now) -> None:
        """The end of an attempt, here or elsewhere."""
        here = event.node == self._ctx.full_hostname
        if isinstance(event, TaskSucceeded):
            failed = self._failed.get(event.run)
            if here:
                self._failed.pop(event.run, None)
                self._strikes.pop(event.name, None)  # the job does work here
            elif failed is not None and event.token > failed[1]:
                del self._failed[event.run]
                if now.mono - failed[2] <= FRESH_S:
                    self._strike(event, now)
        elif here and isinstance(event, (TaskFailed, TaskRetried)):
            if len(self._failed) >= FAILED_MAX:
                del self._failed[next(iter(self._failed))]
            at = now.mono if isinstance(event, TaskFailed) else float("-inf")
            self._failed[event.run] = (event.attempt, event.token, at)

    def load(self, action: Action) -> int:
        """LAST if the attempt before this one failed here: any other node tries first."""
        failed = self._failed.get(action.run)
        return LAST if failed is not None and failed[0] == action.attempt - 1 else 0

    def judge(self, now: Now) -> None:
        """Time has passed, or a heartbeat was heard: does this node stand aside?"""
        ctx = self._ctx
        if not ctx.failing:
            return
        if now.mono >= self.until:
            ctx.note("node.stands_aside_no_more", seconds=self._last_s)
            ctx.failing = ctx.aside = ""
            return
        if ctx.state != "ready":  # the others count it in no N: it announces it again once it is back
            self._from = now.mono + ctx.settings.heartbeat_interval_s + self._announced_s()
        before, ctx.aside = ctx.aside, ctx.failing if self._may(now) else ""
        if ctx.aside and not before:
            ctx.note("node.stands_aside", reason=ctx.aside, seconds=round(self.until - now.mono))
        ctx.arm(min(self.until, now.mono + ctx.settings.heartbeat_interval_s), "aside")

    def _strike(self, event: Task, now: Now) -> None:
        self._strikes.setdefault(event.name, []).append(event.run)
        runs = [run for struck in self._strikes.values() for run in struck]
        ctx = self._ctx
        ctx.note("run.failed_only_here", run=event.run, node=event.node, count=len(runs))
        if len(runs) < STRIKES or ctx.failing:
            return
        again = now.mono - self.until < FORGIVEN_S
        self._last_s = min(2 * self._last_s, ASIDE_MAX_S) if again and self._last_s else ASIDE_S
        self._strikes.clear()
        self._from = now.mono + self._announced_s()
        self.until = self._from + self._last_s
        ctx.failing = f"{len(runs)} runs that failed here succeeded on other nodes: {', '.join(sorted(runs))}"
        self.judge(now)

    def _announced_s(self) -> float:
        membership = self._ctx.membership
        return ANNOUNCED * max(membership.heartbeat_interval_s, membership.fanout_interval_s)

    def _may(self, now: Now) -> bool:
        """True if it was announced long enough, and enough nodes are left without this one."""
        ctx = self._ctx
        others = [
            member
            for member in ctx.membership.members.values()
            if member.state in (ALIVE, SUSPECT) and member.says == "ready"
        ]
        first = sorted([ctx.hostname, *[member.hostname for member in others if member.failing]])
        return now.mono >= self._from and first.index(ctx.hostname) < len(others) // 2  # (N - 1)/2 of N = others + 1
