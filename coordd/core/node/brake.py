"""The brake: this node must not launch if other nodes may use another ledger.

A node *pins* the identity of the ledger that it uses, and the ledger's adapter then refuses every other one
(core/ledger/identity.py). A pin does not prove that the first ledger was the right one, so

- a node without a pin launches nothing unless a strict majority of all members that it knows (including itself and lost
ones, but not those that have left) use its ledger, and none of them has pinned another one. Then it pins. A lone node
is a majority of one. Without a bus it knows nobody, and waits a while for the bus; - a node with a pin launches nothing
if members have pinned another ledger, unless a strict majority of those that have pinned any use its own. Members
without a pin never stop it.

With a tie, nothing is launched. Members that still use the closed predecessor of our ledger do not count against it:
that ledger refuses every request. The brake is for first starts and for mistakes of people. It does not prove that
nothing is launched twice: nodes that cannot hear each other cannot compare.
"""

from __future__ import annotations

from collections.abc import Callable

from coordd.core.context import Context
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.members.membership import LEFT, Member
from coordd.core.ready import Now

# Why a node without a pin launches nothing yet.
NOT_SEEN = "it has not seen its ledger yet"
RECOVERS = "it has never used its ledger, which is recovering"
NO_BUS = (
    "it has never used its ledger before, and its bus is not connected: it cannot know whether the others use the same"
)

# How long (seconds) a first start waits for its bus. After it the node continues: jobs must run even without a broker.
BUS_PATIENCE_S = 10.0

# How soon (seconds) after the expected end of a quarantine the ledger is asked again.
LOOK_AGAIN_S = 0.05

# Maximum number of members named in a reason.
NAMED_MAX = 5


class Brake:
    """The brake of one node. Its result is in ``ctx``: ``ledger``, ``pinned``, ``braked``, ``split``."""

    __slots__ = (
        "_acquainted",
        "_ctx",
        "_differing",
        "_news",
        "_recovers",
        "_released",
        "_seen",
        "_since",
        "bus_up",
        "predecessor",
    )

    def __init__(
        self, ctx: Context, pin: str, acquainted: str, news: Callable[[Now], None], released: Callable[[Now], None]
    ) -> None:
        """``pin``: the identity that this node has used before, or "". ``acquainted``: the ledger's epoch that an older
        version of this node (without identities) saw last; a node that meets it again needs no majority. ``news`` is
        called when other nodes must hear which ledger this node uses, ``released`` when it may launch.
        """
        self._ctx = ctx
        self._news = news
        self._released = released
        self.bus_up = True
        self._acquainted = acquainted
        self._seen = False
        self._since = 0.0  # when the ledger was first seen (mono)
        self._recovers = False
        self._differing: frozenset[tuple[str, str]] = frozenset()  # (member, identity) pairs that were logged
        self.predecessor = ""
        ctx.ledger, ctx.pinned = pin, bool(pin)
        ctx.braked = "" if pin else NOT_SEEN

    # ---- inputs

    def ledger_says(self, answer: OpenAnswer, now: Now) -> None:
        """A ledger has answered. A ledger without identity ("") is not compared."""
        ctx, identity = self._ctx, answer.identity
        said = (ctx.ledger, ctx.pinned)
        if not self._seen:
            self._since = now.mono
        self._seen, self.predecessor, self._recovers = True, answer.predecessor, answer.recovering_s > 0
        if ctx.pinned:
            if identity and identity != ctx.ledger:  # its adapter accepts only a successor
                ctx.note("ledger.moved", identity=identity, before=ctx.ledger)
                self._pin(identity)
        else:
            ctx.ledger = identity
            if identity and answer.epoch and answer.epoch == self._acquainted:
                self._pin(identity)
            elif self._recovers:
                ctx.arm(now.mono + answer.recovering_s + LOOK_AGAIN_S, "sweep_soon")
        if (ctx.ledger, ctx.pinned) != said:
            self._news(now)
        self.judge(now)

    def accept(self, identity: str, now: Now) -> None:
        """A person says that this ledger is the right one."""
        self._pin(identity)
        self._news(now)
        self.judge(now)

    def judge(self, now: Now) -> None:
        """Compare again: a member has joined, left or sent, or the bus has changed."""
        ctx, braked, pinned = self._ctx, self._ctx.braked, self._ctx.pinned
        if not self._seen and not ctx.pinned:
            return
        others = [
            member
            for member in ctx.membership.members.values()
            if member.state != LEFT and not (member.ledger and member.ledger == self.predecessor)
        ]
        differing = [member for member in others if member.ledger not in ("", ctx.ledger)]
        self._tell(differing)
        if not ctx.ledger:
            self._become("", split=False)
        elif ctx.pinned:
            self._judge_pinned(others, differing)
        else:
            self._judge_first_start(others, differing, now)
        if ctx.pinned != pinned:
            self._news(now)
        if braked and not ctx.braked:
            self._released(now)

    # ---- steps

    def _judge_pinned(self, others: list[Member], differing: list[Member]) -> None:
        against = [member for member in differing if member.pinned]
        ours = 1 + sum(1 for member in others if member.pinned and member.ledger == self._ctx.ledger)
        if not against or 2 * ours > ours + len(against):
            self._become("", split=False)
            return
        self._become(
            f"its ledger ({self._ctx.ledger}) is used by {ours} of the {ours + len(against)} nodes that have used one:"
            f" {_named(against)}",
            split=True,
        )

    def _judge_first_start(self, others: list[Member], differing: list[Member], now: Now) -> None:
        against = [member for member in differing if member.pinned]
        ours = 1 + sum(1 for member in others if member.ledger == self._ctx.ledger)
        if against:
            self._become(
                f"it has never used its ledger ({self._ctx.ledger}) before, and others use another one:"
                f" {_named(against)}",
                split=True,
            )
        elif not self.bus_up and now.mono < self._since + BUS_PATIENCE_S:
            self._ctx.arm(self._since + BUS_PATIENCE_S, "sweep_soon")
            self._become(NO_BUS, split=False)
        elif 2 * ours <= 1 + len(others):
            silent = [member.name for member in others if not member.ledger]
            said = f": {_named(differing)}" if differing else ""
            waits = f"; nothing is known yet of {', '.join(sorted(silent)[:NAMED_MAX])}" if silent else ""
            self._become(
                f"it has never used its ledger ({self._ctx.ledger}) before, and only {ours} of {1 + len(others)} known"
                f" nodes use it{said}{waits}",
                split=bool(differing),
            )
        elif self._recovers:
            self._become(RECOVERS, split=False)  # an identity that a new node gave the ledger may still be replaced
        else:
            self._pin(self._ctx.ledger)
            self._become("", split=False)

    def _pin(self, identity: str) -> None:
        ctx = self._ctx
        ctx.ledger, ctx.pinned = identity, True
        ctx.out.pin = identity
        ctx.note("ledger.pinned", identity=identity)

    def _become(self, braked: str, *, split: bool) -> None:
        ctx = self._ctx
        if bool(braked) != bool(ctx.braked) or split != ctx.split:
            if braked:
                ctx.note("ledger.not_used", reason=braked)
            else:
                ctx.note("ledger.used", identity=ctx.ledger)
        ctx.braked, ctx.split = braked, split

    def _tell(self, differing: list[Member]) -> None:
        """Log once each member that uses another ledger."""
        now = frozenset((member.name, member.ledger) for member in differing)
        for name, identity in sorted(now - self._differing):
            self._ctx.note("ledger.differs", peer=name, theirs=identity, ours=self._ctx.ledger)
        self._differing = now


def _named(members: list[Member]) -> str:
    shown = [f"{member.name} uses {member.ledger}" for member in sorted(members, key=lambda m: m.name)[:NAMED_MAX]]
    return ", ".join(shown) + (f" and {len(members) - NAMED_MAX} more" if len(members) > NAMED_MAX else "")
