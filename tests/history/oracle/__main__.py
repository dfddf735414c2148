"""`make oracle`: EVENTS randomised events of SEED, by Spark and by plain Python; ARGS="--keep DIR" keeps the files.

Exit code 1: a table differs from the reference, or a run from Celery's State.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

from bench.history.section import drive
from rich.console import Console
from rich.table import Table

from history.oracle.trial import Plan, Verdict, play

TOP = Path(__file__).resolve().parents[3]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make oracle", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="what happens, and what breaks")
    parser.add_argument("--parts", type=int, default=3, help="how often the pipeline adds what has come")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new directory for journals and tables")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes everything, as ^C does
    console = Console()
    console.print(f"oracle, SEED={chosen.seed}", highlight=False)
    plan = Plan(chosen.seed, chosen.events, chosen.parts)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        if chosen.keep is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coordd-oracle-")))
        else:
            directory = chosen.keep.absolute()
            directory.mkdir(parents=True)
        spent: list[float] = []

        def add(journals: Path, output: Path) -> None:
            spent.append(drive(str(journals), str(output), str(directory)).cpu_s)

        status = stack.enter_context(console.status("starting"))
        verdict = play(plan, directory, add, status.update)
    return conclude(console, plan, verdict, time.monotonic() - began, sum(spent))


def conclude(console: Console, plan: Plan, verdict: Verdict, took_s: float, spark_s: float) -> int:
    """The table, and the JSON beside it. Returns the exit code."""
    table = Table(title=f"{verdict.events:,} events, {verdict.lines:,} lines, SEED={plan.seed}")
    for head in ("table", "rows compared", "mismatches"):
        table.add_column(head, justify="left" if head == "table" else "right")
    for name, tally in verdict.tallies.items():
        wrong = f"[red]{tally.mismatches:,}[/red]" if tally.mismatches else "0"
        table.add_row(name, f"{tally.rows:,}", wrong)
    console.print(table)
    for name, tally in verdict.tallies.items():
        for text in tally.shown:
            console.print(f"{name}: {text}", style="red", highlight=False, markup=False, soft_wrap=True)
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told = {
        **plan._asdict(),
        "lines": verdict.lines,
        "seconds": round(took_s, 1),
        "cpu_s of Spark": round(spark_s, 1),
        "memory_mb of Python": round(memory_mb, 1),
        "tables": {name: vars(tally) for name, tally in verdict.tallies.items()},
    }
    output = TOP / "artifacts" / f"oracle-{plan.seed}.json"
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps(told, indent=1) + "\n")
    console.print(
        f"written to {output}; {verdict.mismatches} mismatches; {took_s:.0f} s, {spark_s:.0f} s of CPU for Spark,"
        f" {memory_mb:.0f} MB in Python",
        highlight=False,
    )
    return int(verdict.mismatches > 0)


if __name__ == "__main__":
    sys.exit(main())
