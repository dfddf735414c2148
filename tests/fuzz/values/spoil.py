"""Values that no node writes, and how an input's JSON holds what JSON cannot."""

from __future__ import annotations

import base64
import json
import math
import random
import re
from typing import Any

from coordd.core.ledger.words import STATES
from fuzz.mutate import NOT_FINITE, NUMBERS, TEXTS, pick

# The limits of valid values, and the values next to them.
EDGES = (32_503_680_000.0, 32_503_680_001.0, 2**53, 2**53 + 1, 1_000_000, 1_000_001, 315_360_000.0, -0.0, 1e-320)
# Numbers that most decoders take.
TAKEN = (0, 1, 2, 7, 1_738_137_600, 1_738_137_600_000_001, 32_503_680_000, 2**31, 2**32 + 1)
TAKEN_FRACTIONS = (0.0, -0.0, 1e-320, 0.1, 59.9, 1_738_137_600.5, 1e9, 32_503_680_000.0, -1.5)
POLICIES = (
    "relaunch forbid 1 5 30.0 fixed 3600.0",
    "hold allow 3 0 0.0 exponential 1e9",
    "relaunch queue 0 0 0 linear 0",
    "relaunch forbid nan 5 30.0 fixed 3600.0",
    "relaunch forbid 1 5 nan fixed 3600.0",
    "",
    "x " * 7,
    "relaunch",
)
ARGS = (
    "{}",
    '{"who": "ann"}',
    '{"who": 5}',
    "not json",
    "[]",
    "null",
    '{"who": "a\\u0000"}',
    '{"who": "\\ud800"}',
    "[" * 3000,
    '{"date": "x"}',
    "9" * 5000,
    '{"who": ' + '"x' * 50,
)

# Between the words of a text that the ledger keeps.
_BETWEEN = re.compile(r"([ \n,/:;=\[\]]+)")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def value(rng: random.Random, column: str) -> Any:
    """A value for a column."""
    kind = rng.random()
    if column == "policy" and kind < 0.5:
        return pick(rng, POLICIES)
    if column == "args" and kind < 0.6:
        return pick(rng, ARGS)
    if column == "state" and kind < 0.6:
        return pick(rng, STATES)
    if kind < 0.35:
        return pick(rng, EDGES)
    if kind < 0.6:
        return pick(rng, NUMBERS)
    if kind < 0.7:
        return pick(rng, NOT_FINITE)
    if kind < 0.9:
        return pick(rng, TEXTS)
    return pick(rng, (None, True, b"\xff\xfe", [], {"a": 1}, 2**70, "\ud800"[:0] + "x"))


def near(text: str, rng: random.Random) -> str:
    """The text with one of its words replaced: a number mostly by one that a decoder takes."""
    words = _BETWEEN.split(text)
    place = 2 * int(rng.random() * ((len(words) + 1) // 2))
    number = _NUMBER.fullmatch(words[place])
    if number and rng.random() < 0.85:
        words[place] = str(pick(rng, TAKEN) if not number[1] or rng.random() < 0.3 else pick(rng, TAKEN_FRACTIONS))
    else:
        other = value(rng, "")
        words[place] = other.decode(errors="replace") if isinstance(other, bytes) else str(other)
    return "".join(words)


def numbered(tree: Any) -> Any:
    """The numbers that JSON cannot hold, from their replacements."""
    if isinstance(tree, str) and tree.startswith("\0number "):
        return float(tree[8:])
    if isinstance(tree, list):
        return [numbered(each) for each in tree]
    return {key: numbered(each) for key, each in tree.items()} if isinstance(tree, dict) else tree


def lettered(tree: Any) -> Any:
    """The inverse of ``numbered``."""
    if isinstance(tree, float) and not math.isfinite(tree):
        return f"\0number {tree}"
    if isinstance(tree, bytes):
        return {"bytes": base64.b64encode(tree).decode()}
    if isinstance(tree, (list, tuple)):
        return [lettered(each) for each in tree]
    return {key: lettered(each) for key, each in tree.items()} if isinstance(tree, dict) else tree


def storable(said: Any) -> Any:
    """A value that SQLite can store: a list or a table becomes bytes that are not text."""
    said = numbered(said)
    return said if said is None or isinstance(said, (str, int, float)) else json.dumps(said).encode()


def bytes_of(tree: Any) -> Any:
    """A reply as it comes from a server: bytes, None, lists; and what the mutations made of them."""
    if isinstance(tree, list):
        return [bytes_of(each) for each in tree]
    if isinstance(tree, dict):
        return base64.b64decode(tree["bytes"]) if "bytes" in tree else b""
    return None if tree is None else str(numbered(tree)).encode(errors="replace")


def text_of(made: Any) -> bytes:
    """A value as a server keeps it."""
    return made if isinstance(made, bytes) else str(made).encode(errors="replace")
