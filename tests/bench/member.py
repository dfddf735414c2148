"""One node of an election benchmark, as a process. It has the real driver, node and unix bus, and also a bare socket.

It reads commands as JSON lines from stdin, and answers on stdout. It ends at the end of stdin.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Any

import trio
from support.memory import MemoryLedger

from bench.told import commands, driver_of, fresh_node
from coordd.adapters import logs
from coordd.adapters.bus.unix_bus import UnixBus
from coordd.core.context import Settings
from coordd.core.election import Election
from coordd.core.ledger.rows import LedgerTime
from coordd.core.node.elections import Elections
from coordd.core.ready import Now
from coordd.services.ledger import LedgerService, boottime

# No heartbeat is sent during a measurement, so the bus counts only elections. All other settings are the defaults. If
# an election loses a message, it is decided at its timeout, and the figures show that.
SETTINGS = Settings(heartbeat_interval_s=3600.0)

# A bare datagram is as long as a packet with one elect event.
PAYLOAD = b"x" * 260

# Pause (seconds) between two measurements; after it all nodes are at rest.
PAUSE_S = 0.003

# Longer than an election's timeout.
GIVE_UP_S = 3.0

LIMIT_S = 30.0
DATAGRAM_MAX = 65536


class Member:
    """One node and its bare socket."""

    def __init__(self, root: str, index: int, count: int) -> None:
        self.root = root
        self.index = index
        self.count = count
        self.node = fresh_node(f"n{index}", index, SETTINGS)
        self.bus = UnixBus(f"unix://{root}/bus", self.node.full_hostname)
        self.ledger = LedgerService(lambda: MemoryLedger(_ledger_time), 1.0)  # asked once, by the first sweep
        self.driver = driver_of(self.node, self.bus, self.ledger, lambda _launch: None)
        self.decided: dict[str, float] = {}
        self.news = trio.Event()
        settled = Elections._settled

        def watched(elections: Elections, election: Election, now: Now) -> None:
            settled(elections, election, now)
            self._on_decided(election)

        Elections._settled = watched  # type: ignore[assignment, method-assign]  # a process has one node
        self.waits_for = ""
        self.waits_count = 0
        self.asker: trio.socket.SocketType

    async def run(self) -> None:
        """Run until stdin ends."""
        self.asker = self._bare_socket("asker", self.index)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.bus.receive, self.driver.deliver, self._peer_dead)
            nursery.start_soon(self.ledger.run, self.driver.ledger_answers)
            nursery.start_soon(self.driver.run)
            nursery.start_soon(self._answer_bare, self._bare_socket("bare", self.index))
            self.driver.feed(self.node.start, tuple(self.bus.peers()))
            async for word, arguments in commands():
                with trio.fail_after(LIMIT_S):
                    answer = await getattr(self, f"do_{word}")(**arguments)
                print(json.dumps(answer), flush=True)
            nursery.cancel_scope.cancel()
        self.bus.close()

    # ---- commands

    async def do_join(self) -> dict[str, Any]:
        """Wait until all members are there."""
        while self.node.state != "ready" or len(self.node.ctx.membership.view()) < self.count:
            await trio.sleep(0.01)
        return {"name": self.node.full_hostname}

    async def do_counts(self) -> dict[str, int]:
        """The counters of the bus."""
        return self.bus.statistics()

    async def do_latency(self, prefix: str, rounds: int) -> dict[str, Any]:
        """Bare exchanges and elections, alternately. This node opens the elections."""
        bare, elections = [], {}
        for number in range(rounds):
            for what in ("bare", "election") if number % 2 else ("election", "bare"):
                await trio.sleep(PAUSE_S)
                if what == "bare":
                    bare.append(await self._bare_exchange())
                else:
                    ident = f"{prefix}{number}/0"
                    self._await(ident, 1)
                    began = time.perf_counter()
                    self.driver.feed(self.node.open_election, ident, "drill", None)
                    await self.news.wait()
                    elections[ident] = began
        return {"bare": bare, "elections": elections}

    async def do_decided(self, prefix: str, count: int) -> dict[str, float]:
        """When this node decided each election with that prefix (CLOCK_MONOTONIC). Waits until ``count`` are decided.

        If a node never heard of an election, it stops waiting after GIVE_UP_S and returns fewer.
        """
        self._await(prefix, count)
        with trio.move_on_after(GIVE_UP_S):
            await self.news.wait()
        found = {ident: at for ident, at in self.decided.items() if ident.startswith(prefix)}
        for ident in found:
            del self.decided[ident]
        return found

    async def do_burst(self, prefix: str, count: int, together: bool) -> dict[str, float]:
        """Open many elections: all in one turn of the loop, as a schedule does, or each in a turn of its own."""
        await trio.sleep(10 * PAUSE_S)
        idents = [f"{prefix}{number}/0" for number in range(count)]
        began = time.perf_counter()
        if together:
            for ident in idents:
                self.node.open_election(ident, "drill", None, self.driver.now())
            self.driver.pump()
        else:
            for ident in idents:
                self.driver.feed(self.node.open_election, ident, "drill", None)
                await trio.lowlevel.checkpoint()
        return {"began": began}

    # ---- elections

    def _on_decided(self, election: Election) -> None:
        self.decided[election.id] = time.perf_counter()
        if self.waits_count and election.id.startswith(self.waits_for):
            self.waits_count -= 1
            if not self.waits_count:
                self.news.set()

    def _await(self, prefix: str, count: int) -> None:
        self.news = trio.Event()
        self.waits_for = prefix
        self.waits_count = count - sum(1 for ident in self.decided if ident.startswith(prefix))
        if self.waits_count <= 0:
            self.waits_count = 0
            self.news.set()

    def _peer_dead(self, name: str) -> None:
        self.driver.feed(self.node.peer_dead, name)

    # ---- the bare exchange: one datagram to all nodes, N - 1 answers

    def _bare_socket(self, kind: str, index: int) -> trio.socket.SocketType:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.bind(self._bare_path(kind, index))
        return trio.socket.from_stdlib_socket(sock)

    def _bare_path(self, kind: str, index: int) -> str:
        return f"{self.root}/{kind}-{index}"

    async def _answer_bare(self, sock: trio.socket.SocketType) -> None:
        while True:
            data, sender = await sock.recvfrom(DATAGRAM_MAX)
            await sock.sendto(data, sender)

    async def _bare_exchange(self) -> float:
        others = [self._bare_path("bare", index) for index in range(self.count) if index != self.index]
        began = time.perf_counter()
        for path in others:
            await self.asker.sendto(PAYLOAD, path)
        for _ in others:
            await self.asker.recvfrom(DATAGRAM_MAX)
        return time.perf_counter() - began


def _ledger_time() -> LedgerTime:
    return LedgerTime(time.time(), boottime(), "")


if __name__ == "__main__":
    logs.configure(level="error")
    trio.run(Member(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).run)
