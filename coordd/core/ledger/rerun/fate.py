"""What becomes of each run of a re-run with children: a function of the plan and the rows, and of nothing else."""

from __future__ import annotations

from coordd.core.groups.expand import group_of, how_it_ended
from coordd.core.ledger.rerun.plan import FITS, Item, Runs
from coordd.core.ledger.rows import Row
from coordd.core.ledger.words import ABSENT, OPENED, PENDING, RETRY, REVOKED, TERMINAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.rows import Store

# What becomes of an item: it waits for its parents, is to be opened now, is open or was, or does not run.
WAITS, READY, BEGUN, LEFT = "waits", "ready", "begun", "left"

# At most this many characters of a row say which parents have opened it.
TOLD_MAX = 700


class Fate:
    """What becomes of an item, and why: ``because`` (what is waited for, or why it does not run), or ``parents``, the
    runs whose new ends open it, the last at ``ended_at``.
    """

    __slots__ = ("because", "ended_at", "parents", "word")

    def __init__(self, word: str, because: str = "", parents: tuple[str, ...] = (), ended_at: float = 0.0) -> None:
        self.word = word
        self.because = because
        self.parents = parents
        self.ended_at = ended_at


class Fates:
    """The fates of a plan's items, by run or group: ``of``. Its items are judged in its order, parents first.

    ``root``: the run that a person has run once more; ``mark``: how ``by`` of the runs ends that were opened for it.
    """

    __slots__ = ("_known", "_mark", "_root", "_store", "of")

    def __init__(self, store: Store, root: str, mark: str) -> None:
        self._store = store
        self._root = group_of(root)
        self._mark = mark
        self._known: dict[str, list[Row | None]] = {}
        self.of: dict[str, Fate] = {}

    def judge(self, item: Item) -> None:
        """What becomes of it."""
        fate = self._awaited(item)
        if fate.word == READY:
            own = [row for row in self._rows(item.runs) if row is not None]
            begun = [row for row in own if has_begun(row, self._mark, fate.ended_at)]
            stay = [row for row in own if row.state == REVOKED and row not in begun]
            if len(begun) + len(stay) == len(self._rows(item.runs)):
                left = "a person has revoked it" if not begun else ""
                fate = Fate(LEFT if left else BEGUN, left, fate.parents, fate.ended_at)
        self.of[item.runs.run] = fate

    def changed(self, item: Item) -> None:
        """One of its rows was written: it is judged again."""
        del self._known[item.runs.run]
        self.judge(item)

    def _rows(self, runs: Runs) -> list[Row | None]:
        if runs.run not in self._known:
            self._known[runs.run] = [self._store.run(run) for run in runs.rows()]
        return self._known[runs.run]

    def _awaited(self, item: Item) -> Fate:
        """READY once its parents have ended as they should, one of them in this re-run; WAITS or LEFT otherwise."""
        fits = FITS[item.on]
        newly: list[str] = []
        ended_at = 0.0
        enough = True
        for of_job in item.parents:
            came = again = False
            for runs in of_job:
                fate = self.of.get(runs.run)
                found = self._rows(runs)
                if (fate is not None and fate.word in (WAITS, READY)) or any(
                    row is not None and row.state not in TERMINAL for row in found
                ):
                    return Fate(WAITS, f"{runs.run} has not ended")
                there = [row for row in found if row is not None]
                whole = there if len(there) == len(found) else []
                state = how_it_ended([row.state for row in whole]) if whole else ""
                fitting = bool(state) and (fits is None or state in fits)
                came = came or fitting
                if runs.run == self._root or (fate is not None and fate.word == BEGUN):
                    again = True
                    if fitting:
                        newly.append(runs.run)
                        ended_at = max(ended_at, *[row.ended_at for row in there])
            own = self._rows(item.runs)
            ran = all(row is not None and not row.by.startswith(ABSENT) for row in own)
            # A parent that runs no more stands as it was: the child's earlier run had waited for it.
            enough = enough and (came or (ran and not again))
        if not newly:
            return Fate(LEFT, "its parents have not ended as they should")
        if not enough and not item.any:
            return Fate(LEFT, "not all of its parents have ended as they should")
        return Fate(READY, "", tuple(newly), ended_at)


def has_begun(row: Row, mark: str, ended_at: float) -> bool:
    """True if the run's present attempt is one of this re-run, or began after its parents' new ends, or is yet to.

    A run that is pending because its parents were absent is never granted: it ends as missed.
    """
    if row.by.startswith(OPENED) and row.by.endswith(mark):
        return True
    waits = row.state == RETRY or (row.state == PENDING and not row.by.startswith(ABSENT))
    return waits or (row.token != 0 and row.received_at >= ended_at)


def opened_by(parents: tuple[str, ...]) -> str:
    """Which runs have opened it, for its row."""
    text = OPENED
    for run in parents:
        if len(text) + len(run) > TOLD_MAX:
            break
        text += run if text == OPENED else f", {run}"
    return text
