"""What a service of one daemon sees of it: its driver, its ledger, its node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from coordd.core.ledger.runner_requests import Registration
from coordd.core.ready import Now, Reply
from coordd.errors import UnavailableError
from simulator.machines.waiting import Question, Then, Turns

if TYPE_CHECKING:
    from simulator.machines.daemon import Daemon


class Seat:
    """In place of ``Driver`` and ``LedgerService``."""

    def __init__(self, daemon: Daemon, turns: Turns, requests: int) -> None:
        """``requests``: the numbers of its requests begin here; those of people are lower."""
        self._daemon, self._turns = daemon, turns
        self.node = daemon.node
        self._replies: dict[int, Then] = {}
        self._number = requests

    def now(self) -> Now:
        return self._daemon.time()

    def feed(self, call: Callable[..., Any], *args: Any) -> Any:
        """As the driver does."""
        result = call(*args, self.now())
        self._daemon.pump()
        return result

    async def query(self, call: Callable[[Any], Any]) -> Any:
        return await self._turns.run_sync(self._read, call)

    def _read(self, call: Callable[[Any], Any]) -> Any:
        server = self._daemon.world.server
        if not server.reaches(self._daemon.host):
            raise UnavailableError("the ledger is away")
        return call(server.ledger)

    async def trigger(self, of: Registration) -> Reply:
        said: Reply = await Question(partial(self._ask, of))
        return said

    def _ask(self, of: Registration, then: Then) -> None:
        self._number += 1
        self._replies[self._number] = then
        self._daemon.feed(self.node.trigger, of, self._number)

    def replied(self, reply: Reply) -> None:
        """The node has answered a request; it may be one of this service."""
        then = self._replies.pop(reply.id, None)
        if then is not None:
            self._daemon.world.at(0.0, then, reply)
