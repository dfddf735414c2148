"""`make sim` and `make mutants`: many worlds at once, one world with its transcript, or broken rules.

make sim SEEDS=5000        explore
make sim SEED=7            replay one world and print what happened in it
make mutants               break each safety rule; print the seed that notices
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from itertools import islice
from typing import Any

import mutants
import simulator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

CHUNK = 25
MUTANT_SEEDS_MAX = 20_000


def explore(seeds: range) -> dict[str, Any]:
    """Run some worlds; returns counts and the first violations."""
    total: dict[str, Any] = {
        "worlds": 0, "events": 0, "takeovers": 0, "launches": 0, "faults": Counter(), "failed": [],
        "unwitnessed": Counter(), "forgotten": Counter(), "setbacks": 0,
    }  # fmt: skip
    for seed in seeds:
        try:
            world = simulator.run(seed)
        except simulator.Violation as exc:
            world = exc.world  # type: ignore[attr-defined]
            total["failed"].append((seed, str(exc)))
        total["worlds"] += 1
        total["events"] += world.events
        total["takeovers"] += world.takeovers
        total["launches"] += len(world.children)
        total["setbacks"] += len(world.server.setbacks)
        total["unwitnessed"] += world.judge.unwitnessed
        total["forgotten"] += world.judge.forgotten
        for fault in world.fault_log:
            total["faults"][fault] += 1
    return total


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="one world, with its transcript")
    parser.add_argument("--seeds", type=int, default=2000, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--mutants", action="store_true", help="break each rule in turn")
    chosen = parser.parse_args()
    console = Console()
    if chosen.mutants:
        return break_rules(console)
    if chosen.seed is not None:
        return replay(chosen.seed, console)
    return many(range(chosen.first, chosen.first + chosen.seeds), console)


def replay(seed: int, console: Console) -> int:
    """One world, told line by line."""
    try:
        world, verdict = simulator.run(seed, trace=True), "every property holds"
    except simulator.Violation as exc:
        world, verdict = exc.world, f"VIOLATION {exc}"  # type: ignore[attr-defined]
    for line in world.trace or []:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"seed {seed}: {len(world.hosts)} nodes, {world.events} events, "
        f"faults {', '.join(sorted(world.faults)) or 'none'}"
    )
    console.print(verdict, style="bold red" if verdict.startswith("VIOLATION") else "bold green")
    return int(verdict.startswith("VIOLATION"))


def many(seeds: range, console: Console) -> int:
    """All worlds of a range, on every core."""
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    sums: dict[str, Any] = {"worlds": 0, "events": 0, "takeovers": 0, "launches": 0, "setbacks": 0}
    unwitnessed: Counter[str] = Counter()
    forgotten: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    failed: list[tuple[int, str]] = []
    started = time.monotonic()
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with multiprocessing.Pool() as pool, Progress(*columns, console=console) as progress:
        task = progress.add_task("worlds", total=len(seeds))
        for part in pool.imap_unordered(explore, chunks):
            for key in sums:
                sums[key] += part[key]
            faults.update(part["faults"])
            unwitnessed += part["unwitnessed"]
            forgotten += part["forgotten"]
            failed += part["failed"]
            progress.update(task, advance=part["worlds"])
    seconds = time.monotonic() - started
    table = Table("fault", "worlds in which it struck", title=f"seeds {seeds.start} … {seeds.stop - 1}")
    for fault, count in faults.most_common():
        table.add_row(fault, f"{count} ({100 * count / len(seeds):.0f} %)")
    console.print(table)
    console.print(
        f"{sums['worlds']} worlds, {sums['events']} events ({sums['events'] / seconds:,.0f} a second on "
        f"{multiprocessing.cpu_count()} cores), {sums['launches']} launches, {sums['takeovers']} takeovers"
    )
    console.print(
        f"the ledger went back {sums['setbacks']} times; launched again, since nobody could tell it: "
        f"{unwitnessed.total()} ({told(unwitnessed)}); forgotten without a row: {told(forgotten)}"
    )
    for seed, verdict in sorted(failed)[:20]:
        console.print(f"make sim SEED={seed}   {verdict}", style="red", markup=False)
    console.print(f"{len(failed)} violations", style="bold red" if failed else "bold green")
    return int(bool(failed))


def told(counts: Counter[str]) -> str:
    """Counts as a sentence."""
    return ", ".join(f"{what}: {count}" for what, count in counts.most_common()) or "none"


def break_rules(console: Console) -> int:
    """Each mutant until a seed notices it."""
    table = Table("rule broken", "seed", "seeds needed", "what the simulator said")
    survived = 0
    for mutant in mutants.MUTANTS:
        found = next(islice(find(mutant, MUTANT_SEEDS_MAX), 1), None)
        survived += found is None
        seed, said = found or (None, "NOT NOTICED")
        table.add_row(mutant.name, str(seed), "-" if seed is None else str(seed + 1), said)
        console.print(f"{mutant.name}: {'seed ' + str(seed) if found else 'not noticed'}")
    console.print(table)
    return int(bool(survived))


def find(mutant: mutants.Mutant, most: int) -> Any:
    """The seeds (and verdicts) that notice a mutant, in order."""
    with mutant.patch():
        for seed in range(most):
            try:
                simulator.run(seed, faults=mutant.faults, forgets=mutant.forgets)
            except simulator.Violation as exc:
                yield seed, str(exc)


if __name__ == "__main__":
    sys.exit(main())
