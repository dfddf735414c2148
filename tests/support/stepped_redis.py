"""A Redis ledger under a clock that only moves when told: the scripts read a key where they would ask for the time."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.adapters.ledger.redis_scripts import Scripts
from coordd.core.ledger.answers import Answer, OpenAnswer
from coordd.core.ledger.requests import Request
from support.ledger_calls import FakeClock
from support.lua import headers

ASKS = "redis.call('TIME')"
READS = "redis.call('HMGET', prefix .. 'clock', 's', 'us')"


class OneClock(FakeClock):
    """A server with one clock: what leases are counted on is the wall clock, and survives reboots."""

    def __init__(self) -> None:
        super().__init__()
        self.boot = ""

    @property
    def lease(self) -> float:
        return self.wall

    @lease.setter
    def lease(self, value: float) -> None:
        """There is no other clock to set."""

    def step(self, seconds: float) -> None:
        self.wall += seconds

    def parts(self) -> tuple[int, int]:
        """As Redis's TIME says it; the wall is what a script makes of these."""
        micros = round(self.wall * 1e6)
        self.wall = micros // 1_000_000 + micros % 1_000_000 / 1e6
        return divmod(micros, 1_000_000)


def rewritten(text: str) -> str:
    assert text.count(ASKS) == 1
    return text.replace(ASKS, READS)


class SteppedLedger(RedisLedger):
    """A ledger of its own on a shared server; there is no quarantine unless a test wants one."""

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

    def _ask(self, questions: list[tuple[str, list[bytes]]], deadline: float) -> list[Any]:
        """What every script is sent and answers is what its header says."""
        for op, arguments in questions:
            headers.check_question(op, len(arguments))
        replies = super()._ask(questions, deadline)
        for (op, _), reply in zip(questions, replies, strict=True):
            headers.check_reply(op, reply)
        return replies
