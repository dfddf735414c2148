"""Membership: which nodes are alive, suspect, lost or left.

Liveness is measured on the receiver's own monotonic clock, never on the sender's timestamp; every message
counts as a heartbeat. A lost member never makes an attempt lost: only the ledger does.

In a large cluster heartbeats to all are rare (``fanout_interval_s``). Then silence means nothing, and detector.py
judges instead of ``sweep``.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordd.core.members.ring import Ring
from coordd.core.names import NAME, host_of
from coordd.core.wire.events import PeerSummary, WorkerState

ALIVE = "alive"
SUSPECT = "suspect"
LOST = "lost"
LEFT = "left"

# Silence, in heartbeat intervals, after which a member is suspect, and lost.
SUSPECT_AFTER = 1.5
LOST_AFTER = 3.0

# Members that are gone are listed for this long (seconds), and at most this many of them are kept.
FORGET_AFTER_S = 3600.0
MEMBERS_MAX = 4096

# Incarnations come from the network: a longer one is invalid, and would not fit into a message beside others.
INCARNATION_LENGTH_MAX = 255

# The maximum length of a peer's ledger identity; a real one has 16.
IDENTITY_LENGTH_MAX = 32

# No node has been started more often: a longer number is invalid.
BOOT_DIGITS_MAX = 20

# No operating system has higher pids.
PID_DIGITS_MAX = 10

# Heartbeats to all cost N² deliveries a round: above this rate (per second) the rounds become rarer. A broker delivers
# ten times as many on one core; the watchers' unicasts (1.5 per node and second) come on top.
FANOUT_DELIVERIES_S = 2500.0

# The longest interval that a peer may promise.
PROMISE_MAX_S = MEMBERS_MAX**2 / FANOUT_DELIVERIES_S

# (state, event) -> state. Events: heard (any message), speaks (it had left, and says that it takes part), offline,
# silent (suspect after), dead (lost after, or proof of death). Only ``Membership._move`` changes a member's state.
MOVES: dict[tuple[str, str], str] = {
    (ALIVE, "heard"): ALIVE,
    (SUSPECT, "heard"): ALIVE,
    (LOST, "heard"): ALIVE,
    (LEFT, "heard"): LEFT,  # late messages of an incarnation that has left
    (LEFT, "speaks"): ALIVE,  # the good-bye was not its own, or not its last message
    (ALIVE, "offline"): LEFT,
    (SUSPECT, "offline"): LEFT,
    (LOST, "offline"): LEFT,
    (LEFT, "offline"): LEFT,
    (ALIVE, "silent"): SUSPECT,
    (ALIVE, "dead"): LOST,
    (SUSPECT, "dead"): LOST,
}


class Member:
    """One incarnation of one node, as this node knows it."""

    __slots__ = (
        "active",
        "clock",
        "failing",
        "freq",
        "heard_at",
        "hostname",
        "incarnation",
        "jobs_digest",
        "ledger",
        "left_clock",
        "loadavg",
        "name",
        "pid",
        "pinned",
        "rules",
        "said_clock",
        "says",
        "spoken_at",
        "state",
        "sw_ver",
        "tags",
    )

    def __init__(self, hostname: str, pid: int, incarnation: str, now: float) -> None:
        self.hostname = hostname
        self.pid = pid
        self.name = f"{hostname}.{pid}"
        self.incarnation = incarnation
        self.state = ALIVE
        self.heard_at = now  # any message, unicasts included
        self.spoken_at = now  # when all nodes could hear it
        self.clock = 0
        self.left_clock = 0  # the stamp of its good-bye
        self.freq = 0.0
        self.active = 0
        self.loadavg: tuple[float, float, float] = (0.0, 0.0, 0.0)
        self.jobs_digest = ""
        self.ledger = ""  # "" while unknown, and for older versions
        self.pinned = False
        self.tags: tuple[str, ...] = ()
        self.said_clock = 0  # the stamp of its last message about itself
        self.says = ""
        self.rules = 1
        self.failing = False
        self.sw_ver = ""


def boot_count(incarnation: str) -> int:
    """The boot counter at the start of an incarnation; -1 if there is none."""
    head = incarnation.partition("-")[0]
    return int(head) if head.isascii() and head.isdigit() and len(head) <= BOOT_DIGITS_MAX else -1


def is_name(hostname: str, incarnation: str) -> bool:
    """True for a valid hostname and pid; other names go into no address and no list."""
    return len(incarnation) <= INCARNATION_LENGTH_MAX and NAME.fullmatch(hostname) is not None


class Membership:
    """The other members, by hostname: at most one incarnation of each is current."""

    __slots__ = (
        "_view",
        "changes",
        "heard_at",
        "heartbeat_interval_s",
        "isolated",
        "judged_from",
        "members",
        "ring",
        "self_name",
    )

    def __init__(self, self_name: str, heartbeat_interval_s: float) -> None:
        self.self_name = self_name
        self.heartbeat_interval_s = heartbeat_interval_s
        self.members: dict[str, Member] = {}
        self.changes: list[tuple[str, Member]] = []  # (join | leave | lost, member), taken by the node
        self.ring = Ring()  # this node and all members that are alive or suspect
        self.ring.add(self_name)
        self.heard_at = float("-inf")  # any message of any node
        self.isolated = False  # this node hears nobody: members keep their states, and count as lost meanwhile
        self.judged_from = float("-inf")  # earlier silence means nothing: heartbeats were rarer then
        self._view: tuple[str, ...] | None = None

    @property
    def size(self) -> int:
        """The number of members alive or suspect, including this node; the rates of the cluster depend on it."""
        return len(self.ring)

    @property
    def fanout_interval_s(self) -> float:
        """How often (seconds) each node sends to all."""
        return max(self.heartbeat_interval_s, self.size**2 / FANOUT_DELIVERIES_S)

    @property
    def large(self) -> bool:
        """True if the cluster is so large that watchers judge members, instead of everybody."""
        return self.fanout_interval_s > self.heartbeat_interval_s

    def promised_s(self, member: Member) -> float:
        """A member's promised interval (seconds): it may see more members than we do."""
        return max(self.fanout_interval_s, min(member.freq, PROMISE_MAX_S))

    def hear(self, hostname: str, pid: int, incarnation: str, clock: int, now: float) -> Member | None:
        """Note a message of a member; None if its incarnation is no longer current."""
        member = self.members.get(hostname)
        if member is None or member.incarnation != incarnation:
            if not is_name(hostname, incarnation):
                return None
            older = member is not None and boot_count(incarnation) < boot_count(member.incarnation)
            if older and member is not None and member.state in (ALIVE, SUSPECT):
                return None  # late messages; those of a lost node may come from a node whose disk was set back
            if member is None and len(self.members) >= MEMBERS_MAX:
                return None
            if member is not None and member.state in (ALIVE, SUSPECT):
                self._move(member, "dead")  # its successor sends: it is gone
            member = self._meet(hostname, pid, incarnation, now)
        elif member.state != ALIVE:
            was = member.state
            self._move(member, "heard")
            if was == LOST and member.state == ALIVE:
                self.changes.append(("join", member))
        member.heard_at = self.heard_at = now
        member.clock = max(member.clock, clock)
        if self.isolated:
            self.isolate(False)
        return member

    def told(self, others: Iterable[PeerSummary], now: float, *, vouched: bool) -> None:
        """Take a peer's list of members. New members are added; lost ones return only if the peer has heard them
        itself.
        """
        own = host_of(self.self_name)
        for one in others:
            hostname, _, pid = one.name.rpartition(".")
            if hostname == own or not pid.isdecimal() or len(pid) > PID_DIGITS_MAX:
                continue
            if not is_name(hostname, one.incarnation):
                continue
            member = self.members.get(hostname)
            if member is not None and member.incarnation == one.incarnation:
                if not vouched:
                    continue
                if member.state == LOST:
                    self.changes.append(("join", member))
                self._move(member, "heard")
                member.heard_at = member.spoken_at = now
            elif member is None and len(self.members) < MEMBERS_MAX:
                member = self._meet(hostname, int(pid), one.incarnation, now)
                member.jobs_digest, member.tags = one.jobs_digest, one.tags
                member.ledger, member.pinned = one.ledger[:IDENTITY_LENGTH_MAX], one.pinned

    def roster(self) -> list[PeerSummary]:
        """The members that are alive, for a new node."""
        return [known_as(member) for member in self.members.values() if member.state == ALIVE]

    def named(self, name: str) -> Member | None:
        """The member with this full_hostname, if it is the current one of its hostname."""
        member = self.members.get(host_of(name))
        return member if member is not None and member.name == name else None

    def has_namesake(self, hostname: str, incarnation: str) -> bool:
        """True if another incarnation of that hostname is alive, as far as we know."""
        member = self.members.get(hostname)
        return member is not None and member.incarnation != incarnation and member.state in (ALIVE, SUSPECT)

    def update(self, member: Member, said: WorkerState) -> None:
        """Store a member's message about itself. A member that takes part after its good-bye is back.

        An older message that arrives later is ignored: it may be late, or replayed.
        """
        if said.clock < member.said_clock:
            return
        member.said_clock = said.clock
        if member.state == LEFT and said.clock > member.left_clock and said.state != "stopping":
            self._move(member, "speaks")
            self.changes.append(("join", member))
        member.freq = said.freq
        member.active = said.active
        member.loadavg = said.loadavg
        member.jobs_digest = said.jobs_digest
        member.ledger, member.pinned = said.ledger[:IDENTITY_LENGTH_MAX], said.pinned
        member.tags = said.tags
        member.says = said.state
        member.rules = said.rules
        member.failing = said.failing
        member.sw_ver = said.sw_ver
        member.spoken_at = member.heard_at

    def offline(self, member: Member, clock: int) -> None:
        """The member has said good-bye, with this stamp."""
        member.left_clock = clock
        self._move(member, "offline")

    def proof_of_death(self, name: str) -> bool:
        """A hint that nobody listens at this full_hostname any more; True if it changed the state."""
        member = self.named(name)
        if member is None or member.state not in (ALIVE, SUSPECT):
            return False
        self._move(member, "dead")
        return True

    def silent(self, member: Member) -> None:
        """Nobody has heard the suspect in time: it is lost."""
        self._move(member, "silent")

    def isolate(self, isolated: bool) -> None:
        """This node hears nobody, or hears somebody again: meanwhile it is alone in its own view."""
        self.isolated = isolated
        self._view = None

    def sweep(self, now: float) -> None:
        """Judge the silence of all members, in a small cluster, where everybody sends to all."""
        for member in list(self.members.values()):
            if member.state not in (ALIVE, SUSPECT):
                continue
            silent_s = now - max(member.heard_at, self.judged_from)
            promised_s = self.promised_s(member)
            if member.state == ALIVE and silent_s > SUSPECT_AFTER * promised_s:
                self._move(member, "silent")
            if member.state == SUSPECT and silent_s > LOST_AFTER * promised_s:
                self._move(member, "dead")

    def forget(self, now: float) -> None:
        """Drop members that have been gone for a long time."""
        for hostname, member in list(self.members.items()):
            if member.state in (LOST, LEFT) and now - member.heard_at > FORGET_AFTER_S:
                del self.members[hostname]

    def next_at(self) -> float:
        """When ``sweep`` finds the next silence too long."""
        at = float("inf")
        for member in self.members.values():
            patience = {ALIVE: SUSPECT_AFTER, SUSPECT: LOST_AFTER}.get(member.state)
            if patience is not None:
                at = min(at, max(member.heard_at, self.judged_from) + patience * self.promised_s(member))
        return at

    def view(self) -> tuple[str, ...]:
        """The full_hostnames of this node and of every member that is alive or suspect, sorted."""
        if self._view is None:
            names = [m.name for m in self.members.values() if m.state in (ALIVE, SUSPECT) and not self.isolated]
            names.append(self.self_name)
            self._view = tuple(sorted(names))
        return self._view

    def somebody_has(self, tags: set[str], only: str) -> bool:
        """True if a member that is not lost has these tags, and is the one that is asked for ("": any)."""
        return any(
            member.state in (ALIVE, SUSPECT) and tags <= set(member.tags) and only in ("", member.hostname)
            for member in self.members.values()
        )

    def count(self) -> dict[str, int]:
        """The numbers of members alive (including this node), suspect and lost."""
        counts = {ALIVE: 1, SUSPECT: 0, LOST: 0}
        for member in self.members.values():
            if member.state in counts:
                counts[LOST if self.isolated else member.state] += 1
        return counts

    def take_changes(self) -> list[tuple[str, Member]]:
        """(join | leave | lost, member) since the last call."""
        changes, self.changes = self.changes, []
        return changes

    def _meet(self, hostname: str, pid: int, incarnation: str, now: float) -> Member:
        member = self.members[hostname] = Member(hostname, pid, incarnation, now)
        self.ring.add(member.name)
        self._view = None
        self.changes.append(("join", member))
        return member

    def _move(self, member: Member, happened: str) -> None:
        state = MOVES.get((member.state, happened))
        if state is None or state == member.state:
            return
        member.state = state
        self._view = None
        if state in (LOST, LEFT):
            self.ring.discard(member.name)
            self.changes.append(("lost" if state == LOST else "leave", member))
        else:
            self.ring.add(member.name)


def known_as(member: Member) -> PeerSummary:
    """A member, in the form for other nodes."""
    return PeerSummary(member.name, member.incarnation, member.jobs_digest, member.tags, member.ledger, member.pinned)
