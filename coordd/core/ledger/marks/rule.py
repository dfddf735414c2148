"""The early end of a quarantine: a ledger that went back shows that it lost no grant (docs/protocol.md, *marks*).

What a server still has when it comes back is a beginning of what it had written. The ledger counts its grants, and each
answer says the count. A node's *mark* is the highest count that it was told by one life of the ledger. If no mark of
those that could claim is above the count that the next life began with, no grant is lost.

Only a ledger that can go back has an epoch, so a SQLite ledger keeps none of this.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.rows import LedgerTime
from coordd.core.ledger.words import NEWCOMER_S, OK, RECOVERING, STALE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.requests import Vouch
    from coordd.core.ledger.rows import Store
    from coordd.core.ledger.runner_requests import Grant

# Names of values in the ledger's ``meta``.
LIFE = "life"  # the epoch of the present life
OPEN_AT = "open_at"  # when its whole quarantine is over
GRANTS = "grants"  # the number of grants so far
CALLED_AT = "called_at"  # when a member called last
FOUNDING = "founding"  # until when a node that is registered may claim at once; "": it is over
MEMBERS = "members"  # of each: host, from when on it may claim, when it called last, its silence; a line each
VOUCHING = "vouching"  # Kept, as text

# A member that has been silent for this long (seconds) is forgotten when another one is registered.
FORGOTTEN_S = 86400.0


class Member:
    """A node that calls the ledger: from when on it may claim, when it called last, and how long it may be silent."""

    __slots__ = ("claims_at", "seen_at", "silence_s")

    def __init__(self, claims_at: float, seen_at: float, silence_s: float) -> None:
        self.claims_at = claims_at
        self.seen_at = seen_at
        self.silence_s = silence_s

    def is_there(self, at: float, more_s: float = 0.0) -> bool:
        """True if it has not been silent for longer than its silence and ``more_s``."""
        return at - self.seen_at <= self.silence_s + more_s


class Kept:
    """What life ``life`` had when it went back: its last call was at ``at``, and it had made ``grants`` grants.

    ``awaited``: the hosts that have not vouched yet. Once there is none, no grant is lost.
    """

    __slots__ = ("at", "awaited", "grants", "life")

    def __init__(self, at: float, life: str, grants: int, awaited: "list[str]") -> None:
        self.at = at
        self.life = life
        self.grants = grants
        self.awaited = awaited

    def pack(self, epoch: str) -> str:
        """As text, for the life ``epoch``."""
        return " ".join((epoch, repr(self.at), self.life, str(self.grants), *self.awaited))


class Marking:
    """The rules. ``store`` is one transaction; ``now`` is the ledger's time."""

    def _lived(self, store: "Store", now: LedgerTime) -> LedgerTime:
        """Before each operation: notes that the ledger went back. Returns its time, without a quarantine that has ended
        early.
        """
        before = store.meta(LIFE)
        if before != now.epoch:
            kept = self._went_back(store, before, now)
            store.put_meta(LIFE, now.epoch)
            store.put_meta(OPEN_AT, repr(now.wall + now.recovering_s))
            store.put_meta(VOUCHING, kept.pack(now.epoch) if kept is not None else "")
        kept = self._kept(store, now)
        if kept is None or kept.awaited or now.recovering_s <= 0:
            return now
        return LedgerTime(now.wall, now.lease, now.boot, 0.0, now.epoch, whole_s=now.whole_s)

    def _went_back(self, store: "Store", before: str, now: LedgerTime) -> "Kept | None":
        """What the life before this one had; None if its loss cannot be told from marks."""
        at = float(store.meta(CALLED_AT) or 0.0)
        there = [host for host, one in sorted(self._members(store).items()) if one.is_there(at)]
        is_telling = (
            before != ""
            and not now.replicated
            and not store.meta(FOUNDING)
            and float(store.meta(OPEN_AT) or 0.0) <= at <= now.wall <= at + NEWCOMER_S
        )
        return Kept(at, before, self._grants(store), there) if is_telling and there else None

    def _kept(self, store: "Store", now: LedgerTime) -> "Kept | None":
        """What the marks are compared with in this life; None if it keeps its whole quarantine."""
        epoch, *rest = store.meta(VOUCHING).split(" ")
        if epoch != now.epoch or not rest:
            return None
        at, life, grants, *awaited = rest
        return Kept(float(at), life, int(grants), awaited)

    def _grants(self, store: "Store") -> int:
        return int(store.meta(GRANTS) or 0)

    def _counted(self, store: "Store", now: LedgerTime) -> None:
        """One more grant."""
        if now.epoch:
            store.put_meta(GRANTS, str(self._grants(store) + 1))

    # ---- members

    def _members(self, store: "Store") -> "dict[str, Member]":
        lines = [line.split(" ") for line in store.meta(MEMBERS).splitlines()]
        return {host: Member(float(claims_at), float(seen), float(silence)) for host, claims_at, seen, silence in lines}

    def _called(self, store: "Store", host: str, silence_s: float, now: LedgerTime) -> None:
        """A node sweeps: it is registered with its first call, and again after a silence.

        A newcomer does not claim for NEWCOMER_S: if its registration is lost, so old a beginning ends no quarantine.
        Where nobody was there before, all may claim at once for that time, and what is kept of it ends none either.
        """
        members = self._members(store)
        founding = min(float(store.meta(FOUNDING) or 0.0), now.wall + NEWCOMER_S)  # the clock may be set back
        if now.wall >= founding:
            founding = 0.0
        known = members.get(host)
        if known is not None and known.is_there(now.wall):
            claims_at = min(known.claims_at, now.wall + NEWCOMER_S)
        else:
            if not any(one.is_there(now.wall, NEWCOMER_S) for one in members.values()):
                founding = now.wall + NEWCOMER_S
            claims_at = now.wall if founding else now.wall + NEWCOMER_S
            members = {name: one for name, one in members.items() if one.is_there(now.wall, FORGOTTEN_S)}
        members[host] = Member(claims_at, now.wall, silence_s)
        lines = [f"{name} {one.claims_at!r} {one.seen_at!r} {one.silence_s!r}" for name, one in members.items()]
        store.put_meta(MEMBERS, "\n".join(lines))
        store.put_meta(FOUNDING, repr(founding) if founding else "")
        store.put_meta(CALLED_AT, repr(now.wall))

    def _newcomer_s(self, store: "Store", host: str, now: LedgerTime) -> float:
        """How long this node may not claim yet. A ledger that no node sweeps has no members: nobody waits."""
        members = self._members(store) if now.epoch else {}
        known = members.get(host)
        if known is None or not known.is_there(now.wall):
            return NEWCOMER_S if members else 0.0
        return min(NEWCOMER_S, max(0.0, known.claims_at - now.wall))

    # ---- the early end

    def vouch(self, store: "Store", said: "Vouch", now: LedgerTime) -> Answer:
        """A node has restored what it knows, and says its mark.

        ok: there is no quarantine any more; recovering: others are awaited; stale: it lasts its whole time. A node
        without a mark of the life before says nothing.
        """
        if now.recovering_s <= 0:
            return Answer(OK)
        kept = self._kept(store, now)
        if kept is not None and said.life:
            if said.life != kept.life or said.grants > kept.grants:
                kept = None
            elif said.host in kept.awaited:
                kept.awaited.remove(said.host)
            store.put_meta(VOUCHING, kept.pack(now.epoch) if kept is not None else "")
        if kept is None:
            return Answer(STALE, left_s=now.recovering_s)
        if not kept.awaited:
            return Answer(OK)
        return Answer(RECOVERING, left_s=now.recovering_s, in_s=now.recovering_s)

    def _shows_loss(self, store: "Store", grant: "Grant", now: LedgerTime) -> None:
        """A grant that the ledger does not know. If it is later than what the ledger has kept, the quarantine lasts its
        whole time, even if it had ended early.
        """
        kept = self._kept(store, now) if now.whole_s > 0 else None
        if kept is not None and grant.token > kept.at * 1e6:
            store.put_meta(VOUCHING, "")
