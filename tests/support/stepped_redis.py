"""A Redis ledger under a clock that only moves when a test moves it. The scripts read a key instead of Redis's TIME."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Sequence
from typing import Any

import trio

from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.adapters.ledger.redis_loop import RedisLoopLedger
from coordd.adapters.ledger.redis_scripts import Scripts
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.rows import LedgerTime
from coordd.core.ledger.runner_requests import Request
from coordd.core.ledger.words import ACTIVE, PENDING, REVOKED, STATES, TERMINAL
from support.ledger_calls import FakeClock
from support.lua import headers

ASKS = "redis.call('TIME')"
# The longest lease plus the delay of a replica, in tests that count on it.
QUARANTINE_S = 70.0

Steps = Generator[Any, list[Any], list[Any]]

READS = "redis.call('HMGET', prefix .. 'clock', 's', 'us', 'info')"
# Where a test says what the server tells of itself, it need not be so.
INFO = "redis.call('INFO', 'replication')"


class OneClock(FakeClock):
    """A server with one clock. Leases are counted on the wall clock, which survives reboots."""

    def __init__(self) -> None:
        super().__init__()
        self.boot = ""

    @property
    def lease(self) -> float:
        return self.wall

    @lease.setter
    def lease(self, value: float) -> None:
        """Does nothing: there is no other clock to set."""

    def step(self, seconds: float) -> None:
        self.wall += seconds

    def parts(self) -> tuple[int, int]:
        """The time in the form of Redis's TIME. The wall clock is rounded to the value
        that a script computes from it.
        """
        micros = round(self.wall * 1e6)
        self.wall = micros // 1_000_000 + micros % 1_000_000 / 1e6
        return divmod(micros, 1_000_000)


class RecoveringClock(OneClock):
    """A clock that counts a quarantine as Redis does: to an instant. Setting the clock back does not make it longer."""

    open_at = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.since = self.wall

    def __call__(self) -> LedgerTime:
        if self.wall >= self.open_at:
            self.open_at = 0.0
        elif self.wall < self.since:
            self.open_at = min(self.open_at, self.wall + QUARANTINE_S)
        else:
            self.open_at = max(self.open_at, self.since + QUARANTINE_S)
        return LedgerTime(self.wall, self.wall, "", max(0.0, self.open_at - self.wall), f"{self.since * 1e6:.0f}")


def rewritten(text: str) -> str:
    assert text.count(ASKS) == text.count(f"local stamp = {ASKS}") == 1
    return text.replace(ASKS, READS).replace(INFO, f"(stamp[3] or {INFO})")


class SteppedLedger(RedisLedger):
    """A ledger of its own on a shared server. It has no quarantine unless a test wants one."""

    def __init__(self, url: str, clock: OneClock, **options: Any) -> None:
        super().__init__(url, 5.0, scripts=Scripts(rewritten), **{"cluster": f"t-{uuid.uuid4().hex}", **options})
        self._clock = clock
        if "fresh" not in options:
            self.accept_epoch()

    def ask_all(self, batch: Sequence[Request[Answer | OpenAnswer]]) -> list[Answer | OpenAnswer]:
        if not self._closed:
            seconds, micros = self._clock.parts()
            self.read([("HSET", self.key("clock"), "s", seconds, "us", micros)])
        return super().ask_all(batch)

    def tells(self, info: str) -> None:
        """From now on the server seems to say this about its replication."""
        self.read([("HSET", self.key("clock"), "info", info)])

    def _steps(self, questions: list[tuple[str, list[bytes]]], deadline: float) -> Steps:
        """Every request to a script, and every answer, must agree with the header of the script."""
        for op, arguments in questions:
            headers.check_question(op, len(arguments))
        replies = yield from super()._steps(questions, deadline)
        for (op, _), reply in zip(questions, replies, strict=True):
            headers.check_reply(op, reply)
        return replies

    def check_sets(self, *jobs: str) -> None:
        """Fails unless the sorted sets of these jobs, and those of all jobs, agree with the rows."""
        rows = self.runs(limit=100_000)
        wanted: dict[str, dict[str, float]] = {
            **{f"list:{state}:{job}": {} for state in ("", *STATES) for job in ("", *jobs)},
            **{f"{kind}:{job}": {} for kind in ("active", "waiting", "fired") for job in jobs},
            "open": {},
            "ended": {},
        }
        for row in rows:
            for state in ("", row.state):
                for job in ("", row.job):
                    wanted[f"list:{state}:{job}"][row.run] = row.created_at
            if row.state in ACTIVE:
                wanted[f"active:{row.job}"][row.run] = 0.0
            if row.state == PENDING:
                wanted[f"waiting:{row.job}"][row.run] = row.not_before
            if row.state in TERMINAL:
                wanted["ended"][row.run] = row.ended_at
            else:
                wanted["open"][row.run] = row.not_before
            if row.scheduled and not (row.state == REVOKED and not row.token):
                wanted[f"fired:{row.job}"][row.run] = row.due_at
        found = self.read([("ZRANGE", self.key(name), 0, -1, "WITHSCORES") for name in wanted])
        for name, flat in zip(wanted, found, strict=True):
            held = {run.decode(): float(score) for run, score in zip(flat[::2], flat[1::2], strict=True)}
            assert held == wanted[name], name


class SteppedLoopLedger(SteppedLedger, RedisLoopLedger):
    """The same ledger, asked on trio's loop."""

    def ask_all(self, batch: Sequence[Request[Answer | OpenAnswer]]) -> list[Answer | OpenAnswer]:
        if not self.is_open:
            return super().ask_all(batch)
        seconds, micros = self._clock.parts()
        self.read([("HSET", self.key("clock"), "s", seconds, "us", micros)])
        return trio.run(self.ask_here, batch)
