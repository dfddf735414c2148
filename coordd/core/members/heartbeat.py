"""What a node says of itself to all, how often, and what it tells a newcomer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from coordd.core.context import Context
from coordd.core.members.membership import ALIVE, Member
from coordd.core.ready import Now
from coordd.core.wire.events import PeerSummary, WorkerHeartbeat, WorkerHello, WorkerHelloReply, WorkerState

# How many watch each node. One may be gone and one deaf.
WATCHERS = 3

# Heartbeats to all come this much (part of their interval) early, at random: they must not gather.
EARLY = 0.2

# News that cannot wait for the next heartbeat to all, such as other job files, leave spread over this many seconds:
# a thousand nodes are often given new jobs at once.
SPREAD_S = 30.0

# A hello's reply names the highest token of every job: so many in a message.
REPLY_TOKENS_MAX = 400

# A list of members is kept under this, so that it fits into a message; one with tags beyond reason is left out.
PAGE_BYTES_MAX = 48 * 1024
KNOWN_BYTES_MAX = 4096

# A peer that sees many more members than we do is asked for them, but not more often than this (seconds).
ASK_AGAIN_S = 10.0


class Heartbeats:
    """The regular words of one node. How often it may speak to all follows the size of the cluster."""

    __slots__ = ("_asked_at", "_ctx", "_early", "_says", "_speak_at", "_spoke_at")

    def __init__(self, ctx: Context, says: Callable[[type[WorkerState]], WorkerState]) -> None:
        self._ctx = ctx
        self._says = says
        self._spoke_at = float("-inf")
        self._speak_at = float("inf")  # something cannot wait
        self._early = 0.0
        self._asked_at = float("-inf")

    def entered(self, now: Now) -> None:
        """The node has said that it takes part; from now on it speaks regularly."""
        self._spoke_at = now.mono
        membership = self._ctx.membership
        self._early = self._random() if membership.large else 0.0
        self._ctx.arm(self.due_at(), "heartbeat")

    def heartbeat(self, now: Now) -> None:
        """Speak to all, if it is time."""
        ctx = self._ctx
        if now.mono >= self.due_at():
            ctx.publish(self._says(WorkerHeartbeat), now)
            self._spoke_at = now.mono
            self._speak_at = float("inf")
            self._early = EARLY * self._random() if ctx.membership.large else 0.0
        ctx.arm(self.due_at(), "heartbeat")

    def greet(self, now: Now) -> None:
        """Ask what was missed, the bus being back: everybody in a small cluster, those who watch us in a large one.

        After a broker's restart all nodes do this at once; the members that they knew are still there for them.
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
        """What this node says of itself has changed. In a small cluster the next heartbeat is soon enough."""
        if self._ctx.membership.large:
            self.speak_by(now.mono + SPREAD_S * self._random())

    def due_at(self) -> float:
        """When this node must speak to all next."""
        membership = self._ctx.membership
        interval = max(membership.heartbeat_interval_s, membership.fanout_interval_s * (1.0 - self._early))
        return min(self._speak_at, self._spoke_at + interval)

    def speak_by(self, at: float) -> None:
        """Speak to all by then; but once an interval is the most, whoever asks."""
        at = max(at, self._spoke_at + self._ctx.membership.heartbeat_interval_s)
        self._speak_at = min(self._speak_at, at)
        self._ctx.arm(self._speak_at, "heartbeat")

    def _random(self) -> float:
        return self._ctx.rng.getrandbits(16) / 65536

    # ---- newcomers

    def state_heard(self, member: Member, now: Now) -> None:
        """How rarely a member speaks tells how many it sees: one that sees many more than we do is asked for them."""
        membership = self._ctx.membership
        if self._ctx.state == "mingling":
            return  # it has asked everybody just now
        if member.freq > 2 * membership.fanout_interval_s and now.mono - self._asked_at > ASK_AGAIN_S:
            self._asked_at = now.mono
            self._greet(member.name, now)

    def answers(self, hello: WorkerHello, sender: str) -> bool:
        """Whether this node is one of those who answer: all in a small cluster, the nearest in a large one."""
        ctx = self._ctx
        if hello.to or not ctx.membership.large:
            return hello.to in ("", ctx.full_hostname)
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
        """Answer it, if this node is one of those who do."""
        if self.answers(hello, sender):
            self.reply(hello, sender, now)

    def reply(self, hello: WorkerHello, sender: str, now: Now) -> None:
        """Answer a hello, in as many unicasts as it takes."""
        for fields in self.replies(hello.freq):
            reply = self._says(WorkerHelloReply)
            assert isinstance(reply, WorkerHelloReply)
            reply.to = sender
            for field, value in fields.items():
                setattr(reply, field, value)
            self._ctx.send(sender, reply, now)

    def replies(self, freq: float) -> Iterator[dict[str, Any]]:
        """The fields of each reply to a hello: a message holds so many tokens, or so many members; the rest follow.

        In a small cluster everybody answers for itself, and nobody needs a list. In a large one whoever means to speak
        more often (``freq``) than we do sees fewer members; after a broker's restart nobody does.
        """
        membership = self._ctx.membership
        lists = membership.large and freq < membership.fanout_interval_s
        tokens = list(self._ctx.tokens.items())
        members = () if lists else membership.view()[:REPLY_TOKENS_MAX]
        for at in range(0, max(1, len(tokens)), REPLY_TOKENS_MAX):
            yield {"members": members, "tokens": dict(tokens[at : at + REPLY_TOKENS_MAX])}
        if lists:
            for page in pages(membership.roster()):
                yield {"known": page}


def pages(known: Iterable[PeerSummary]) -> Iterator[tuple[PeerSummary, ...]]:
    """Lists that fit into a message each. The world may have given a member any name, so bytes are counted."""
    page: list[PeerSummary] = []
    size = 0
    for one in known:
        length = _length(one)
        if length > KNOWN_BYTES_MAX:
            continue
        if size + length > PAGE_BYTES_MAX:
            yield tuple(page)
            page, size = [], 0
        page.append(one)
        size += length
    if page:
        yield tuple(page)


def _length(one: PeerSummary) -> int:
    """At least what it takes on the wire: every text has a head of 5 bytes at the most."""
    texts = (one.name, one.incarnation, one.jobs_digest, one.ledger, *one.tags)
    return 11 + sum([5 + len(text.encode(errors="replace")) for text in texts])
