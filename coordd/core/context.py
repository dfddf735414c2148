"""What the parts of a node share: who it is, its settings, its clock, its timers, and what it wants done."""

from __future__ import annotations

import heapq
from typing import Protocol

import msgspec

from coordd.core.clock import LamportClock
from coordd.core.events import Event
from coordd.core.job import Job
from coordd.core.membership import Membership
from coordd.core.ready import LedgerRequest, Notice, Now, Ready


class Rng(Protocol):
    """The randomness that the core is given."""

    def getrandbits(self, k: int, /) -> int: ...


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the core needs of the configuration. Durations in seconds."""

    cluster: str = "default"
    heartbeat_interval_s: float = 2.0
    election_timeout_s: float = 1.0
    mingle: bool = True
    mingle_timeout_s: float = 1.0
    lease_s: float = 60.0
    renew_interval_s: float = 5.0
    ledger_timeout_s: float = 2.0
    kill_grace_s: float = 10.0
    budget_client: int = 2
    budget_cluster: int = 20
    tags: tuple[str, ...] = ()
    version: str = ""
    system: str = "Linux"


# Two round trips of the ledger: what rank r waits r times. Measured, within these bounds.
STAGGER_MIN_S = 0.01
STAGGER_MAX_S = 1.0

# Scheduled runs are opened this long before their fire time.
LEAD_S = 1.0


class Context:
    """Shared by the parts of one node; nothing outside the core sees it."""

    __slots__ = (
        "_armed", "_next_request", "_serial", "clock", "full_hostname", "hostname", "impaired", "incarnation",
        "jobs", "jobs_digest", "launch_problems", "loadavg", "membership", "out", "pid", "processed",
        "rng", "round_trip_s", "settings", "state", "timers", "tokens",
    )  # fmt: skip

    def __init__(
        self, *, hostname: str, pid: int, incarnation: str, settings: Settings, clock: LamportClock, rng: Rng
    ) -> None:
        self.hostname = hostname
        self.pid = pid
        self.full_hostname = f"{hostname}.{pid}"
        self.incarnation = incarnation
        self.settings = settings
        self.clock = clock
        self.rng = rng
        self.membership = Membership(self.full_hostname, settings.heartbeat_interval_s)
        self.jobs: dict[str, Job] = {}
        self.jobs_digest = ""
        self.launch_problems: dict[str, str] = {}  # job -> why this node cannot start it (spark-submit missing, …)
        self.impaired = ""  # why this node should launch nothing (its disk is full, …)
        self.tokens: dict[str, int] = {}  # job -> the highest token seen: a witness against a ledger gone back
        self.loadavg = (0.0, 0.0, 0.0)
        self.processed = 0
        self.round_trip_s = STAGGER_MIN_S / 2
        self.state = "starting"
        self.out = Ready()
        self.timers: list[tuple[float, int, str, str]] = []
        self._armed: dict[tuple[str, str], float] = {}  # (kind, key) -> when that one is woken next
        self._serial = 0
        self._next_request = 0

    # ---- time

    def arm(self, at: float, kind: str, key: str = "") -> None:
        """Wake at ``at`` (mono) or sooner. Whoever is woken looks whether it is due, and arms again if it is not."""
        if self._armed.get((kind, key), float("inf")) <= at:
            return  # one waking at a time: what is armed again and again must not fill the heap
        self._armed[kind, key] = at
        self._serial += 1
        heapq.heappush(self.timers, (at, self._serial, kind, key))

    def due(self, now: float) -> tuple[str, str] | None:
        """The next (kind, key) to be woken, taken off the list; None when nothing is due."""
        while self.timers and self.timers[0][0] <= now:
            at, _, kind, key = heapq.heappop(self.timers)
            if self._armed.get((kind, key)) == at:  # else it was armed for an earlier time since, and woken then
                del self._armed[kind, key]
                return kind, key
        return None

    @property
    def stagger_s(self) -> float:
        """What one rank of a succession is worth."""
        return min(STAGGER_MAX_S, max(STAGGER_MIN_S, 2 * self.round_trip_s))

    # ---- output

    def publish(self, event: Event, now: Now) -> None:
        """Say it to every node."""
        self._stamp(event, now)
        self.out.messages.append(event)

    def send(self, name: str, event: Event, now: Now) -> None:
        """Say it to one node, by full_hostname."""
        self._stamp(event, now)
        self.out.letters.append((name, event))

    def _stamp(self, event: Event, now: Now) -> None:
        event.clock = self.clock.forward()
        event.timestamp = now.wall

    def record(self, event: Event, now: Now, *, sync: bool = False) -> None:
        """Say it to every node and keep it in the journal."""
        self.publish(event, now)
        self.out.journal.append(event)
        self.out.journal_sync = self.out.journal_sync or sync

    def ask(self, op: str, *args: object) -> int:
        """Ask the ledger; returns the id of the request."""
        self._next_request += 1
        self.out.ledger.append(LedgerRequest(self._next_request, op, args))
        return self._next_request

    def note(self, event: str, **fields: object) -> None:
        """Say it to the log."""
        self.out.notices.append(Notice(event, fields))

    def nonce(self) -> str:
        """A claimant's random mark."""
        return f"{self.rng.getrandbits(64):016x}"

    def lease_of(self, job: str) -> float:
        """The lease (seconds) that holders of that job's runs have, as far as this node knows."""
        known = self.jobs.get(job)
        return known.lease_s if known else self.settings.lease_s

    def saw_token(self, job: str, token: int) -> None:
        """Remember the highest token of a job."""
        if token > self.tokens.get(job, 0):
            self.tokens[job] = token
