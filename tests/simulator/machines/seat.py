"""The services of daemons: what one sees of its daemon (its driver, its ledger, its node), and who starts them."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from coordd.core.ledger.runner_requests import Registration
from coordd.core.ready import Now, Reply
from coordd.errors import UnavailableError
from simulator.machines.waiting import Question, Then, Turns

if TYPE_CHECKING:
    from simulator.machines.daemon import Daemon
    from simulator.world import World


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


S = TypeVar("S", bound=Seat)


class Services(ABC, Generic[S]):
    """The services of one kind, of all daemons, in worlds of that ``kind``. ``what``: they are of, for people."""

    kind: str
    what: str

    def __init__(self, world: World, turns: Turns) -> None:
        self.world, self.turns = world, turns

    def start(self, daemon: Daemon) -> S | None:
        """The service of a daemon that starts; None in most worlds."""
        if self.kind not in self.world.plan.kinds:
            return None
        with self.turns.of(daemon):
            seat = self._seat(daemon)
        self.turns.begin(daemon, self._runs(seat), self._ended)
        return seat

    def _ended(self, why: Any) -> None:
        self.world.violate(f"X the service of {self.what} has ended: {why!r}")

    @contextlib.contextmanager
    def patched(self) -> Generator[None]:
        """The services run in this world."""
        with contextlib.ExitStack() as patches:
            if self.kind in self.world.plan.kinds:
                self._patch(patches)
            yield

    @abstractmethod
    def _seat(self, daemon: Daemon) -> S: ...

    @abstractmethod
    def _runs(self, seat: S) -> Coroutine[Any, Any, Any]: ...

    @abstractmethod
    def _patch(self, patches: contextlib.ExitStack) -> None: ...
