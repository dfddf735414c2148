"""The soak's rule on made-up samples: it finds a leak, and accepts noise and the ups and downs of retention."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from soak.bounds import DEADLINES_MAX, GARBAGE_MAX, OF_A_DAEMON
from soak.judge import Figure, judge

MEMORY = Figure("RSS", "MiB", allowance=3.0)
BLOCKS = next(figure for figure in OF_A_DAEMON if figure.name == "blocks")
RESIDENT = next(figure for figure in OF_A_DAEMON if figure.name == "RSS")
DESCRIPTORS = Figure("fds", "", allowance=3.0)
STORE = Figure("rows", "", allowance=50.0, store=True, ceiling=1000.0)
EVERY_S = 5.0
SOAK_S = 900.0

# Blocks of one object of the garbage that waits, at the most; and how often the collector comes.
BLOCKS_EACH = 2
COLLECTED_S = 40.0


def held(at: float) -> float:
    """Blocks of a daemon without a leak: garbage comes and goes above a constant level."""
    return 220_000.0 + GARBAGE_MAX * BLOCKS_EACH * (at % COLLECTED_S) / COLLECTED_S + DEADLINES_MAX * (at % 23.0) / 23.0


def sampled(value: Callable[[float], float], noise: float = 0.0) -> list[tuple[float, float]]:
    rng = random.Random(1)
    return [(at, value(at) + rng.uniform(-noise, noise)) for at in [n * EVERY_S for n in range(int(SOAK_S / EVERY_S))]]


@pytest.mark.parametrize(
    ("figure", "value", "noise"),
    [
        (MEMORY, lambda _at: 40.0, 3.0),
        (MEMORY, lambda at: 30.0 + 10.0 * min(1.0, at / 250.0), 0.5),  # all growth is in the warm-up
        (MEMORY, lambda at: 40.0 + at / 900.0, 0.1),  # 4 MiB an hour: within the allowance
        (MEMORY, lambda at: 400.0 + at / 100.0, 1.0),  # more than the allowance, but little of 400 MiB
        (DESCRIPTORS, lambda at: 20.0 + at % 7, 1.0),
        (BLOCKS, held, 200.0),
        (BLOCKS, lambda at: held(at) + 20_000.0 * min(1.0, at / 290.0), 200.0),  # caches that are full by then
        (RESIDENT, lambda at: 50.0 + 2.0 * min(1.0, at / 290.0), 0.3),
        (STORE, lambda at: 300.0 + 4.0 * (at % 60.0), 20.0),
        (STORE, lambda _at: 0.0, 0.0),
    ],
)
def test_what_stays_bounded_passes(figure: Figure, value: Callable[[float], float], noise: float) -> None:
    assert judge(figure, sampled(value, noise)).wrong == ""


@pytest.mark.parametrize(
    ("figure", "value", "noise", "said"),
    [
        (MEMORY, lambda at: 40.0 + at / 100.0, 1.0, "% an hour"),
        (MEMORY, lambda at: 40.0 + 5.0 * (at > 700.0), 0.5, "% an hour"),  # at once, and late
        (DESCRIPTORS, lambda at: 20.0 + at // 60.0, 1.0, "% an hour"),
        (BLOCKS, lambda at: held(at) + 5.0 * at, 200.0, "% an hour"),  # five a run: far too little for RSS
        (BLOCKS, lambda at: held(at) + 20_000.0 * min(1.0, at / 900.0), 200.0, "% an hour"),  # a cache not yet full
        (RESIDENT, lambda at: 50.0 + 2.2 * at / 900.0, 0.3, "% an hour"),
        (STORE, lambda at: 100.0 + at / 2.0 + at % 60.0, 20.0, "its peak rose"),
        (STORE, lambda at: 900.0 + 2.0 * (at % 60.0), 0.0, "which retention allows"),
    ],
)
def test_a_leak_is_found(figure: Figure, value: Callable[[float], float], noise: float, said: str) -> None:
    assert said in judge(figure, sampled(value, noise)).wrong


def test_too_few_samples_are_no_proof() -> None:
    assert "only" in judge(MEMORY, sampled(lambda _at: 1.0)[:6]).wrong
