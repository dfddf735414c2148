"""The ledger rules in force, and the step to the new ones.

A member of an older version knows only the old rules. They stay in force while such a member is alive, suspect or lost.
When all remaining members have known the new rules for some heartbeats, the first node that notices asks the ledger to
change. core/ledger/standing.py then keeps out an older daemon that comes back.
"""

from __future__ import annotations

from coordd.core.context import Context
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import NewRules
from coordd.core.ledger.words import NEVER, NEW_RULES, OK
from coordd.core.members.membership import LEFT
from coordd.core.node.definitions import Definitions
from coordd.core.ready import Now
from coordd.core.runs.planner import Planner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.runs.pursued import Pursuit

# For this many heartbeats all members must know the new rules.
CALM_HEARTBEATS = 3


class Rulebook:
    """The rules in force, as this node knows them (``Context.identity_from``), and the step to the new ones."""

    __slots__ = ("_asks", "_calm_from", "_ctx", "_seen", "definitions")

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._calm_from: float | None = None  # since when no node holds the new rules back (mono)
        self._seen = -1.0  # where the new rules began, when they were last in force
        self._asks = False  # for the new rules
        self.definitions = Definitions(ctx)

    def held_back_by(self) -> list[str]:
        """The members that know only the old rules; a lost one may come back."""
        members = self._ctx.membership.members.values()
        return sorted(one.name for one in members if one.state != LEFT and one.rules < NEW_RULES)

    def swept(self, answer: OpenAnswer, pursuits: dict[str, Pursuit], planner: Planner, bus_up: bool, now: Now) -> None:
        """The ledger's answer: the rules in force, and the definitions that count."""
        if answer.identity_from != NEVER:
            self._seen = answer.identity_from
        if answer.identity_from != self._ctx.identity_from:
            self._ctx.identity_from = answer.identity_from
            self._ctx.note("rules.in_force", rules=self._ctx.rules, identity_from=answer.identity_from)
            for name, due in self._misnamed(pursuits).items():
                planner.open_again(name, due, now)
        self.definitions.swept(answer)
        self._look(bus_up, now)

    def _look(self, bus_up: bool, now: Now) -> None:
        """Ask for the new rules, if it is time."""
        ctx = self._ctx
        if ctx.identity_from != NEVER or self._asks:
            self._calm_from = None
            return
        if self._seen < 0:  # otherwise they were in force already, and the ledger has gone back since
            if not bus_up or ctx.membership.isolated or self.held_back_by():
                self._calm_from = None
                return
            if self._calm_from is None:
                self._calm_from = now.mono
            membership = ctx.membership
            if now.mono - self._calm_from < CALM_HEARTBEATS * max(
                membership.heartbeat_interval_s, membership.fanout_interval_s
            ):
                return
        self._asks = True
        ctx.ask(NewRules(known=self._seen), self._answered)

    def _answered(self, answer: Answer, _sent_at: float, now: Now) -> None:
        """The ledger's answer to it. After a change, sweep."""
        self._asks = False
        if answer.word == OK:
            self._ctx.arm(now.mono, "sweep_soon")

    def _misnamed(self, pursuits: dict[str, Pursuit]) -> dict[str, float]:
        """Other rules are in force: runs without a row end here under their old ids. Per job: from which time."""
        first: dict[str, float] = {}
        for run, pursuit in list(pursuits.items()):
            action = pursuit.action
            if pursuit.row_at == float("inf") and not self._ctx.is_named_now(action):
                del pursuits[run]
                first[action.job] = min(first.get(action.job, action.due_at), action.due_at)
        return first
