"""The ledger and the bus for tests and the simulator: the same rules and interfaces, in memory, with injected time."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any, TypeVar

import trio

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.fires import SUCCEEDED, Decided
from coordd.core.ledger.identity import Known, admit, refusal
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Prune
from coordd.core.ledger.rows import AttemptRow, Hold, LedgerTime, Row
from coordd.core.ledger.rules import Rules
from coordd.core.ledger.runner_requests import Request
from coordd.core.ledger.words import TERMINAL
from coordd.errors import LocalProtocolError, UnavailableError
from coordd.history.replay.store import MemoryStore, counts_as_fired

A = TypeVar("A", bound=Answer | OpenAnswer)
T = TypeVar("T")

# The number of messages that a bus keeps for a slow receiver. The queue of a real broker is bounded too.
INBOX_LENGTH_MAX = 10_000


class MemoryLedger:
    """ports.Ledger over a MemoryStore. Several nodes of one process may share it.

    ``clock`` gives the ledger's time. With ``reachable`` set to False every call fails, as with a ledger that is away.
    ``known`` is the identity of the next callers (core.ledger.identity); None: they ask without an identity.
    """

    def __init__(self, clock: Callable[[], LedgerTime], *, url: str = "memory://") -> None:
        self.url = url
        self.known: Known | None = None
        self.reachable = True
        self._clock = clock
        self._rules = Rules()
        self._store = MemoryStore()
        self._turn = Lock()
        self._closed = False

    def ask(self, request: Request[A]) -> A:
        """Perform one operation, completely or not at all."""
        return self._transact(lambda store, now: self._rules.answer(store, request, now))

    def run(self, run: str) -> Row | None:
        """One run, or None."""
        return self._read(lambda store: store.run(run))

    def recorded(self, runs: Sequence[str]) -> set[str]:
        """Those of these runs that are there."""
        return self._read(lambda store: {run for run in runs if store.run(run) is not None})

    def runs(self, *, job: str = "", state: str = "", limit: int = 100) -> list[Row]:
        """Runs for people, newest first; of one job and in one state if these are given."""

        def newest(store: MemoryStore) -> list[Row]:
            found = [row for row in store.runs.values() if job in ("", row.job) and state in ("", row.state)]
            return [row.copy() for row in heapq.nlargest(limit, found, key=lambda row: (row.created_at, row.run))]

        return self._read(newest)

    def attempts(self, run: str) -> list[AttemptRow]:
        """The attempts of one run, from first to last."""
        found = self._read(lambda store: sorted(store.attempts.get(run, {}).items()))
        return [AttemptRow(row.values()) for _, row in found]

    def fires(self, job: str) -> Decided:
        """The record of a job's fire times without a row."""
        return self._read(lambda store: self._rules._decided(store, job))

    def fired(self, job: str, after: float, upto: float, limit: int = 1000) -> list[Row]:
        """A job's scheduled runs that are due in that time, oldest first."""

        def due(store: MemoryStore) -> list[Row]:
            rows = [row for row in store.runs.values() if row.job == job and counts_as_fired(row)]
            found = sorted((row for row in rows if after < row.due_at <= upto), key=lambda row: (row.due_at, row.run))
            return [row.copy() for row in found[:limit]]

        return self._read(due)

    def succeeded(self, jobs: Sequence[str]) -> dict[str, float]:
        """The end of the last success of each job that has one."""
        known = self._read(lambda store: {job: store.meta(SUCCEEDED + job) for job in jobs})
        return {job: float(at) for job, at in known.items() if at}

    def mark(self, key: str) -> Hold | None:
        """The hold of that key."""
        return self.marks(key).get(key)

    def marks(self, prefix: str) -> dict[str, Hold]:
        """The same for all keys that begin so."""
        every = self._read(self._rules._every_hold)
        return {key: hold for key, hold in every.items() if key.startswith(prefix)}

    def status(self) -> dict[str, Any]:
        """The number of runs in each state."""
        counts = self._read(lambda store: Counter(row.state for row in store.runs.values()))
        return {"url": self.url, "jobs": len(self._store.jobs), "runs": dict(counts)}

    def ended_ago(self, rank: int) -> float | None:
        """How long ago a run ended after which ``rank`` others have ended; None: there is none."""
        ended = self._read(lambda store: sorted(row.ended_at for row in store.runs.values() if row.state in TERMINAL))
        return self._clock().wall - ended[-1 - rank] if rank < len(ended) else None

    def prune(self, keep_s: float, limit: int = 1000) -> int:
        """Forget at most ``limit`` runs that ended more than ``keep_s`` ago. Returns their number."""
        return self.ask(Prune(keep_s=keep_s, limit=limit)).token

    def close(self) -> None:
        """Close the ledger. Each later call raises UnavailableError."""
        self._closed = True

    def snapshot(self) -> MemoryStore:
        """The present contents of the ledger, for ``restore``. Later operations do not change the snapshot."""
        with self._turn:
            return self._store.snapshot()

    def restore(self, snapshot: MemoryStore) -> None:
        """Return to a snapshot, as a ledger does that has lost its last writes."""
        with self._turn:
            self._store = snapshot.snapshot()

    def _transact(self, rule: Callable[[MemoryStore, LedgerTime], T]) -> T:
        with self._turn:
            self._check()
            store, now, known = self._store, self._clock(), self.known
            try:
                refused = admit(store, known, recovering=now.recovering_s > 0) if known is not None else ""
                if refused and known is not None:
                    raise refusal(refused, self.url, known)
                answer = rule(store, now)
                if known is not None and isinstance(answer, OpenAnswer):
                    answer.identity, answer.predecessor = known.found, known.predecessor
            except BaseException:
                store.rollback()
                raise
            store.commit()
            return answer

    def _read(self, question: Callable[[MemoryStore], T]) -> T:
        with self._turn:
            self._check()
            return question(self._store)

    def _check(self) -> None:
        if self._closed or not self.reachable:
            raise UnavailableError(f"ledger {self.url}: {'it was closed' if self._closed else 'no answer'}")


class MemoryExchange:
    """A broker in memory. All MemoryBus objects of one exchange hear each other.

    ``drop`` decides for each (sender, receiver, data) whether the message is lost. ``partition`` cuts the exchange into
    groups that do not hear each other. Messages between groups are lost silently, as on a real network.
    """

    def __init__(self, *, drop: Callable[[str, str, bytes], bool] | None = None) -> None:
        self.drop = drop
        self.buses: dict[str, MemoryBus] = {}
        self._groups: dict[str, int] = {}

    def bus(self, name: str) -> MemoryBus:
        """A bus for the node of this full_hostname."""
        if name in self.buses:
            raise LocalProtocolError(f"{name} is on this exchange already")
        bus = self.buses[name] = MemoryBus(self, name)
        return bus

    def partition(self, *groups: Iterable[str]) -> None:
        """Let only members of the same group hear each other. A node without a group hears nobody."""
        self._groups = {name: number for number, group in enumerate(groups, 1) for name in group}
        for name, bus in self.buses.items():
            bus.state = "connected" if name in self._groups else "disconnected"

    def heal(self) -> None:
        """Let everybody hear everybody again."""
        self._groups = {}
        for bus in self.buses.values():
            bus.state = "connected"

    def passes(self, sender: str, receiver: str, data: bytes) -> bool:
        """True if a message from one node arrives at the other."""
        if self._groups:
            group = self._groups.get(sender)
            if group is None or group != self._groups.get(receiver):
                return False
        return self.drop is None or not self.drop(sender, receiver, data)


class MemoryBus:
    """ports.Bus over a MemoryExchange."""

    def __init__(self, exchange: MemoryExchange, name: str) -> None:
        self.url = f"memory://{name}"
        self.state = "connected"
        self.error = ""
        self.name = name
        self._exchange = exchange
        self._inbox: deque[tuple[str, bytes]] = deque()  # ("", data), or (name of the dead, b"")
        self._arrived = trio.Event()
        self._counts = {"published": 0, "delivered": 0, "bytes": 0, "dropped": 0}

    def publish(self, data: bytes, confirmed: Callable[[bool], None] | None = None) -> None:
        """Send to all other nodes."""
        self._counts["published"] += 1
        for name, peer in list(self._exchange.buses.items()):
            if name != self.name:
                self._hand(peer, data)
        if confirmed is not None:
            confirmed(self.state == "connected")

    def send(self, name: str, data: bytes) -> None:
        """Send to one full_hostname. If no node of that name is left, ``dead`` says so."""
        self._counts["published"] += 1
        peer = self._exchange.buses.get(name)
        if peer is not None:
            self._hand(peer, data)
        elif self._exchange.passes(self.name, self.name, data):  # a node that is cut off itself learns nothing
            self._put(name, b"")

    def peers(self) -> Sequence[str]:
        """The other nodes on the exchange."""
        return sorted(name for name in self._exchange.buses if name != self.name)

    async def receive(
        self,
        deliver: Callable[[bytes], None],
        dead: Callable[[str], None],
        changed: Callable[[bool], None] = lambda _up: None,
    ) -> None:
        """Deliver messages without end; b"" marks the end of a burst."""
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            delivered = False
            while self._inbox:
                name, data = self._inbox.popleft()
                if name:
                    dead(name)
                    continue
                self._counts["delivered"] += 1
                deliver(data)
                delivered = True
            if delivered:
                deliver(b"")

    def statistics(self) -> dict[str, int]:
        """Counters since the start."""
        return dict(self._counts)

    def close(self) -> None:
        """Leave the exchange. A node that sends to us now learns that nobody listens."""
        self.state = "disconnected"
        if self._exchange.buses.get(self.name) is self:
            del self._exchange.buses[self.name]

    def _hand(self, peer: MemoryBus, data: bytes) -> None:
        if self.state == "connected" and self._exchange.passes(self.name, peer.name, data) and peer._put("", data):
            self._counts["bytes"] += len(data)
        else:
            self._counts["dropped"] += 1

    def _put(self, name: str, data: bytes) -> bool:
        if len(self._inbox) >= INBOX_LENGTH_MAX:
            return False
        self._inbox.append((name, data))
        self._arrived.set()
        return True
