"""Inputs made of valid ones: bytes flipped, cut, spliced, repeated, strewn with words; trees with odd values."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

# No input is made longer than this, save by a target that means to.
BYTES_MAX = 96 * 1024

# Values that have broken parsers before: limits of numbers, and misleading texts.
NUMBERS = (
    0,
    -1,
    1,
    2,
    127,
    128,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32,
    2**32 + 1,
    2**53,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**31) - 1,
    -(2**63),
    0.0,
    -0.0,
    0.1,
    -1.5,
    1e-300,
    1e15,
    1e300,
    1e308,
)
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))
TEXTS = (
    "",
    " ",
    "\0",
    "\n",
    "a" * 300,
    "x" * 9000,
    "9" * 5000,
    "\u00b2-x",
    "\u0663-x",
    "\u0661.5",
    "\ufeff",
    "\u202e",
    "\U0001f600",
    "e\u0301",
    "\x1b[31m",
    "..",
    "../../etc/passwd",
    "/",
    "-",
    "--version",
    "%s%n",
    "{}",
    "{date}",
    "NaN",
    "1e999",
    "true",
    "null",
    "0x10",
    "1_000",
    "a#1",
    "a@2026-01-01T00:00:00Z",
    "a" * 65 + "#1",
    "@",
    "#",
)
BYTE_EDGES = b"\0\x01\x7f\x80\xbf\xc0\xc1\xc4\xca\xcb\xcf\xd3\xd9\xdc\xdd\xde\xdf\xfe\xff \n\r\t\"'\\{}[],:.=#-"
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")


T = TypeVar("T")


def pick(rng: random.Random, items: Sequence[T]) -> T:
    """One of them. (random.choice takes twice as long.)"""
    return items[int(rng.random() * len(items))]


# ---- bytes


def _flip(data: bytes, rng: random.Random, _pool: Pool) -> bytes:
    if not data:
        return data
    at = int(rng.random() * len(data))
    return data[:at] + bytes((data[at] ^ 1 << int(rng.random() * 8),)) + data[at + 1 :]


def _edge(data: bytes, rng: random.Random, _pool: Pool) -> bytes:
    at = int(rng.random() * (len(data) + 1))
    return data[:at] + bytes((pick(rng, BYTE_EDGES),)) + data[at + 1 :]


def _insert(data: bytes, rng: random.Random, _pool: Pool) -> bytes:
    at = int(rng.random() * (len(data) + 1))
    return data[:at] + rng.randbytes(1 + int(rng.random() * 4)) + data[at:]


def _cut(data: bytes, rng: random.Random, _pool: Pool) -> bytes:
    return data[: int(rng.random() * (len(data) + 1))]


def _behead(data: bytes, rng: random.Random, _pool: Pool) -> bytes:
    return data[int(rng.random() * (len(data) + 1)) :]


def _piece(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = int(rng.random() * (len(data) + 1))
    return start, min(len(data), start + int(rng.random() ** 3 * len(data)) + 1)


def _drop(data: bytes, rng: random.Random, _pool: Pool) -> bytes:
    start, end = _piece(data, rng)
    return data[:start] + data[end:]


def _repeat(data: bytes, rng: random.Random, _pool: Pool) -> bytes:
    start, end = _piece(data, rng)
    return data[:end] + data[start:end] * pick(rng, (1, 1, 2, 7, 100)) + data[end:]


def _splice(data: bytes, rng: random.Random, pool: Pool) -> bytes:
    other = pick(rng, pool.seeds)
    start, end = _piece(other, rng)
    at = int(rng.random() * (len(data) + 1))
    return data[:at] + other[start:end] + (data[at:] if rng.random() < 0.5 else b"")


def _join(data: bytes, rng: random.Random, pool: Pool) -> bytes:
    return data + pick(rng, pool.seeds)


def _word(data: bytes, rng: random.Random, pool: Pool) -> bytes:
    start, end = _piece(data, rng)
    return data[:start] + pick(rng, pool.words) + (data[end:] if rng.random() < 0.3 else data[start:])


def _number(data: bytes, rng: random.Random, pool: Pool) -> bytes:
    found = [*NUMBER.finditer(data)]
    if not found:
        return _edge(data, rng, pool)
    place = pick(rng, found)
    return data[: place.start()] + repr(pick(rng, NUMBERS)).encode() + data[place.end() :]


STEPS: tuple[Callable[[bytes, random.Random, Pool], bytes], ...]


class Pool:
    """The valid inputs of one target, and the words of its language."""

    def __init__(self, seeds: Sequence[bytes], words: Sequence[bytes], *, bytes_max: int = BYTES_MAX) -> None:
        self.seeds = tuple(seeds)
        self.words = (*words, *[text.encode() for text in TEXTS])
        self.bytes_max = bytes_max

    def make(self, rng: random.Random) -> bytes:
        """A valid input (one in twenty), or one to which something was done once or a few times."""
        return self.spoil(pick(rng, self.seeds), rng)

    def spoil(self, data: bytes, rng: random.Random) -> bytes:
        """The same with these bytes."""
        for _ in range(pick(rng, (0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 5, 8, 12, 1))):
            # Cut at each step: repeats of repeats once made 1 GB of one input, and took 2 GB for it.
            data = pick(rng, STEPS)(data, rng, self)[: self.bytes_max]
        return data


STEPS = (_flip, _flip, _edge, _edge, _insert, _cut, _behead, _drop, _repeat, _splice, _join, _word, _word, _number)


# ---- trees of dictionaries, lists and values


def odd(rng: random.Random, *, finite: bool = True) -> Any:
    """A value that nobody asked for."""
    kind = rng.random()
    if kind < 0.35:
        return pick(rng, NUMBERS if finite or kind < 0.3 else NOT_FINITE)
    if kind < 0.7:
        return pick(rng, TEXTS)
    if kind < 0.8:
        return pick(rng, (None, True, False))
    if kind < 0.9:  # not a list of lists: a list of 40 times 40 times 9,000 items would not fit into memory
        return [pick(rng, NUMBERS) if kind < 0.85 else pick(rng, TEXTS)] * pick(rng, (0, 1, 2, 40))
    if kind < 0.97:
        return {pick(rng, TEXTS): odd(rng, finite=finite)} if kind < 0.96 else {}
    nest: Any = 1
    for _ in range(pick(rng, (10, 31, 33, 100))):  # three times that must still be written by functions that recurse
        nest = [nest] if rng.random() < 0.5 else {"a": nest}
    return nest


def distort(tree: Any, rng: random.Random, *, finite: bool = True) -> Any:
    """A copy of a tree with one or a few changed places."""
    for _ in range(pick(rng, (1, 1, 1, 2, 3))):
        tree = _distorted(tree, rng, finite)
    return tree


def _distorted(tree: Any, rng: random.Random, finite: bool) -> Any:
    if not isinstance(tree, (dict, list)) or not tree or rng.random() < 0.04:
        return _near(tree, rng) if rng.random() < 0.4 else odd(rng, finite=finite)
    if isinstance(tree, dict):
        key = pick(rng, list(tree))
        what = rng.random()
        if what < 0.08:
            return {name: value for name, value in tree.items() if name != key}
        if what < 0.14:
            return {pick(rng, TEXTS) if name == key else name: value for name, value in tree.items()}
        return {name: _distorted(value, rng, finite) if name == key else value for name, value in tree.items()}
    at = int(rng.random() * len(tree))
    what = rng.random()
    if what < 0.08:
        return tree[:at] + tree[at + 1 :]
    if what < 0.16:
        return tree[: at + 1] * pick(rng, (2, 2, 3, 12)) + tree[at:]
    return [*tree[:at], _distorted(tree[at], rng, finite), *tree[at + 1 :]]


def _near(value: Any, rng: random.Random) -> Any:
    """Nearly the same, of the same kind."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + pick(rng, (-1, 1, 2**16, 2**32, -(2**32), -2 * value))
    if isinstance(value, float):
        changed = value * pick(rng, (-1.0, 0.5, 2.0, 1e9)) + pick(rng, (0.0, -60.0, 60.0, 1e-9))
        return changed if abs(changed) <= 1e308 else value
    if isinstance(value, str):
        at = int(rng.random() * (len(value) + 1))
        return value[:at] + pick(rng, TEXTS) + value[at + int(rng.random() * 2) :]
    return value
