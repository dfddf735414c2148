"""Who watches whom in a large cluster, and how often a node speaks to all.

Up to about 70 members everybody hears everybody every ``heartbeat_interval`` (core.membership judges). Above, the
heartbeats to all become rarer, so that they stay under a number of deliveries a second; in between each node writes
a ``worker-beat`` to its successors on the ring (core.ring). Of whom a watcher hears nothing it doubts in steps:

    1.5 intervals   suspect; asked by unicast, which may prove its death at once
    3 intervals     ``worker-suspect`` to all: suspect for all. Whoever lives answers all with a heartbeat; a watcher
                    that still hears it vouches for it
    3 more          lost, for each node that has not heard of it since

So no single node can make another one lost: what one says is a question, and its answer is heard by all. Who hears
nobody at all is cut off itself: it judges nobody, and is alone in its own view until it hears somebody again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from coordd.core.context import Context
from coordd.core.members.heartbeat import WATCHERS, Heartbeats, pages
from coordd.core.members.membership import ALIVE, LOST_AFTER, SUSPECT, SUSPECT_AFTER, Member
from coordd.core.ready import Now
from coordd.core.wire.events import Packet, PeerSummary, WorkerBeat, WorkerSuspect, WorkerVouch

# A node writes to this many successors at the most, when those next to it are suspect.
BEATS_MAX = 16

# Turns in an interval: how finely silence is seen.
TURNS = 2

# Watchers further away wait so much longer each (intervals) before they say what the nearest says for all.
DEFER = 0.5

# Silence of everybody, in intervals, after which a node thinks that it is cut off. Less than what it takes to suspect
# a peer aloud.
ISOLATED_AFTER = 2.0

# How long (intervals) a watcher waits for the suspect's own answer to all before it vouches for it.
VOUCH_AFTER = 1.0

# A member that nobody seems to watch (views differ) is asked by everybody who knows it, when it has been silent to all
# for 1.5 of its own intervals, and for so many of ours: those who do watch it come first.
DOUBT_AFTER = 12.0

# Turns between two looks at every single member: with a thousand, each look costs a tenth of a millisecond.
ROUND = 6 * TURNS


class FailureDetector:
    """The one who looks after the members of one node."""

    __slots__ = (
        "_accused",
        "_ctx",
        "_dead",
        "_doubts",
        "_heartbeats",
        "_large",
        "_since",
        "_turn",
        "_turned_at",
        "_vouches",
        "_was_isolated",
    )

    def __init__(self, ctx: Context, heartbeats: Heartbeats) -> None:
        self._ctx = ctx
        self._heartbeats = heartbeats
        self._large = False
        self._was_isolated = False
        self._turn = 0
        self._turned_at = float("-inf")
        self._since: dict[str, float] = {}  # full_hostname -> since when we watch it
        self._doubts: dict[str, float] = {}  # not ours to watch, and silent beyond its own promise: since when
        self._accused: dict[str, float] = {}  # full_hostname -> when it was suspected aloud
        self._vouches: dict[str, float] = {}  # those that we have heard and others may believe lost: since when
        self._dead: dict[str, PeerSummary] = {}  # proved to us, not told yet

    # ---- what peers say

    def beat_heard(self, event: WorkerBeat, packet: Packet, sender: str, now: Now) -> None:
        """A unicast "I live"; with ``ask`` the sender wants one back."""
        if event.ask:
            self._write(sender, now)
        membership = self._ctx.membership
        if membership.large and any(member.name == sender for _, member in membership.changes):
            self._vouches.setdefault(sender, now.mono)  # it was lost: only we hear a unicast

    def suspects_heard(self, event: WorkerSuspect, packet: Packet, sender: str, now: Now) -> None:
        """A peer hears nothing of these."""
        ctx = self._ctx
        for one in event.suspects:
            self._dead.pop(one.name, None)
            if one.name == ctx.full_hostname:
                if one.incarnation == ctx.incarnation:
                    self._heartbeats.speak_by(now.mono)
            elif ctx.membership.large:
                member = ctx.membership.named(one.name)
                if member is not None and member.incarnation == one.incarnation:
                    self._accuse(member, now)

    def vouch_heard(self, event: WorkerVouch, packet: Packet, sender: str, now: Now) -> None:
        """A peer has heard these."""
        self._ctx.membership.told(event.known, now.mono, vouched=True)

    def dead(self, name: str) -> None:
        """The bus has proved to us that a member is dead: in a large cluster others may not learn it otherwise."""
        member = self._ctx.membership.named(name)
        if member is not None and self._ctx.membership.large and name not in self._accused:
            self._dead[name] = PeerSummary(member.name, member.incarnation)

    # ---- time

    def turn(self, now: Now) -> None:
        """Judge silence, write to those who watch us, and say to all what must be said."""
        ctx = self._ctx
        membership = ctx.membership
        interval = membership.heartbeat_interval_s
        if membership.large != self._large:
            self._switch(now)
        if self._large:
            if ctx.state != "stopping":
                self._watch(now)
            at = now.mono + interval / TURNS
        else:
            membership.sweep(now.mono)
            at = min(membership.next_at(), now.mono + interval)
        if self._turn % ROUND == 0:
            membership.forget(now.mono)
        self._turn += 1
        ctx.arm(max(at, now.mono + 0.01), "members")
        if ctx.state != "stopping":
            ctx.arm(self._heartbeats.due_at(), "heartbeat")  # it may have come nearer: the cluster has become smaller

    def _switch(self, now: Now) -> None:
        """The cluster has grown or shrunk past the size at which everybody hears everybody."""
        self._large = self._ctx.membership.large
        self._ctx.note("members.judged", by="watchers" if self._large else "all")
        self._turned_at = now.mono
        self._listen_anew(now)
        if not self._large:
            self._accused.clear()

    def _listen_anew(self, now: Now) -> None:
        """What was not heard until now is nobody's fault but ours."""
        membership = self._ctx.membership
        membership.judged_from = max(membership.judged_from, now.mono)  # infinite while there is no bus
        self._since.clear()
        self._doubts.clear()
        self._accused = dict.fromkeys(self._accused, now.mono)

    def _watch(self, now: Now) -> None:
        membership = self._ctx.membership
        interval = membership.heartbeat_interval_s
        slept = now.mono - self._turned_at > SUSPECT_AFTER * interval
        self._turned_at = now.mono
        if slept or (self._was_isolated and not membership.isolated):
            self._listen_anew(now)
        silent_s = now.mono - max(membership.heard_at, membership.judged_from)
        if silent_s > ISOLATED_AFTER * interval and not membership.isolated:
            membership.isolate(True)
        if membership.isolated != self._was_isolated:
            self._was_isolated = membership.isolated
            self._ctx.note("node.isolated" if membership.isolated else "node.rejoined")
        beats = self._turn % TURNS == 0
        if beats:
            self._beat(now)
        if membership.isolated:
            return
        if self._turn % ROUND == 0:
            self._doubt(now)
        self._judge(now)
        self._say(self._look(now, asks=beats), now)

    def _beat(self, now: Now) -> None:
        """Write to those who watch us."""
        membership = self._ctx.membership
        live = 0
        for name in islice(membership.ring.after(self._ctx.full_hostname), BEATS_MAX):
            self._write(name, now)
            member = membership.named(name)
            live += member is not None and member.state == ALIVE
            if live >= WATCHERS:
                break

    def _doubt(self, now: Now) -> None:
        """Members that have broken their own promise to all, and that nobody seems to watch."""
        membership = self._ctx.membership
        least_s = DOUBT_AFTER * membership.heartbeat_interval_s
        for member in membership.members.values():
            if len(self._doubts) >= BEATS_MAX:
                break
            if member.state not in (ALIVE, SUSPECT) or member.name in self._accused:
                continue
            patience_s = max(SUSPECT_AFTER * membership.promised_s(member), least_s)
            if now.mono - max(member.heard_at, membership.judged_from) > patience_s:
                self._doubts.setdefault(member.name, now.mono)

    def _look(self, now: Now, *, asks: bool) -> list[Member]:
        """Judge those whom we watch; returns whom we suspect so much that all must know."""
        membership = self._ctx.membership
        interval = membership.heartbeat_interval_s
        found: list[Member] = []
        since, self._since = self._since, {}
        for member, rank, hurried in self._whom(since, now):
            known_since = since.get(member.name)
            if known_since is None and hurried:
                self._write(member.name, now, ask=True)  # many are silent here: no time to wait for its beat
                known_since = now.mono - (SUSPECT_AFTER - 1.0) * interval
            self._since[member.name] = now.mono if known_since is None else known_since
            silent_s = now.mono - max(member.heard_at, self._since[member.name], membership.judged_from)
            if silent_s <= SUSPECT_AFTER * interval:
                continue
            if member.state == ALIVE or asks:
                self._write(member.name, now, ask=True)
            membership.silent(member)
            if silent_s > (LOST_AFTER + DEFER * rank) * interval and member.name not in self._accused:
                found.append(member)
        return found

    def _whom(self, since: dict[str, float], now: Now) -> Iterator[tuple[Member, int, bool]]:
        """(member, how many nearer watchers it has, is it asked at once): back along the ring, further where it is
        silent.

        As many as are silent are watched behind them, so that also a long gap is found in a few intervals.
        """
        membership = self._ctx.membership
        interval = membership.heartbeat_interval_s
        live = silent = 0
        for name in membership.ring.before(self._ctx.full_hostname):
            member = membership.named(name)
            if member is None:
                continue
            yield member, min(live, WATCHERS), silent > 0
            watched_s = now.mono - max(member.heard_at, since.get(name, now.mono), membership.judged_from)
            if member.state == SUSPECT or watched_s > SUSPECT_AFTER * interval:
                silent += 1
            else:
                live += 1
            if live >= max(WATCHERS, silent):
                break
        for name, at in list(self._doubts.items()):
            member = membership.named(name)
            if member is None or member.heard_at >= at or member.state not in (ALIVE, SUSPECT):
                del self._doubts[name]
            elif name not in self._since:
                yield member, WATCHERS, True

    def _accuse(self, member: Member, now: Now) -> None:
        if member.state in (ALIVE, SUSPECT) and member.name not in self._accused:
            self._accused[member.name] = now.mono
            self._ctx.membership.silent(member)

    def _judge(self, now: Now) -> None:
        """Of those suspected aloud: who has answered, who is heard by us alone, who is lost."""
        membership = self._ctx.membership
        interval = membership.heartbeat_interval_s
        for name, at in list(self._accused.items()):
            member = membership.named(name)
            if member is None or member.state not in (ALIVE, SUSPECT) or member.spoken_at >= at:
                del self._accused[name]
            elif member.heard_at >= at:
                if now.mono - at > VOUCH_AFTER * interval:
                    self._vouches.setdefault(name, at)
                    del self._accused[name]
            elif now.mono - at > LOST_AFTER * interval:
                membership.proof_of_death(name)
                del self._accused[name]

    def _say(self, found: list[Member], now: Now) -> None:
        """What one turn has found leaves in one message of a kind; suspects that do not fit wait for the next turn."""
        ctx = self._ctx
        for member in found:
            self._dead[member.name] = PeerSummary(member.name, member.incarnation)
        suspects = next(pages(self._dead.values()), ())
        for one in suspects:
            del self._dead[one.name]
            suspect = ctx.membership.named(one.name)
            if suspect is not None:
                self._accuse(suspect, now)
        if suspects:
            ctx.publish(WorkerSuspect(suspects=suspects), now)
        alone = [ctx.membership.named(name) for name, at in self._vouches.items() if self._heard_alone(name, at)]
        self._vouches.clear()
        for page in pages([PeerSummary(heard.name, heard.incarnation) for heard in alone if heard is not None]):
            ctx.publish(WorkerVouch(known=page), now)
        for heard in alone:
            if heard is not None:
                heard.spoken_at = now.mono

    def _heard_alone(self, name: str, since: float) -> bool:
        """Nobody has heard it in public since."""
        member = self._ctx.membership.named(name)
        return member is not None and member.state == ALIVE and member.spoken_at < since

    def _write(self, name: str, now: Now, *, ask: bool = False) -> None:
        self._ctx.send(name, WorkerBeat(ask=ask), now)
