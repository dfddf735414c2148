"""`make sim` and `make mutants`: many worlds at once, one world with its transcript, or broken rules.

make sim SEEDS=5000        explore
make sim HOURS=8           explore for eight hours
make sim SEED=7            replay one world and print what happened in it
make mutants               break each safety rule; print the seed that notices
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import multiprocessing
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from support import servers

import simulator
from simulator import mutants, shrink
from simulator.judging import excuses
from simulator.mutants.mutant import Mutant
from simulator.plan import UNHEARD, Plan, draw, unheard

ROOT = Path(__file__).resolve().parents[2]
CHUNK = 25
AHEAD = 2 * multiprocessing.cpu_count()  # chunks that wait for a process
MUTANT_SEEDS_MAX = 20_000
MORE_SEEDS_MAX = 500

# Seeds that have failed once, one on each line; tests/simulator/tests/test_worlds.py always runs them.
PAST = Path(__file__).with_name("tests") / "past.txt"

# Which of its worlds noticed each mutant when `make mutants` ran last: "NUMBER NAME" in a line. The tests begin there.
NOTICED = Path(__file__).with_name("tests") / "noticed.txt"
FIGURES = ROOT / "artifacts" / "sim"

# Maximum number of listed failures: more would be repetitions.
SHOWN_MAX = 20

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)


@dataclass
class Sums:
    """The counts of some worlds."""

    worlds: int = 0
    events: list[int] = field(default_factory=list)  # of each world
    runs: list[int] = field(default_factory=list)
    strikes: list[int] = field(default_factory=list)  # faults of the plan that struck
    nodes: Counter[int] = field(default_factory=Counter)
    launches: int = 0
    takeovers: int = 0
    setbacks: int = 0
    scripted: int = 0  # worlds on the real scripts of the Redis ledger
    struck: Counter[str] = field(default_factory=Counter)  # fault -> how often
    worlds_with: Counter[str] = field(default_factory=Counter)  # fault -> in how many worlds
    launches_with: Counter[str] = field(default_factory=Counter)
    failures_with: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    transitions: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)  # by the excuse's name, as far as it is counted
    kinds: Counter[str] = field(default_factory=Counter)  # worlds by their kind
    failed: list[tuple[int, str]] = field(default_factory=list)

    def take(self, world: simulator.World, verdict: str) -> None:
        """Count one more world."""
        self.worlds += 1
        self.events.append(world.events)
        self.runs.append(len(world.runs()))
        self.strikes.append(world.struck)
        self.nodes[world.plan.nodes] += 1
        self.launches += len(world.children)
        self.takeovers += world.takeovers
        self.setbacks += len(world.server.setbacks)
        self.struck += world.fault_log
        for fault in world.fault_log:
            self.worlds_with[fault] += 1
            self.launches_with[fault] += len(world.children)
            self.failures_with[fault] += bool(verdict)
        self.acts += world.acts
        self.answers += world.answers
        self.transitions.update(f"{was or '-'} > {is_}" for was, is_ in world.judge.transitions)
        self.excused += excuses.counted(world.judge.excused)
        self.scripted += world.server.scripts is not None
        self.kinds[excuses.FORGETFUL if world.plan.forgets else excuses.KEEPING] += 1
        if verdict:
            self.failed.append((world.plan.seed, verdict))

    def add(self, other: Sums) -> None:
        """Add the counts of another process."""
        for name, value in vars(other).items():
            if isinstance(value, list):
                getattr(self, name).extend(value)
            elif isinstance(value, Counter):
                getattr(self, name).update(value)
            else:
                setattr(self, name, getattr(self, name) + value)


def explore(seeds: range, redis_url: str = "") -> Sums:
    """Run some worlds. If there is a Redis server, the worlds that are drawn for it run its scripts."""
    sums = Sums()
    gc.disable()  # a world's objects live as long as it: to search them again and again takes a tenth of its time
    gc.freeze()
    for seed in seeds:
        verdict = ""
        try:
            world = simulator.run(seed, redis_url=redis_url)
        except simulator.Violation as exc:
            world, verdict = exc.world, str(exc)  # type: ignore[attr-defined]  # world: set where it was raised
        sums.take(world, verdict)
        del world
        gc.collect()
    gc.enable()
    return sums


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="one world, with its transcript")
    parser.add_argument("--seeds", type=int, default=2000, help="how many worlds")
    parser.add_argument("--hours", type=float, help="as many worlds as there is time for")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--no-scripts", action="store_true", help="no world on the scripts of a private Redis")
    parser.add_argument("--mutants", action="store_true", help="break each rule in turn")
    parser.add_argument("--only", default="", help="mutants whose name has this in it")
    parser.add_argument("--stale", action="store_true", help="mutants that their kept world does not notice any more")
    chosen = parser.parse_args()
    console = Console()
    if chosen.mutants:
        return break_rules(console, chosen.only, stale=chosen.stale)
    if chosen.seed is not None:
        return replay(chosen.seed, console)
    return many(chosen.first, chosen.seeds, chosen.hours, console, scripts=not chosen.no_scripts)


def replay(seed: int, console: Console) -> int:
    """Run one world, and print what happened in it line by line. Returns the exit code."""
    try:
        world, verdict = simulator.run(seed, trace=True), "every property holds"
    except simulator.Violation as exc:
        world, verdict = exc.world, f"VIOLATION {exc}"  # type: ignore[attr-defined]  # world: set where it was raised
    for line in world.trace or []:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"seed {seed}: {len(world.hosts)} nodes, {world.events} events, "
        f"faults {', '.join(sorted(world.plan.faults)) or 'none'}"
    )
    console.print(verdict, style="bold red" if verdict.startswith("VIOLATION") else "bold green")
    return int(verdict.startswith("VIOLATION"))


def many(first: int, seeds: int, hours: float | None, console: Console, *, scripts: bool = True) -> int:
    """Run all worlds of a range, on every core. With ``hours``: all worlds that there is time for.

    ``scripts``: a tenth of the worlds run on the real scripts of the Redis ledger. They take as long as all others.
    """
    until = time.monotonic() + hours * 3600 if hours else float("inf")
    sums = Sums()
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        redis_url = stack.enter_context(servers.redis(appendonly="no")).url if scripts else ""
        pool = stack.enter_context(multiprocessing.Pool())
        progress = stack.enter_context(Progress(*COLUMNS, console=console))
        task = progress.add_task("worlds", total=None if hours else seeds)
        work = functools.partial(explore, redis_url=redis_url)
        for part in pool.imap_unordered(work, chunks(first, None if hours else seeds, until, sums)):
            sums.add(part)
            progress.update(task, advance=part.worlds)
    seconds = time.monotonic() - started
    show(sums, first, seconds, console)
    FIGURES.mkdir(parents=True, exist_ok=True)
    path = FIGURES / f"{first}-{first + sums.worlds - 1}.json"
    path.write_text(json.dumps(figures(sums, first, seconds), indent=1) + "\n")
    console.print(f"figures: {path.relative_to(ROOT)}")
    if sums.failed:
        remember(sums.failed)
        tell(min(sums.failed), console)
    too_often = excuses.exceeded(sums.excused, sums.kinds)
    told = f"{len(sums.failed)} violations, {len(too_often)} budgets of excuses exceeded"
    console.print(told, style="bold red" if sums.failed or too_often else "bold green")
    return int(bool(sums.failed or too_often))


def chunks(first: int, seeds: int | None, until: float, sums: Sums) -> Iterator[range]:
    """Ranges of seeds, until there are enough or the time is over.

    The pool would take all ranges at once, so this waits while many chunks are not done.
    """
    at = first
    while (seeds is None or at < first + seeds) and time.monotonic() < until:
        if at - first - sums.worlds > AHEAD * CHUNK:
            time.sleep(0.05)
            continue
        end = at + CHUNK if seeds is None else min(at + CHUNK, first + seeds)
        yield range(at, end)
        at = end


def figures(sums: Sums, first: int, seconds: float) -> dict[str, Any]:
    """The record of an exploration, for the JSON file."""
    plain = {name: value for name, value in vars(sums).items() if name not in ("events", "runs", "strikes", "failed")}
    return {
        "first": first,
        "seconds": round(seconds),
        "cores": multiprocessing.cpu_count(),
        "events": sum(sums.events),
        "events_per_second": round(sum(sums.events) / seconds),
        "least_and_median": {
            name: [min(of), statistics.median(of)]
            for name, of in (("events", sums.events), ("runs", sums.runs), ("faults", sums.strikes))
        },
        "violations": [f"{seed}: {verdict}" for seed, verdict in sorted(sums.failed)],
        **{name: dict(value) if isinstance(value, Counter) else value for name, value in plain.items()},
    }


def show(sums: Sums, first: int, seconds: float, console: Console) -> None:
    """Print the tables that people look at."""
    table = Table(
        "fault",
        "struck",
        "worlds",
        "of all",
        "launches in them",
        "violations in them",
        title=f"seeds {first} … {first + sums.worlds - 1}",
    )
    for fault, worlds in sums.worlds_with.most_common():
        table.add_row(
            fault,
            f"{sums.struck[fault]:,}",
            f"{worlds:,}",
            f"{100 * worlds / sums.worlds:.1f} %",
            f"{sums.launches_with[fault]:,}",
            str(sums.failures_with[fault]),
        )
    console.print(table)
    events = sum(sums.events)
    console.print(
        f"{sums.worlds:,} worlds, {events:,} events ({events / seconds:,.0f} a second on "
        f"{multiprocessing.cpu_count()} cores), {sums.launches:,} launches, {sums.takeovers:,} takeovers"
    )
    for what, of in (("events", sums.events), ("runs", sums.runs), ("faults", sums.strikes)):
        console.print(f"{what} in a world: at least {min(of)}, median {statistics.median(of):.0f}")
    console.print(f"nodes: {told(sums.nodes)}; people: {told(sums.acts)}")
    console.print(f"answers of the ledger: {told(sums.answers)}")
    console.print(f"steps of a run's life: {told(sums.transitions)}")
    console.print(
        f"{sums.scripted:,} worlds on Redis's scripts; the ledger went back {sums.setbacks:,} times; "
        f"worlds with {told(sums.kinds)}; excused: {told(sums.excused)}"
    )
    for verdict in excuses.exceeded(sums.excused, sums.kinds):
        console.print(verdict, style="red", markup=False)
    for seed, verdict in sorted(sums.failed)[:SHOWN_MAX]:
        console.print(f"make sim SEED={seed}   {verdict}", style="red", markup=False)


def told(counts: Counter[Any]) -> str:
    """Counts as a sentence."""
    return ", ".join(f"{what}: {count:,}" for what, count in counts.most_common()) or "none"


def remember(failed: list[tuple[int, str]]) -> None:
    """Keep the seeds of failures in PAST."""
    known = PAST.read_text()
    with PAST.open("a") as file:
        for seed, verdict in sorted(failed)[:SHOWN_MAX]:
            if f"\n{seed} " not in known:
                file.write(f"{seed} {verdict}\n")


def tell(failure: tuple[int, str], console: Console) -> None:
    """Make the plan of the first failure small, and print its world for a person to read."""
    seed, verdict = failure
    if not shrink.broken(draw(seed)):
        console.print(f'seed {seed} fails on Redis\'s scripts alone: make sim ARGS="--first {seed} --seeds 1"')
        return
    with console.status(f"making seed {seed} smaller …") as status:
        plan = shrink.shrink(
            seed, tried=lambda tries, left: status.update(f"seed {seed}: {tries} tries, {left} parts left")
        )
    try:
        world = simulator.live(plan, trace=True)
    except simulator.Violation as exc:
        world, verdict = exc.world, str(exc)  # type: ignore[attr-defined]  # world: set where it was raised
    console.rule(f"seed {seed}, as small as it gets")
    for line in shrink.telling(world.trace or [], verdict):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    left_out = sorted(plan.without, key=lambda label: (not label.isdigit(), int(label) if label.isdigit() else 0))
    console.print(f"left out of its plan: {' '.join(left_out)}", style="dim", soft_wrap=True)


def break_rules(console: Console, only: str, *, stale: bool = False) -> int:
    """Run seeds with each mutant until a seed notices it. Returns 1 if a mutant is not noticed.

    ``stale``: only the mutants that the world in NOTICED does not notice any more. A change of the core moves some.
    """
    chosen = [number for number, mutant in enumerate(mutants.MUTANTS) if only in mutant.name]
    table = Table("rule broken", "rule", "seeds needed", "what the simulator said", title="make mutants")
    found: dict[str, Any] = {}
    with multiprocessing.Pool() as pool, Progress(*COLUMNS, console=console) as progress:
        if stale:
            kept = pool.map(is_noticed, chosen, chunksize=1)
            chosen = [number for number, yes in zip(chosen, kept, strict=True) if not yes]
        task = progress.add_task("mutants", total=len(chosen))
        for number, needed, said in pool.imap(notice, chosen):
            mutant = mutants.MUTANTS[number]
            seeds = f"{needed:,}" if said else f"[bold red]not in {needed:,}"
            other = bool(said) and said.split()[0] not in mutant.caught_as.split()  # X: it is broken itself
            told = f"[bold red]expected {mutant.caught_as}:[/] {said}" if other else said
            table.add_row(mutant.name, mutant.rule, seeds, told or "[bold red]NOT NOTICED")
            found[mutant.name] = {"rule": mutant.rule, "seeds": needed, "said": "" if other else said}
            progress.update(task, advance=1)
    console.print(table)
    killed = [one["seeds"] for one in found.values() if one["said"]]
    console.print(f"{len(killed)} of {len(chosen)} noticed, median {statistics.median(killed or [0]):.0f} seeds")
    FIGURES.mkdir(parents=True, exist_ok=True)
    (FIGURES / "mutants.json").write_text(json.dumps(found, indent=1) + "\n")
    known = noticed_first() | {name: one["seeds"] - 1 for name, one in found.items() if one["said"]}
    NOTICED.write_text("".join(f"{known[one.name]} {one.name}\n" for one in mutants.MUTANTS if one.name in known))
    return int(len(killed) < len(chosen))


def notice(number: int) -> tuple[int, int, str]:
    """(mutant, the number of worlds that were needed, the verdict; "" when no world noticed it).

    A world may show it as something else first; then some more are asked.
    """
    mutant, least, other = mutants.MUTANTS[number], MUTANT_SEEDS_MAX - 1, ""
    for at, said in find(mutant, MUTANT_SEEDS_MAX):
        if said.split()[0] in mutant.caught_as.split():
            return number, at + 1, said
        least, other = min(least, at), other or said
        if at >= least + MORE_SEEDS_MAX:
            break
    return number, least + 1, other


def is_noticed(number: int) -> bool:
    """True if the world in NOTICED still notices a mutant, as it should."""
    mutant = mutants.MUTANTS[number]
    at = noticed_first().get(mutant.name)
    _, said = next(find(mutant, 0, at), (0, ""))
    return said != "" and said.split()[0] in mutant.caught_as.split()


def noticed_first() -> dict[str, int]:
    """Which of its worlds noticed each mutant, by the mutant's name."""
    lines = [line.partition(" ") for line in NOTICED.read_text().splitlines()]
    return {name: int(number) for number, _, name in lines}


def find(mutant: Mutant, most: int, first: int | None = None) -> Iterator[tuple[int, str]]:
    """Which of a mutant's worlds notice it (0: the first), with their verdicts, in order; first the one named."""
    with mutant.patch():
        for at in [*([] if first is None else [first]), *range(most)]:
            plan = world_of(mutant, at)
            if plan is None:
                return
            try:
                simulator.live(plan)
            except simulator.Violation as exc:
                yield at, str(exc)


def world_of(mutant: Mutant, at: int) -> Plan | None:
    """A mutant's world by its number: of all seeds; or of one world and its neighbours, None after the last."""
    if mutant.near is None:
        if mutant.faults == (UNHEARD,):
            return unheard(draw(at, (), forgets=True))
        return draw(at, mutant.faults, mutant.forgets)
    if at == 0:
        return draw(mutant.near, mutant.faults)
    parts = draw(mutant.near, mutant.faults).labels()
    return draw(mutant.near, mutant.faults, without=frozenset((parts[at - 1],))) if at <= len(parts) else None
