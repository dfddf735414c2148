"""`make chaos`: real daemons, broker and ledger under faults for a bounded time. A judge then reads their files.

make chaos MINUTES=10                      one Redis
make chaos MINUTES=10 SETUP=sentinel       a primary with two replicas under three sentinels
make chaos MINUTES=10 SEED=7               the same faults are drawn; their targets depend on the timing
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress as Bar, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from support import components

from chaos.cluster import SETUPS
from chaos.faults import KINDS
from chaos.trial import Plan, Progress, run
from chaos.verdict import as_json, show, write

TOP = Path(__file__).resolve().parents[2]
NEEDED = [
    one
    for one in components.COMPONENTS
    if one.program not in ("java", "systemd-analyze", "openssl", "unshare", "postgres")
]


def main() -> int:
    usual = Plan()
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=usual.minutes, help="how long faults strike")
    parser.add_argument("--setup", choices=SETUPS, default=usual.setup, help="what the ledger is")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="what strikes when")
    parser.add_argument("--nodes", type=int, default=usual.nodes)
    parser.add_argument("--faults", type=float, default=usual.faults, help="a minute")
    parser.add_argument("--triggers", type=float, default=usual.triggers, help="a minute, beside what is scheduled")
    parser.add_argument("--only", action="append", choices=sorted(KINDS), default=[], help="these faults alone")
    parser.add_argument("--output", type=Path, default=None, metavar="FILE")
    chosen = parser.parse_args()
    if os.getuid() != 0:
        print("make chaos needs root: it makes network namespaces and small file systems", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes everything, as ^C does
    try:
        components.ensure(NEEDED)
    except components.MissingError as exc:
        print(f"make chaos needs {exc}", file=sys.stderr)
        return 1
    console = Console()
    plan = Plan(
        chosen.setup, chosen.seed, chosen.minutes, chosen.nodes, chosen.faults, chosen.triggers, tuple(chosen.only)
    )
    name = f"chaos-{plan.setup}-{plan.seed}"
    evidence = TOP / "artifacts" / name
    console.print(f"{plan.setup}, {plan.minutes:g} minutes, SEED={plan.seed}", highlight=False)
    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    with bar:
        task = bar.add_task("", total=1.0, said="")

        def tell(now: Progress) -> None:
            said = f"{now.launches} launches, {now.faults} faults, {now.up} daemons up"
            bar.update(task, completed=now.part, description=now.phase, said=said)

        try:
            outcome = run(plan, tell, evidence)
        except KeyboardInterrupt:
            console.print("interrupted; everything is removed")
            return 130
    told = as_json(outcome.verdict, outcome.nemesis.log, outcome.about)
    show(told, console)
    output = chosen.output or TOP / "artifacts" / f"{name}.json"
    write(told, output)
    console.print(f"written to {output}", highlight=False)
    if outcome.verdict.violations:
        console.print(f"[red]{len(outcome.verdict.violations)} violations[/red]; the evidence is in {evidence}")
        return 1
    return 0
