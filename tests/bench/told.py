"""What the processes of a benchmark share: what they are told, and a journal that keeps nothing."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import trio


class NoJournal:
    """Elections about nothing are in no journal, and a peer that is measured beside us has none."""

    def append(self, records: object, *, sync: bool) -> None:
        """Forget them."""

    def close(self) -> None:
        """Nothing to close."""


async def commands() -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """(what to do, its arguments), from JSON lines on stdin, until that ends."""
    stream = trio.lowlevel.FdStream(os.dup(0))
    buffer = b""
    async for data in stream:
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            yield command.pop("do"), command
