"""`make mutants-lua`: change the ledger's scripts line by line; the contract tests must notice each change.

make mutants-lua                        every line
make mutants-lua ARGS="--only claim"    changes whose file or line contains this text
make mutants-lua ARGS="--quick"         without the tests on real servers, which take ten seconds per change
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.util

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from lua_mutants import notice, tracing
from lua_mutants.conversation import Interview
from lua_mutants.edits import Edit, edits

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)

# Each process of the pool has these objects.
ASKS: Interview
EXPLANATIONS: dict[str, str]
QUICK: bool

# The possible results of a change.
INVALID = "invalid"
STEPPED = "kept conversation"
REAL = "real servers"
EXPLAINED = "survives, explained"
SURVIVES = "SURVIVES"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants-lua", description=__doc__)
    parser.add_argument("--only", default="", help="changes whose name has this in it")
    parser.add_argument("--quick", action="store_true", help="only by the kept conversation")
    chosen = parser.parse_args()
    console = Console()
    try:
        with console.status("running the contract tests with the true scripts …"):
            asks = notice.interview(notice.record())
        with console.status("noting which lines each test executes …"):
            asks.trace()
        asks.close()
    except notice.MissingError as exc:
        console.print(str(exc), style="red", markup=False)
        return 1
    every = edits()
    wanted = [edit for edit in every if chosen.only in edit.name]
    explained = notice.known_survivors()
    ends: dict[str, list[tuple[Edit, str]]] = {}
    with (
        multiprocessing.Pool(initializer=begin, initargs=(asks, explained, chosen.quick)) as pool,
        Progress(*COLUMNS, console=console) as progress,
    ):
        task = progress.add_task("changes", total=len(wanted))
        for edit, end, said in pool.imap_unordered(look, wanted):
            ends.setdefault(end, []).append((edit, said))
            progress.update(task, advance=1)
    table = Table("noticed by", "changes", title="make mutants-lua")
    for end in (STEPPED, REAL, EXPLAINED, SURVIVES, INVALID):
        table.add_row(end, f"{len(ends.get(end, ())):,}")
    console.print(table)
    for edit, _ in ends.get(SURVIVES, ()):
        console.print(edit.name, style="red", markup=False, soft_wrap=True)
    names = {edit.name for edit in every}
    stale = [name for name in explained if name not in names]
    noticed = {edit.name for end in (STEPPED, REAL) for edit, _ in ends.get(end, ())}
    stale += [name for name in explained if name in noticed]
    for name in stale:
        console.print(f"{notice.SURVIVORS.name}: no survivor any more: {name}", style="yellow", markup=False)
    return int(bool(ends.get(SURVIVES)) or bool(stale))


def begin(asks: Interview, explained: dict[str, str], quick: bool) -> None:
    """Each process starts a private Redis when it first asks."""
    global ASKS, EXPLANATIONS, QUICK  # each process of a pool gets these values here
    ASKS, EXPLANATIONS, QUICK = asks, explained, quick
    multiprocessing.util.Finalize(None, ASKS.close, exitpriority=10)


def look(edit: Edit) -> tuple[Edit, str, str]:
    """The result of one change, and the reason for it."""
    said = ASKS.noticed(edit.rewrite(), tracing.line_of(edit))
    if said.startswith(INVALID):
        return edit, INVALID, said
    if said:
        return edit, STEPPED, said
    if edit.name in EXPLANATIONS and QUICK:
        return edit, EXPLAINED, EXPLANATIONS[edit.name]
    said = "" if QUICK else notice.by_real_servers(edit)
    if said:
        return edit, REAL, said
    return edit, EXPLAINED if edit.name in EXPLANATIONS else SURVIVES, EXPLANATIONS.get(edit.name, "")
