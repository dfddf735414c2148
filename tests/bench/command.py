"""`make bench`: runs the benchmarks, prints a table, and writes artifacts/bench.json.

If possible, a figure is a count, or a ratio against a peer that is measured in the same run. The command reports a
missed target and does not fail. It fails only if a section could not be measured.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from pathlib import Path

from rich.console import Console

from bench.figures import Figure, show, write

TOP = Path(__file__).resolve().parents[2]

# The module of each section, in the order of execution.
SECTIONS = {
    "elections": "bench.elections",
    "gossip": "bench.gossip.gossip",
    "gossip_faults": "bench.gossip.gossip_faults",
    "growth": "bench.gossip.growth",
    "triggers": "bench.triggered.started",
    "calls": "bench.triggered.calls",
    "exec": "bench.exec_cost",
    "schedules": "bench.schedules",
    "takeover": "bench.takeover",
    "idle": "bench.idle",
    "metrics": "bench.watching.scrape",
    "pages": "bench.watching.pages",
    "sizes": "bench.watching.sizes",
    "claims": "bench.claims.section",
    "rows": "bench.claims.rows",
    "spark_start": "bench.spark.start",
    "history": "bench.history.section",
    "simulation": "bench.simulation",
}


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: about five minutes")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="these sections alone")
    parser.add_argument("--output", default=str(TOP / "artifacts" / "bench.json"), metavar="FILE")
    chosen = parser.parse_args()
    console = Console()
    load = os.getloadavg()[0]
    figures: list[Figure] = []
    problems: dict[str, str] = {}
    if load > 0.5:
        console.print(f"[yellow]this machine is not idle (load {load:.1f}): read the ratios, not the times")
    for name in chosen.only or SECTIONS:
        began = time.monotonic()
        with console.status(f"{name} …"):
            try:
                figures += importlib.import_module(SECTIONS[name]).measure(quick=chosen.quick)
            except Exception as exc:
                # If one section cannot be measured, the others are still measured. The command reports it and fails.
                problems[name] = f"{type(exc).__name__}: {exc}"
        console.print(f"{name}: {time.monotonic() - began:.0f} s", highlight=False)
    show(figures, problems, console)
    write(chosen.output, figures, problems, quick=chosen.quick, load=load)
    console.print(f"written to {os.path.relpath(chosen.output)}", highlight=False)
    return 1 if problems else 0
