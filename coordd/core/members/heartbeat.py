"""Heartbeats: what a node tells all others about itself, how often, and what it tells a newcomer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, zip_longest
from typing import Any, TypeVar

from msgspec import structs

from coordd.core.context import Context
from coordd.core.members.membership import ALIVE, Member
from coordd.core.members.outcomes import REVOKED, Outcomes
from coordd.core.ready import Now
from coordd.core.wire.events import PeerSummary, RunOutcome, WorkerHeartbeat, WorkerHello, WorkerHelloReply, WorkerState

S = TypeVar("S", PeerSummary, RunOutcome)

# The number of watchers of each node. One may be gone and one deaf.
WATCHERS = 3

# Heartbeats to all are sent this much early (part of their interval), at random: they must not coincide.
EARLY = 0.2

# Urgent news (such as other job files) is sent within this many seconds, at random: a thousand nodes often get new jobs
# at once.
SPREAD_S = 30.0

# A reply to a hello has the highest token of every job: at most this many per message.
REPLY_TOKENS_MAX = 200

# A list of members is split at this size, so that it fits into a message; a member with huge tags is left out.
PAGE_BYTES_MAX = 48 * 1024
KNOWN_BYTES_MAX = 4096

# The same for recent ends of runs, which share their messages with the tokens.
OUTCOMES_BYTES_MAX = 24 * 1024

# A peer that sees many more members than we do is asked for them, but not more often than this (seconds).
ASK_AGAIN_S = 10.0


class Heartbeats:
    """The heartbeats of one node. The size of the cluster decides how often it may send to all."""

    __slots__ = ("_asked_at", "_ctx", "_early", "_outcomes", "_says", "_speak_at", "_spoke_at")

    def __init__(self, ctx: Context, outcomes: Outcomes, says: Callable[[type[WorkerState]], WorkerState]) -> None:
        """``outcomes``: what a newcomer is told of runs."""
        self._ctx = ctx
        self._outcomes = outcomes
        self._says = says
        self._spoke_at = float("-inf")
        self._speak_at = float("inf")  # something is urgent
        self._early = 0.0
        self._asked_at = float("-inf")

    def entered(self, now: Now) -> None:
        """The node has announced itself; from now on it sends heartbeats."""
        self._spoke_at = now.mono
        membership = self._ctx.membership
        self._early = self._random() if membership.large else 0.0
        self._ctx.arm(self.due_at(), "heartbeat")

    def heartbeat(self, now: Now) -> None:
        """Send to all, if it is time."""
        ctx = self._ctx
        if now.mono >= self.due_at():
            ctx.publish(self._says(WorkerHeartbeat), now)
            self._spoke_at = now.mono
            self._speak_at = float("inf")
            self._early = EARLY * self._random() if ctx.membership.large else 0.0
        ctx.arm(self.due_at(), "heartbeat")

    def greet(self, now: Now) -> None:
        """The bus is back: ask what was missed; in a small cluster all nodes, in a large one our watchers.

        After a broker's restart all nodes do this at once; they still know their members.
        """
        if not self._ctx.membership.large:
            self._ctx.publish(self._says(WorkerHello), now)
            return
        for name in islice(self._ctx.membership.ring.after(self._ctx.full_hostname), WATCHERS):
            self._greet(name, now)

    def _greet(self, name: str, now: Now) -> None:
        hello = self._says(WorkerHello)
        assert isinstance(hello, WorkerHello)
        hello.to = name
        self._ctx.send(name, hello, now)

    def news(self, now: Now) -> None:
        """Our own state has changed. In a small cluster the next heartbeat is soon enough."""
        if self._ctx.membership.large:
            self.speak_by(now.mono + SPREAD_S * self._random())

    def ledger_changed(self, now: Now) -> None:
        """Our ledger, or its pin, has changed: other nodes must know at once, because they may be braked without it."""
        if self._ctx.state not in ("ready", "draining"):
            return
        if self._ctx.membership.large:
            self.news(now)
        else:
            self._ctx.publish(self._says(WorkerHeartbeat), now)

    def due_at(self) -> float:
        """When this node must send to all next."""
        membership = self._ctx.membership
        interval = max(membership.heartbeat_interval_s, membership.fanout_interval_s * (1.0 - self._early))
        return min(self._speak_at, self._spoke_at + interval)

    def speak_by(self, at: float) -> None:
        """Send to all by then, but at most once per interval."""
        at = max(at, self._spoke_at + self._ctx.membership.heartbeat_interval_s)
        self._speak_at = min(self._speak_at, at)
        self._ctx.arm(self._speak_at, "heartbeat")

    def _random(self) -> float:
        return self._ctx.rng.getrandbits(16) / 65536

    # ---- newcomers

    def state_heard(self, member: Member, now: Now) -> None:
        """A member's interval tells how many members it sees. If it sees many more than we do, ask it for them."""
        membership = self._ctx.membership
        if self._ctx.state == "mingling":
            return  # it has just asked everybody
        if member.freq > 2 * membership.fanout_interval_s and now.mono - self._asked_at > ASK_AGAIN_S:
            self._asked_at = now.mono
            self._greet(member.name, now)

    def answers(self, hello: WorkerHello, sender: str) -> bool:
        """True if this node answers the hello: all nodes do in a small cluster, the nearest ones in a large one."""
        ctx = self._ctx
        if hello.to or not ctx.membership.large:
            return hello.to in ("", ctx.full_hostname)
        return self._is_near(sender)

    def _is_near(self, sender: str) -> bool:
        """True if this node is one of the alive ones that follow the sender on the ring."""
        ctx = self._ctx
        nearest = 0
        for name in ctx.membership.ring.after(sender):
            if name == ctx.full_hostname:
                return True
            member = ctx.membership.named(name)
            nearest += member is not None and member.state == ALIVE
            if nearest >= WATCHERS:
                break
        return False

    def hello_heard(self, hello: WorkerHello, sender: str, now: Now) -> None:
        """Answer a hello, if this node is one of those that answer."""
        if self.answers(hello, sender):
            self.reply(hello, sender, now)

    def reply(self, hello: WorkerHello, sender: str, now: Now) -> None:
        """Answer a hello, in as many unicasts as it takes."""
        tells = hello.to or self._is_near(sender)
        for fields in self.replies(hello.freq, self._outcomes.recent(now) if tells else ()):
            reply = self._says(WorkerHelloReply)
            assert isinstance(reply, WorkerHelloReply)
            reply.to = sender
            for field, value in fields.items():
                setattr(reply, field, value)
            self._ctx.send(sender, reply, now)

    def replies(self, freq: float, outcomes: Iterable[RunOutcome] = ()) -> Iterator[dict[str, Any]]:
        """The fields of each reply to a hello: tokens, members and outcomes are split over several messages.

        In a small cluster every node answers for itself, and no list is needed. In a large one, a sender with a shorter
        interval (``freq``) than ours sees fewer members, and gets a list; after a broker's restart no node does.
        """
        membership = self._ctx.membership
        lists = membership.large and freq < membership.fanout_interval_s
        tokens = list(self._ctx.tokens.items())
        members = () if lists else membership.view()[:REPLY_TOKENS_MAX]
        parts = [dict(tokens[at : at + REPLY_TOKENS_MAX]) for at in range(0, max(1, len(tokens)), REPLY_TOKENS_MAX)]
        ends = pages(outcomes, OUTCOMES_BYTES_MAX)
        for part, page in zip_longest(parts, ends, fillvalue=None):
            revoked = tuple(one.run for one in page or () if one.kind == REVOKED)
            yield {"members": members, "tokens": part or {}, "outcomes": page or (), "revoked": revoked}
        if lists:
            for known in pages(membership.roster()):
                yield {"known": known}


def pages(told: Iterable[S], page_bytes_max: int = PAGE_BYTES_MAX) -> Iterator[tuple[S, ...]]:
    """Split into lists that fit into a message. A member, or a run, may have any name, so bytes are counted."""
    page: list[S] = []
    size = 0
    for one in told:
        length = _length(one)
        if length > KNOWN_BYTES_MAX:
            continue
        if size + length > page_bytes_max:
            yield tuple(page)
            page, size = [], 0
        page.append(one)
        size += length
    if page:
        yield tuple(page)


def _length(one: PeerSummary | RunOutcome) -> int:
    """An upper bound of the bytes on the wire: every text has a head of at most 5 bytes, a number has at most 9."""
    parts = chain.from_iterable(value if isinstance(value, tuple) else (value,) for value in structs.astuple(one))
    return 11 + sum(5 + len(part.encode(errors="replace")) if isinstance(part, str) else 9 for part in parts)
