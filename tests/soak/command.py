"""`make soak HOURS=0.25`: real clusters under a steady load; nothing that they hold may grow.

Three daemons on RabbitMQ and Redis, two on one machine, retention of a minute, a daemon restarted or killed now and
then. tests/soak/judge.py holds the rule, tests/soak/bounds.py the bounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from soak.bounds import SECONDS_MIN
from soak.judge import judge
from soak.world import Soaked, embedded, production

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts"
SAMPLE_EVERY_S = 5.0
LOOK_S = 0.1


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=0.25)
    parser.add_argument("--only", choices=("embedded", "production"), help="one of the two clusters")
    parser.add_argument("--leak", action="store_true", help="each launch leaves some 600 bytes: this must be found")
    chosen = parser.parse_args()
    if chosen.hours * 3600.0 < SECONDS_MIN:
        parser.error(f"a soak of less than {SECONDS_MIN / 3600:.3f} hours is over before retention has come around")
    console = Console()
    # A shell's background job ignores ^C; and what is told to stop must still tidy up.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        clusters = []
        for name, make in (("embedded", embedded), ("production", production)):
            if chosen.only in (None, name):
                root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cds-", dir="/tmp")))
                clusters.append(stack.enter_context(make(root, leak=chosen.leak)))
        seconds = soak(clusters, chosen.hours * 3600.0, console)
    return report(clusters, seconds, console, "soak-leak.json" if chosen.leak else "soak.json")


def soak(clusters: list[Soaked], seconds: float, console: Console) -> float:
    """Load and measure, for that many seconds."""
    started, sample_at = time.monotonic(), 0.0
    with console.status("") as status:
        while (at := time.monotonic() - started) < seconds:
            for cluster in clusters:
                cluster.go_on(at)
            if at >= sample_at:
                sample_at = at + SAMPLE_EVERY_S
                for cluster in clusters:
                    cluster.sample(at)
                told = " · ".join([line(cluster) for cluster in clusters])
                status.update(f"{at / 60:.1f} of {seconds / 60:.1f} min · {told}")
            time.sleep(LOOK_S)
    return time.monotonic() - started


def line(cluster: Soaked) -> str:
    """How it is now."""
    newest = {key: samples[-1][1] for key, samples in cluster.samples.items()}
    return (
        f"{cluster.name}: {cluster.triggered} triggers, {cluster.restarts} restarts, "
        f"RSS {newest.get('n0 RSS', 0):.1f} MB, {newest.get('ledger runs', 0):.0f} rows"
    )


def report(clusters: list[Soaked], seconds: float, console: Console, name: str) -> int:
    """The table, and the JSON beside it."""
    table = Table(title=f"make soak, {seconds / 60:.1f} minutes")
    for head in ("where", "what", "after warm-up", "at the end", "highest", "rise", "ceiling", "verdict"):
        table.add_column(head, justify="left" if head in ("where", "what", "verdict") else "right")
    rows: list[dict[str, Any]] = []
    wrong = 0
    for cluster in clusters:
        for place, figure, samples in cluster.figures():
            verdict = judge(figure, samples)
            wrong += bool(verdict.wrong)
            table.add_row(
                place,
                f"{figure.name} {figure.unit}".strip(),
                f"{verdict.first:.1f}",
                f"{verdict.last:.1f}",
                f"{verdict.highest:.1f}",
                f"{verdict.rise_hour:+.0%}" + ("" if figure.store else "/h"),
                f"{figure.ceiling:.0f}" if figure.ceiling < float("inf") else "",
                f"[red]{verdict.wrong}[/red]" if verdict.wrong else "[green]bounded[/green]",
            )
            rows.append({"where": place, "what": figure.name, "wrong": verdict.wrong, "samples": samples})
    console.print(table)
    for cluster in clusters:
        console.print(
            f"{cluster.name}: {cluster.triggered} triggers ({cluster.refused} refused), {cluster.restarts} restarts",
            highlight=False,
        )
    ARTIFACTS.mkdir(exist_ok=True)
    (ARTIFACTS / name).write_text(json.dumps({"seconds": seconds, "figures": rows}, indent=1) + "\n")
    console.print(f"written to artifacts/{name}; {wrong} unbounded", style="red" if wrong else "green")
    return int(wrong > 0)
