"""Code that the processes of a benchmark share: their commands, and a journal that keeps nothing."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import trio


class NoJournal:
    """A journal that drops all events. The peer in the comparison has no journal either."""

    def append(self, records: object, *, sync: bool) -> None:
        """Drop the events."""

    def close(self) -> None:
        """Do nothing."""


async def commands() -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield (command, arguments) from JSON lines on stdin, until stdin ends."""
    stream = trio.lowlevel.FdStream(os.dup(0))
    buffer = b""
    async for data in stream:
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            yield command.pop("do"), command
