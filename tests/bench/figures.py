"""The figures of a benchmark and their targets: a table for people, JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass
class Figure:
    """One measured value. ``sense`` is the comparison with the target. A value without a target is only shown."""

    section: str
    what: str
    reached: float
    unit: str = ""
    target: float | None = None
    sense: str = "<="  # <= | >= | =
    detail: str = ""
    samples: dict[str, Any] = field(default_factory=dict)  # only for the JSON

    @property
    def met(self) -> bool | None:
        """True if the target was reached; None if there is no target."""
        if self.target is None:
            return None
        if self.sense == "<=":
            return self.reached <= self.target
        if self.sense == ">=":
            return self.reached >= self.target
        return self.reached == self.target


def percentile(values: Sequence[float], part: float) -> float:
    """The quantile ``part`` (0 … 1) by the nearest rank, so the result is always one of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(part * (len(ordered) - 1))))]


def summary(values: Sequence[float], scale: float = 1.0) -> dict[str, float]:
    """Count, median, 95th percentile, minimum and maximum."""
    return {
        "count": len(values),
        "p50": statistics.median(values) * scale,
        "p95": percentile(values, 0.95) * scale,
        "min": min(values) * scale,
        "max": max(values) * scale,
    }


def show(figures: Sequence[Figure], problems: dict[str, str], console: Console) -> None:
    """Print the table, with target and measured value side by side."""
    table = Table(title="coordd benchmarks", title_justify="left")
    for name in ("what", "target", "reached", "", "detail"):
        table.add_column(name, justify="right" if name in ("target", "reached") else "left", overflow="fold")
    section = ""
    for figure in figures:
        if figure.section != section:
            section = figure.section
            table.add_section()
            table.add_row(f"[bold]{section}")
        unit = f" {figure.unit}" if figure.unit else ""
        target = "" if figure.target is None else f"{figure.sense} {_number(figure.target)}{unit}"
        verdict = {True: "[green]reached", False: "[red]missed", None: ""}[figure.met]
        table.add_row(f"  {figure.what}", target, f"{_number(figure.reached)}{unit}", verdict, figure.detail)
    for name, problem in problems.items():
        table.add_section()
        table.add_row(f"[bold]{name}", "", "", "[red]not measured", problem)
    console.print(table)


def write(path: str, figures: Sequence[Figure], problems: dict[str, str], *, quick: bool, load: float) -> None:
    """Write the JSON, with the summaries of the samples and a description of the machine."""
    record = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": quick,
        "machine": {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "load_before": load,
        },
        "figures": [{**asdict(figure), "met": figure.met} for figure in figures],
        "not_measured": problems,
    }
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        file.write("\n")


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
