"""Shared by all targets: a failure, and the interface of a target."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

# The directory for the files of worlds: in memory, or the one of a process of `make fuzz`.
place = "/dev/shm" if os.path.isdir("/dev/shm") else ""


class Wrong(AssertionError):  # noqa: N818  # it is a verdict
    """The product accepted an invalid input, or handled it wrongly."""


def check(holds: object, what: str) -> None:
    """Raise Wrong unless it holds."""
    if not holds:
        raise Wrong(what)


# One input to its outcome: "accepted", or a word for why it was refused. Every exception is a failure.
Try = Callable[[bytes], Awaitable[str]]


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """A directory in memory: a million inputs need no disk."""
    with tempfile.TemporaryDirectory(prefix="cdf-", dir=place or None) as directory:
        yield directory


class Target(Protocol):
    """Something that reads bytes of others."""

    name: str
    what: str  # in a few words, for the table
    limit_s: float  # of a processor: no input may take longer

    def make(self, rng: random.Random) -> bytes:
        """An input; it depends on ``rng`` alone."""

    def world(self) -> AbstractAsyncContextManager[Try]:
        """A world for a chunk, under trio with a clock that jumps. Each input starts in the state of the one before."""
