"""The failure detector: who watches whom in a large cluster.

Up to about 70 members, everybody hears everybody every ``heartbeat_interval`` (membership.py judges). Above that,
heartbeats to all become rarer, to limit the deliveries per second. In between, each node sends a ``worker-beat`` to its
successors on the ring (ring.py). If a watcher hears nothing of a member, it acts in steps:

1.5 intervals   suspect; asked by unicast, which may prove its death at once 3 intervals     ``worker-suspect`` to all:
suspect for all. If the suspect lives, it answers all with a heartbeat; a watcher that still hears it vouches for it 3
more          lost, for each node that has not heard it since

So no single node can make another one lost: it only asks, and all hear the answer. A node that hears nobody is cut off
itself: it judges nobody, and is alone in its own view until it hears another node.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from coordd.core.context import Context
from coordd.core.members.heartbeat import WATCHERS, Heartbeats, pages
from coordd.core.members.membership import ALIVE, LOST_AFTER, SUSPECT, SUSPECT_AFTER, Member
from coordd.core.ready import Now
from coordd.core.wire.events import Packet, PeerSummary, WorkerBeat, WorkerSuspect, WorkerVouch

# A node sends to at most this many successors, when the nearest ones are suspect.
BEATS_MAX = 16

# Checks per interval: the resolution of silence.
TURNS = 2

# Each watcher further away waits this much longer (intervals) before it tells all what the nearest would tell.
DEFER = 0.5

# If a node hears nobody for this long (intervals), it considers itself cut off. Shorter than the time before it
# suspects a peer publicly.
ISOLATED_AFTER = 2.0

# How long (intervals) a watcher waits for the suspect's own public answer before it vouches for it.
VOUCH_AFTER = 1.0

# If nobody seems to watch a member (views differ), every node that knows it asks it: after public silence of 1.5 of its
# own intervals, and this many of ours, so that its real watchers come first.
DOUBT_AFTER = 12.0

# Checks between two full passes over all members: with a thousand members, each pass takes a tenth of a millisecond.
ROUND = 6 * TURNS


class FailureDetector:
    """Watches the members for one node."""

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
        self._doubts: dict[str, float] = {}  # silent for too long, but watched by others: since when
        self._accused: dict[str, float] = {}  # full_hostname -> when it was suspected publicly
        self._vouches: dict[str, float] = {}  # members that we hear and others may believe lost: since when
        self._dead: dict[str, PeerSummary] = {}  # proved dead to us, not reported yet

    # ---- events of peers

    def beat_heard(self, event: WorkerBeat, packet: Packet, sender: str, now: Now) -> None:
        """A unicast "I live"; with ``ask`` the sender wants one back."""
        if event.ask:
            self._write(sender, now)
        membership = self._ctx.membership
        if membership.large and any(member.name == sender for _, member in membership.changes):
            self._vouches.setdefault(sender, now.mono)  # it was lost: only we hear a unicast

    def suspects_heard(self, event: WorkerSuspect, packet: Packet, sender: str, now: Now) -> None:
        """A peer hears nothing of these members."""
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
        """A peer has heard these members."""
        self._ctx.membership.told(event.known, now.mono, vouched=True)

    def dead(self, name: str) -> None:
        """The bus has proved to us that a member is dead. In a large cluster, other nodes may not know it yet."""
        member = self._ctx.membership.named(name)
        if member is not None and self._ctx.membership.large and name not in self._accused:
            self._dead[name] = PeerSummary(member.name, member.incarnation)

    # ---- time

    def turn(self, now: Now) -> None:
        """Judge silence, send to our watchers, and publish suspicions."""
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
            ctx.arm(self._heartbeats.due_at(), "heartbeat")  # it may be earlier now: the cluster has become smaller

    def _switch(self, now: Now) -> None:
        """The cluster has crossed the size up to which everybody hears everybody."""
        self._large = self._ctx.membership.large
        self._ctx.note("members.judged", by="watchers" if self._large else "all")
        self._turned_at = now.mono
        self._listen_anew(now)
        if not self._large:
            self._accused.clear()

    def _listen_anew(self, now: Now) -> None:
        """Forget old silence: we could not hear then."""
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
        """Send a beat to our watchers."""
        membership = self._ctx.membership
        live = 0
        for name in islice(membership.ring.after(self._ctx.full_hostname), BEATS_MAX):
            self._write(name, now)
            member = membership.named(name)
            live += member is not None and member.state == ALIVE
            if live >= WATCHERS:
                break

    def _doubt(self, now: Now) -> None:
        """Members that have been silent for longer than they promised, and that nobody seems to watch."""
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
        """Judge the members that we watch; returns those that must be suspected publicly."""
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
        """(member, number of nearer watchers, ask at once?) for each watched member, back along the ring.

        For each silent member, one more behind it is watched, so that even a long gap is found in a few intervals.
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
        """Public suspects: which have answered, which only we hear, which are lost."""
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
        """Publish the result of one check, one message per kind; suspects that do not fit wait for the next check."""
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
        """Nobody has heard it publicly since."""
        member = self._ctx.membership.named(name)
        return member is not None and member.state == ALIVE and member.spoken_at < since

    def _write(self, name: str, now: Now, *, ask: bool = False) -> None:
        self._ctx.send(name, WorkerBeat(ask=ask), now)
