"""The trace of a run: its identity, which every node computes, and its spans. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

# The version of W3C's trace context.
VERSION = "00"

Value = str | int | float | bool | tuple[str, ...]


def trace_id(cluster: str, run: str) -> str:
    """32 hexadecimal digits, the same on every node and through every takeover.

    A run's id says when it was made: it has the fire time, or is given once by the trigger. A clock is not in it,
    because each node dates a triggered run by its own.
    """
    return hashlib.sha256(f"coordd trace\0{cluster}\0{run}".encode()).hexdigest()[:32]


def span_id(trace: str, name: str, attempt: int = 0) -> str:
    """16 hexadecimal digits: the span of that name in that trace."""
    return hashlib.sha256(f"coordd span\0{trace}\0{name}\0{attempt}".encode()).hexdigest()[:16]


def traceparent(trace: str, span: str, *, sampled: bool) -> str:
    """As W3C's trace context writes it, for the program's environment."""
    return f"{VERSION}-{trace}-{span}-{'01' if sampled else '00'}"


class Span(NamedTuple):
    """One span. ``start`` and ``end`` in Unix seconds; ``parent`` "": the root.

    ``good``: None: nobody judges it; False: it failed, and ``reason`` says why. ``links``: spans of the same trace.
    """

    trace: str
    id: str
    parent: str
    name: str
    start: float
    end: float
    attributes: Mapping[str, Value]
    good: bool | None = None
    reason: str = ""
    links: tuple[str, ...] = ()
