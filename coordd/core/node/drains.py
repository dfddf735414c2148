"""What people have stopped, as the last sweep found it in the ledger; and whether this node takes runs.

A drain is kept in the ledger, so any node can be asked for it and it survives restarts. While the ledger does not
answer, a person can still drain this node itself: such a drain ends with the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coordd.core.context import Context
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.rows import ALL, OF_JOB, OF_NODE, Hold
from coordd.core.ready import Now


class Drains:
    """The holds, and the drain of this node."""

    __slots__ = ("_changed", "_ctx", "_turn", "holds", "kept_here", "suspended")

    def __init__(self, ctx: Context, turn: Callable[[bool, Now], None]) -> None:
        """``turn``: take no new runs (True), or take them again."""
        self._ctx = ctx
        self._turn = turn
        self.holds: Mapping[str, Hold] = {}  # by key (core/ledger/rows.py)
        self.suspended: frozenset[str] = frozenset()  # the suspended ones of this node's jobs
        self.kept_here: Hold | None = None  # a drain that the ledger does not know
        # The drains, and their ends (None), that the ledger has taken from here: by key, with the time (mono) of its
        # answer. They are forgotten with the first sweep that was asked later.
        self._changed: dict[str, tuple[float, Hold | None]] = {}

    @property
    def own(self) -> Hold | None:
        """The drain of this node."""
        return self.kept_here or self.holds.get(OF_NODE + self._ctx.hostname)

    @property
    def pause(self) -> Hold | None:
        """The hold on all jobs."""
        return self.holds.get(ALL)

    @property
    def pools(self) -> Mapping[str, int]:
        """The sizes of pools by this node's settings; a hold (``pool:NAME``) overrules them."""
        return self._ctx.settings.pools

    def of_node(self, hostname: str) -> Hold | None:
        """The drain of a node."""
        return self.own if hostname == self._ctx.hostname else self.holds.get(OF_NODE + hostname)

    def of_job(self, job: str) -> Hold | None:
        """The hold that prevents the job: its own, or that on all jobs. None too if an older version suspended it."""
        return self.holds.get(OF_JOB + job) or self.pause

    def keep_here(self, hold: Hold | None, now: Now) -> None:
        """Drain this node without the ledger, or end that (None)."""
        self.kept_here = hold
        self.judge(now)

    def changed(self, hostname: str, hold: Hold | None, now: Now) -> None:
        """The ledger has taken a drain of a node, or its end (None)."""
        key = OF_NODE + hostname
        self._changed[key] = (now.mono, hold)
        self.holds = _with(self.holds, {key: hold})
        if hostname == self._ctx.hostname:
            self.kept_here = None
        self.judge(now)

    def swept(self, answer: OpenAnswer, sent_at: float, now: Now) -> None:
        """The holds in the ledger. An answer may lack what was changed here after it was asked (``sent_at``, mono):
        such a change stays.
        """
        self._changed = {key: one for key, one in self._changed.items() if sent_at < one[0]}
        self.holds = _with(answer.holds, {key: hold for key, (_, hold) in self._changed.items()})
        self.suspended = frozenset(name for name, stands in answer.jobs.items() if stands.suspended)
        self._ctx.suspended = frozenset(answer.jobs) if self.pause is not None else self.suspended
        self.judge(now)

    def judge(self, now: Now) -> None:
        """Drain, or end the draining."""
        wanted = self.own is not None
        if self._ctx.state in ("ready", "draining") and wanted != (self._ctx.state == "draining"):
            self._turn(wanted, now)


def _with(holds: Mapping[str, Hold], changed: Mapping[str, Hold | None]) -> Mapping[str, Hold]:
    """The holds after these changes; None ends one."""
    if not changed:
        return holds
    return {key: hold for key, hold in {**holds, **changed}.items() if hold is not None}
