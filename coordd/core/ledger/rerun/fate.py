"""What becomes of each run of a re-run with children: a function of the plan and the rows, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable

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


Rows = Callable[[Runs], list[Row | None]]


def judged(store: Store, root: str, items: list[Item], mark: str) -> dict[str, Fate]:
    """The fate of each item, by its run or group."""
    fates: dict[str, Fate] = {}
    known: dict[str, list[Row | None]] = {}

    def rows(runs: Runs) -> list[Row | None]:
        if runs.run not in known:
            known[runs.run] = [store.run(run) for run in runs.rows()]
        return known[runs.run]

    for item in items:
        fate = _awaited(item, group_of(root), fates, rows)
        if fate.word == READY:
            own = [row for row in rows(item.runs) if row is not None]
            begun = [row for row in own if has_begun(row, mark, fate.ended_at)]
            stay = [row for row in own if row.state == REVOKED and row not in begun]
            if len(begun) + len(stay) == len(item.runs.rows()):
                left = "a person has revoked it" if not begun else ""
                fate = Fate(LEFT if left else BEGUN, left, fate.parents, fate.ended_at)
        fates[item.runs.run] = fate
    return fates


def has_begun(row: Row, mark: str, ended_at: float) -> bool:
    """True if the run's present attempt is one of this re-run, or began after its parents' new ends, or is yet to."""
    if row.by.startswith(OPENED) and row.by.endswith(mark):
        return True
    return row.state in (PENDING, RETRY) or (row.token != 0 and row.received_at >= ended_at)


def opened_by(parents: tuple[str, ...]) -> str:
    """Which runs have opened it, for its row."""
    text = OPENED
    for run in parents:
        if len(text) + len(run) > TOLD_MAX:
            break
        text += run if text == OPENED else f", {run}"
    return text


def _awaited(item: Item, root: str, fates: dict[str, Fate], rows: Rows) -> Fate:
    """READY once its parents have ended as they should, one of them in this re-run; WAITS or LEFT otherwise."""
    fits = FITS[item.on]
    newly: list[str] = []
    ended_at = 0.0
    enough = True
    for of_job in item.parents:
        came = again = False
        for runs in of_job:
            fate = fates.get(runs.run)
            found = rows(runs)
            if (fate is not None and fate.word in (WAITS, READY)) or any(
                row is not None and row.state not in TERMINAL for row in found
            ):
                return Fate(WAITS, f"{runs.run} has not ended")
            there = [row for row in found if row is not None]
            whole = there if len(there) == len(found) else []
            state = how_it_ended([row.state for row in whole]) if whole else ""
            fitting = bool(state) and (fits is None or state in fits)
            came = came or fitting
            if runs.run == root or (fate is not None and fate.word == BEGUN):
                again = True
                if fitting:
                    newly.append(runs.run)
                    ended_at = max(ended_at, *[row.ended_at for row in there])
        own = rows(item.runs)
        ran = all(row is not None and not row.by.startswith(ABSENT) for row in own)
        # A parent that runs no more stands as it was: the child's earlier run had waited for it.
        enough = enough and (came or (ran and not again))
    if not newly:
        return Fate(LEFT, "its parents have not ended as they should")
    if not enough and not item.any:
        return Fate(LEFT, "not all of its parents have ended as they should")
    return Fate(READY, "", tuple(newly), ended_at)
