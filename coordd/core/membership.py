"""Who is there: alive, suspect, lost, left.

Liveness is measured on the receiver's own monotonic clock, never on the sender's timestamp; every message
counts as a heartbeat. A member being lost never makes an attempt lost: only the ledger does.
"""

from __future__ import annotations

from coordd.core.events import WorkerState

ALIVE = "alive"
SUSPECT = "suspect"
LOST = "lost"
LEFT = "left"

# Silence, in heartbeat intervals, after which a member is suspect, and lost.
SUSPECT_AFTER = 1.5
LOST_AFTER = 3.0

# Members that are gone are shown this long, and no more than so many of them are kept.
FORGET_AFTER_S = 3600.0
MEMBERS_MAX = 4096

# (state, what happened) -> state. What happened: heard (any message), offline, silent (suspect after),
# dead (lost after, or proof of death). The one place where a member's state changes: ``Membership._move``.
MOVES: dict[tuple[str, str], str] = {
    (ALIVE, "heard"): ALIVE,
    (SUSPECT, "heard"): ALIVE,
    (LOST, "heard"): ALIVE,
    (LEFT, "heard"): LEFT,  # the last words of an incarnation that said good-bye
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
        "active", "clock", "freq", "heard_at", "hostname", "incarnation", "jobs_digest",
        "loadavg", "name", "pid", "says", "state", "sw_ver", "tags",
    )  # fmt: skip

    def __init__(self, hostname: str, pid: int, incarnation: str, now: float) -> None:
        self.hostname = hostname
        self.pid = pid
        self.name = f"{hostname}.{pid}"
        self.incarnation = incarnation
        self.state = ALIVE
        self.heard_at = now
        self.clock = 0
        self.freq = 0.0
        self.active = 0
        self.loadavg: tuple[float, float, float] = (0.0, 0.0, 0.0)
        self.jobs_digest = ""
        self.tags: tuple[str, ...] = ()
        self.says = ""
        self.sw_ver = ""


def boot_count(incarnation: str) -> int:
    """The boot counter in front of an incarnation; -1 when there is none."""
    head = incarnation.partition("-")[0]
    return int(head) if head.isdigit() else -1


class Membership:
    """The other members, by hostname: at most one incarnation of each is current."""

    __slots__ = ("_view", "changes", "heartbeat_interval_s", "members", "self_name")

    def __init__(self, self_name: str, heartbeat_interval_s: float) -> None:
        self.self_name = self_name
        self.heartbeat_interval_s = heartbeat_interval_s
        self.members: dict[str, Member] = {}
        self.changes: list[tuple[str, Member]] = []  # (join | leave | lost, member), taken by the node
        self._view: tuple[str, ...] | None = None

    def hear(self, hostname: str, pid: int, incarnation: str, clock: int, now: float) -> Member | None:
        """Note a message of a member; None when it comes from an incarnation that is no longer current."""
        member = self.members.get(hostname)
        if member is None or member.incarnation != incarnation:
            older = member is not None and boot_count(incarnation) < boot_count(member.incarnation)
            if older and member is not None and member.state in (ALIVE, SUSPECT):
                return None  # last words; of one that is gone they may be a node whose disk was set back
            if member is None and len(self.members) >= MEMBERS_MAX:
                return None
            if member is not None and member.state in (ALIVE, SUSPECT):
                self._move(member, "dead")  # its successor speaks: it is gone
            member = self.members[hostname] = Member(hostname, pid, incarnation, now)
            self._view = None
            self.changes.append(("join", member))
        elif member.state != ALIVE:
            was = member.state
            self._move(member, "heard")
            if was == LOST and member.state == ALIVE:
                self.changes.append(("join", member))
        member.heard_at = now
        member.clock = max(member.clock, clock)
        return member

    def has_namesake(self, hostname: str, incarnation: str) -> bool:
        """Another incarnation of that hostname is alive, as far as we know."""
        member = self.members.get(hostname)
        return member is not None and member.incarnation != incarnation and member.state in (ALIVE, SUSPECT)

    def update(self, member: Member, said: WorkerState) -> None:
        """Take over what a member says of itself."""
        member.freq = said.freq
        member.active = said.active
        member.loadavg = said.loadavg
        member.jobs_digest = said.jobs_digest
        member.tags = said.tags
        member.says = said.state
        member.sw_ver = said.sw_ver

    def offline(self, member: Member) -> None:
        """The member has said good-bye."""
        self._move(member, "offline")

    def proof_of_death(self, name: str) -> bool:
        """A hint that nobody listens at this full_hostname any more; True when it changed anything."""
        for member in self.members.values():
            if member.name == name and member.state in (ALIVE, SUSPECT):
                self._move(member, "dead")
                return True
        return False

    def sweep(self, now: float) -> None:
        """Judge silence."""
        for hostname, member in list(self.members.items()):
            silent_s = now - member.heard_at
            if member.state == ALIVE and silent_s > SUSPECT_AFTER * self.heartbeat_interval_s:
                self._move(member, "silent")
            if member.state == SUSPECT and silent_s > LOST_AFTER * self.heartbeat_interval_s:
                self._move(member, "dead")
            elif member.state in (LOST, LEFT) and silent_s > FORGET_AFTER_S:
                del self.members[hostname]

    def next_at(self) -> float:
        """When silence must be judged next."""
        at = float("inf")
        interval = self.heartbeat_interval_s
        for member in self.members.values():
            if member.state == ALIVE:
                at = min(at, member.heard_at + SUSPECT_AFTER * interval)
            elif member.state == SUSPECT:
                at = min(at, member.heard_at + LOST_AFTER * interval)
        return at

    def view(self) -> tuple[str, ...]:
        """The full_hostnames of this node and of every member that is alive or suspect, sorted."""
        if self._view is None:
            names = [m.name for m in self.members.values() if m.state in (ALIVE, SUSPECT)]
            names.append(self.self_name)
            self._view = tuple(sorted(names))
        return self._view

    def count(self) -> dict[str, int]:
        """How many are alive (this node counted), suspect and lost."""
        counts = {ALIVE: 1, SUSPECT: 0, LOST: 0}
        for member in self.members.values():
            if member.state in counts:
                counts[member.state] += 1
        return counts

    def take_changes(self) -> list[tuple[str, Member]]:
        """(join | leave | lost, member) since the last call."""
        changes, self.changes = self.changes, []
        return changes

    def _move(self, member: Member, happened: str) -> None:
        state = MOVES.get((member.state, happened))
        if state is None or state == member.state:
            return
        member.state = state
        self._view = None
        if state in (LOST, LEFT):
            self.changes.append(("lost" if state == LOST else "leave", member))
