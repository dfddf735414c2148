"""The seams: what the services need of the world, as Protocols. Adapters fill them; tests fill them from memory.

No library's exception crosses a port: an adapter raises UnavailableError where the world did not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from coordd.core.ledger.answers import Answer, OpenAnswer
from coordd.core.ledger.requests import Request
from coordd.core.ledger.rows import AttemptRow, Row

A = TypeVar("A", bound=Answer | OpenAnswer)


class Ledger(Protocol):
    """The one authority over launches. Blocking: the ledger service calls it from a worker thread.

    ``ask`` does one operation (core.ledger.requests) and raises UnavailableError when there was no answer in time;
    whether the operation took place is then unknown, and asking again is safe.
    """

    @property
    def url(self) -> str:
        """For people, without a password."""

    def ask(self, request: Request[A]) -> A: ...
    def run(self, run: str) -> Row | None: ...
    def runs(self, *, job: str = "", state: str = "", limit: int = 100) -> list[Row]: ...
    def attempts(self, run: str) -> list[AttemptRow]: ...
    def status(self) -> dict[str, Any]: ...

    def prune(self, keep_s: float, limit: int = 1000) -> int:
        """Forget runs that ended longer ago than that by the ledger's clock, so many at most; returns how many."""

    def close(self) -> None: ...


# What not every ledger can do. Whoever needs it asks with isinstance.


@runtime_checkable
class Batching(Protocol):
    """A ledger over a network: many operations in one round trip."""

    def ask_all(self, batch: Sequence[Request[Answer | OpenAnswer]]) -> list[Answer | OpenAnswer]:
        """One after the other. Raises UnavailableError for all of them."""


@runtime_checkable
class Portable(Protocol):
    """A ledger whose rows can be taken elsewhere."""

    def export(self) -> Iterator[dict[str, Any]]:
        """All rows, as JSON can hold them: jobs, then each run with its attempts."""

    def import_(self, rows: Iterable[dict[str, Any]], *, replace: bool = False) -> int:
        """Take the rows of an export, all or none; returns how many. Raises RefusedError."""


@runtime_checkable
class Quarantined(Protocol):
    """A ledger that can go back, and then grants nothing for a while."""

    def accept_epoch(self) -> float:
        """End the quarantine; returns the seconds that were left of it."""


@runtime_checkable
class Verifiable(Protocol):
    """A ledger whose file can be looked through."""

    def integrity(self) -> list[str]:
        """What is wrong with it, a sentence each."""


class Bus(Protocol):
    """Gossip: datagrams to all other nodes, or to one. It may lose, duplicate and reorder; it never blocks."""

    url: str

    @property
    def state(self) -> str:
        """starting | connected | disconnected."""

    @property
    def error(self) -> str:
        """Why it is not connected, for people; "" otherwise."""

    def publish(self, data: bytes, confirmed: Callable[[bool], None] | None = None) -> None:
        """Send to every other node; what a slow peer cannot take is dropped and counted.

        What must arrive has ``confirmed``: called once, later or at once, True when the transport took
        responsibility for the message, False when it may be lost (then it is the caller's again).
        """

    def send(self, name: str, data: bytes) -> None:
        """Send to the inbox of one full_hostname."""

    def peers(self) -> Sequence[str] | None:
        """The full_hostnames that the transport itself knows of (for mingle), less our own; None: it cannot tell."""

    async def receive(
        self,
        deliver: Callable[[bytes], None],
        dead: Callable[[str], None],
        changed: Callable[[bool], None] = lambda _up: None,
    ) -> None:
        """Run for ever: call ``deliver`` for each message, then once with b"" when a burst is over;
        ``dead`` with a full_hostname at which nobody listens any more; ``changed`` with True when a connection
        is there and with False when it was lost (a bus without connections never calls it)."""

    def statistics(self) -> dict[str, int]:
        """Counters: published, delivered, bytes, dropped."""

    def close(self) -> None: ...


class Message(NamedTuple):
    """What must arrive and could not leave yet. ``at`` and ``until`` (Unix seconds): said then, of use until then."""

    number: int  # grows with each message of a node, also over a restart
    at: float
    until: float
    data: bytes


class Backlog(Protocol):
    """Messages on the disk, in the order of their numbers. Blocking; each raises UnavailableError."""

    count: int
    bytes: int
    oldest_at: float  # Unix seconds; 0.0 when there is none

    def append(self, messages: Sequence[Message], now: float) -> int:
        """Keep them, in one transaction; returns how many of the oldest were given up for want of room."""

    def first(self, limit: int) -> list[Message]:
        """The first ones, at most so many."""

    def remove(self, numbers: Sequence[int]) -> None:
        """They have arrived, or are of no use any more."""

    def close(self) -> None: ...


class Journal(Protocol):
    """A node's own append-only record, one JSON object a line."""

    def append(self, records: Sequence[dict[str, Any]], *, sync: bool) -> None:
        """Write records in order; with ``sync`` they are on the disk when this returns.

        Raises UnavailableError when the disk does not take them.
        """

    def close(self) -> None: ...


class Notifier(Protocol):
    """The service manager."""

    watchdog_s: float | None

    def notify(self, *lines: str) -> None:
        """Send assignments such as READY=1 or STATUS=…; silent when nobody listens."""


class Launcher(Protocol):
    """Starts runners and finds those that are there."""

    def start(self, spec: dict[str, Any]) -> str:
        """Start the runner of one attempt; returns the path of its directory.

        Raises UnavailableError when the operating system does not let us.
        """

    def command(self, directory: str, word: str, reason: str) -> bool:
        """Tell a runner to cancel; False when it is not there any more."""

    def scan(self) -> list[str]:
        """The directories of runners that were started here, by this daemon or by an earlier one."""

    def clear_away(self) -> None:
        """Remove what is left on the disk of no attempt; before the first one is started."""

    def spec(self, directory: str) -> dict[str, Any]:
        """What was asked for, without its secrets. Raises UnavailableError when it cannot be read."""

    def facts(self, directory: str) -> list[dict[str, Any]]:
        """What the runner has said so far, oldest first."""

    def alive(self, directory: str) -> bool:
        """The runner, or a watcher that still has to end something, is there."""

    def bury(self, directory: str) -> None:
        """Runner and watcher are gone without a last word: end what they left, and report it lost.

        Raises UnavailableError when that cannot be begun.
        """

    def buried(self, directory: str) -> bool:
        """A watcher has ended what was left, whether the disk took how it ended or not."""

    def fact(self, line: bytes) -> dict[str, Any] | None:
        """A fact that came with a poke; None when it is none."""

    def restore(self, directory: str) -> None:
        """Make the directory of an attempt that lives on again, where somebody has removed it."""

    def forget(self, directory: str) -> None:
        """Remove what an attempt has left on disk."""

    def reap(self) -> list[str]:
        """Collect runners that have ended since the last call."""
