"""Code that the processes of a benchmark share: their commands, a node, its driver, a journal that keeps nothing."""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import trio

from coordd.core.context import Settings
from coordd.core.node.node import Node
from coordd.core.ready import Launch
from coordd.ports import Bus
from coordd.services.driver import Driver, Keeper
from coordd.services.ledger import LedgerService


class NoJournal:
    """A journal that drops all events. The peer in the comparison has no journal either."""

    def append(self, records: object, *, sync: bool) -> None:
        """Drop the events."""

    def close(self) -> None:
        """Do nothing."""


def fresh_node(hostname: str, index: int, settings: Settings) -> Node:
    """A node of this process that takes part in drills."""
    node = Node(
        hostname=hostname,
        pid=os.getpid(),
        incarnation=f"1-{index:016x}",
        settings=settings,
        clock_mark=0,
        rng=random.SystemRandom(),
    )
    node.topics.add("drill")
    return node


def driver_of(node: Node, bus: Bus, ledger: LedgerService, launch: Callable[[Launch], None]) -> Driver:
    """A driver that keeps nothing on the disk."""
    return Driver(
        node,
        bus=bus,
        ledger=ledger,
        journal=NoJournal(),
        keeper=Keeper(lambda _mark: None, lambda _of: None, lambda _run: None),
        launch=launch,
        cancel=lambda _run, _reason: None,
    )


async def commands() -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield (command, arguments) from JSON lines on stdin, until stdin ends."""
    stream = trio.lowlevel.FdStream(os.dup(0))
    buffer = b""
    async for data in stream:
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            yield command.pop("do"), command
