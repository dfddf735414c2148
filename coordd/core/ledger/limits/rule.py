"""A claim under limits: is a slot free, may another attempt start, may another run wait?

``Limiting`` is a part of the rules (rules.py). The limits come with the claim (text.py). A run that is limited has a
row, and waits. The runner loads this file before it starts a job, so text.py is imported where a claim needs it.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.fires import HELD_BY_OTHERS
from coordd.core.ledger.rows import OF_POOL, LedgerTime, Row, due_in
from coordd.core.ledger.steps import Life
from coordd.core.ledger.words import LIMITED, REJECTED, Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.rows import Store

# How soon (seconds) a node asks again for a slot.
LIMIT_RETRY_S = 1.0

# So many runs of a full queue are rejected by one claim.
DROPPED_MAX = 100


class Limiting(Life):
    """The limits of a claim. ``store`` is one transaction; ``now`` is the ledger's time."""

    def _limited(self, store: "Store", row: Row, said: str, now: LedgerTime) -> "Answer | None":
        """The answer to a claim that a limit stops; None if none does."""
        full = self._full(store, row, said, now)
        if full is None:
            return None
        why, in_s = full
        ahead_s = due_in(row, now)
        if ahead_s > 0:  # claimed ahead: by then it may be free, and it is checked only then
            return Answer(LIMITED, by=why, in_s=max(ahead_s, in_s))
        return self._waits(store, row, why, in_s)

    def _was_held_up(self, store: "Store", row: Row, now: LedgerTime) -> str:
        """What held up a run that is missed; a limit too."""
        held = super()._was_held_up(store, row, now)
        full = self._full(store, row, Policy.unpack(row.policy).limits, now) if not held else None
        return HELD_BY_OTHERS + full[0] if full is not None else held

    def _full(self, store: "Store", row: Row, said: str, now: LedgerTime) -> "tuple[str, float] | None":
        """Which limit stops the run now, and for how long (seconds) nobody need ask again; None if none does."""
        if not said:
            return None
        from coordd.core.ledger.limits import text as limits

        for key, slots in limits.slots(said):
            size = self._size_of(store, key, slots, now)
            taken = sum(1 for other in store.slot_holders(key) if other.run != row.run)
            if taken >= size:
                return f"{_named(key)}: {taken} of {size} run", LIMIT_RETRY_S
        at = max(now.wall, row.not_before)
        for key, count, period_s in limits.rates(said):
            starts = store.starts(key, at - period_s)
            if len(starts) >= count:
                in_s = starts[-count] + period_s - at if count else LIMIT_RETRY_S
                return f"rate: {len(starts)} started within {period_s} s", max(in_s, 0.0)
        return None

    def _size_of(self, store: "Store", key: str, said: int, now: LedgerTime) -> int:
        """How many slots there are under that key: as the claim says, or, for a pool, as a person says."""
        from coordd.core.ledger.limits.text import POOL, is_number

        if not key.startswith(POOL):
            return said
        hold = self._hold(store, OF_POOL + key[len(POOL) :], now)
        return int(hold.note) if hold is not None and is_number(hold.note) else said

    def _waits(self, store: "Store", row: Row, why: str, in_s: float) -> Answer:
        """A claim that comes too early for the run's turn: it gets a row."""
        if store.run(row.run) is None:
            store.put_run(row)  # it waits where people and the sweep can see it
        return Answer(LIMITED, by=why, in_s=in_s)

    def _started(self, store: "Store", row: Row, said: str, now: LedgerTime) -> None:
        """Count this grant in its rates."""
        if not said:
            return
        from coordd.core.ledger.limits import text as limits

        at = max(now.wall, row.not_before)
        for key, _, period_s in limits.rates(said):
            store.put_start(key, f"{row.run}/{row.attempt}", at, now.wall - period_s)

    def _overfull(self, store: "Store", row: Row, said: str, now: LedgerTime) -> bool:
        """Reject what does not fit into the job's queue; True if it was this run. A run that is not due may wait."""
        if due_in(row, now) > 0:
            return False
        from coordd.core.ledger.limits.text import queue

        size, keep = queue(said)
        if keep == "last" and size > 0:
            for _ in range(DROPPED_MAX):
                first = store.first_waiting(row.job)
                if first is None or store.waiting_before(row.job, row.not_before, row.run) < size:
                    return False
                self._end(store, first, REJECTED, f"the queue is full: {size} wait, and the last are kept", now)
            return False
        if store.waiting_before(row.job, row.not_before, row.run) < size:
            return False
        self._end(store, row, REJECTED, f"the queue is full: {size} wait before it", now)
        return True


def _named(key: str) -> str:
    """A key as people know it: ``pool heavy``, ``concurrency``."""
    kind, _, name = key.partition("/")
    if kind == "pool":
        return f"pool {name}"
    return "concurrency"
