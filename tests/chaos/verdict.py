"""The report of a trial: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chaos.checker import Verdict
from chaos.nemesis import Fault

# Figures that are shown even if they are 0.
MUST = ("overlaps", "overlaps by lock", "two runs of a job that allows one", "lost without an explanation")
VIOLATIONS_MAX = 30  # on the screen; the file has all


def percentile(values: Sequence[float], part: float) -> float | None:
    """The quantile of sorted values: this part of the values comes before it. None without values."""
    return values[min(len(values) - 1, int(part * len(values)))] if values else None


def as_json(verdict: Verdict, faults: Sequence[Fault], about: dict[str, Any]) -> dict[str, Any]:
    """The figures, the violations, and the settings of the trial."""
    return {
        **about,
        "violations": verdict.violations,
        "counts": dict.fromkeys(MUST, 0) | verdict.counts,
        "faults_by_kind": dict(sorted(Counter(fault.kind for fault in faults).items())),
        "takeover_s": _spread(verdict.takeovers_s),
        "taken_over_before_start_s": _spread(verdict.rescues_s),
        "states_without_success": verdict.states,
    }


def _spread(values: Sequence[float]) -> dict[str, float | int | None]:
    return {
        "count": len(values),
        "p50": percentile(values, 0.5),
        "p99": percentile(values, 0.99),
        "max": values[-1] if values else None,
    }


def show(told: dict[str, Any], console: Console) -> None:
    """Print the report as tables."""
    table = Table("figure", "", title=f"chaos: {told['setup']}, {told['minutes']:g} minutes, seed {told['seed']}")
    table.columns[1].justify = "right"
    for name, count in told["counts"].items():
        table.add_row(name, f"{count:,}")
    for key, what in (
        ("takeover_s", "last sign of a lost program → next start"),
        ("taken_over_before_start_s", "fault before the start → start elsewhere"),
    ):
        spread = told[key]
        if spread["count"]:
            table.add_row(what, f"p50 {spread['p50']:.1f} s, p99 {spread['p99']:.1f} s")
    for state, count in sorted(told["states_without_success"].items()):
        table.add_row(f"without success, explained as {state}", f"{count:,}")
    console.print(table)
    kinds = Table("fault", "times", title="faults")
    kinds.columns[1].justify = "right"
    for kind, count in told["faults_by_kind"].items():
        kinds.add_row(kind, str(count))
    console.print(kinds)
    for violation in told["violations"][:VIOLATIONS_MAX]:
        console.print(f"[red]VIOLATION[/red] {violation}", highlight=False)
    if len(told["violations"]) > VIOLATIONS_MAX:
        console.print(f"… and {len(told['violations']) - VIOLATIONS_MAX} more")


def write(told: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=1) + "\n")
