"""Does it stay bounded? The rule, on samples alone.

The first third of a soak is warm-up: caches fill, Python's arenas grow. tests/soak/bounds.py makes everything that is
bounded so small that it is full by then: what rises afterwards has no bound. Of what follows

- a *process's figure* (memory, descriptors, threads) must not rise: a straight line through the samples may rise by
  ``allowance`` from its beginning to its end, or by ``hourly`` of the mean value an hour; more than both is a leak;
- a *store's size* (files, rows, keys) goes up and down as retention prunes it: its highest value in the last third may
  be above that of the middle third by ``allowance``, or by ``PEAK_RISE_MAX`` of it; more than both is a leak. And it
  may never be above ``ceiling``, where there is one.

Both need an allowance, for a few minutes extrapolated to an hour turn a kibibyte into a megabyte.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

RISE_MAX_HOUR = 0.20
PEAK_RISE_MAX = 0.25

# Fewer samples after the warm-up say nothing.
SAMPLES_MIN = 6


class Figure(NamedTuple):
    """A figure that is watched. ``store``: it goes up and down with retention."""

    name: str
    unit: str
    allowance: float
    store: bool = False
    ceiling: float = float("inf")
    hourly: float = RISE_MAX_HOUR


class Verdict(NamedTuple):
    """``wrong`` is a sentence, or ""."""

    figure: Figure
    first: float  # the mean of the first tenth after the warm-up
    last: float  # the same of the end
    highest: float
    rise_hour: float  # of the line, an hour, as a part of the mean; of a store's peaks from third to third
    wrong: str


def judge(figure: Figure, samples: Sequence[tuple[float, float]]) -> Verdict:
    """Judge (seconds, value) samples of one figure, warm-up included."""
    start, end = samples[0][0], samples[-1][0]
    third_s = (end - start) / 3
    late = [(at, value) for at, value in samples if at >= start + third_s]
    values = [value for _, value in late]
    tenth = max(1, len(late) // 10)
    first, last = statistics.fmean(values[:tenth]), statistics.fmean(values[-tenth:])
    if len(late) < SAMPLES_MIN:
        return Verdict(figure, first, last, max(values), 0.0, f"only {len(late)} samples after the warm-up")
    if figure.store:
        rise, part = _peaks(late, start + 2 * third_s)
        told = f"its peak rose by {rise:.6g} {figure.unit} ({part:.0%}) from the middle third to the last"
        too_much = rise > figure.allowance and part > PEAK_RISE_MAX
    else:
        rise, part = _line(late)
        told = f"it rises by {part:.0%} an hour, {rise:.6g} {figure.unit} while it was watched"
        too_much = rise > figure.allowance and part > figure.hourly
    wrong = told if too_much else ""
    if max(value for _, value in samples) > figure.ceiling:
        wrong = f"above {figure.ceiling:.6g} {figure.unit}, which retention allows" + (f"; {wrong}" if wrong else "")
    return Verdict(figure, first, last, max(values), part, wrong)


def _line(late: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """How far the straight line rises over the samples, and which part of the mean that is in an hour."""
    slope, _ = statistics.linear_regression([at for at, _ in late], [value for _, value in late])
    mean = statistics.fmean([value for _, value in late])
    return slope * (late[-1][0] - late[0][0]), slope * 3600.0 / mean if mean else 0.0


def _peaks(late: Sequence[tuple[float, float]], last_third_at: float) -> tuple[float, float]:
    """By how much the last third's peak is above the middle third's, and which part of that."""
    middle = max([value for at, value in late if at < last_third_at], default=0.0)
    last = max([value for at, value in late if at >= last_third_at], default=0.0)
    return last - middle, (last - middle) / middle if middle else float(last > 0)
