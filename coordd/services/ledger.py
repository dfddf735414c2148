"""The ledger service: what the core asks goes to a worker thread in batches; every question is answered in time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import structlog
import trio

from coordd.core.ready import LedgerRequest
from coordd.core.rows import UNAVAILABLE, Answer, OpenAnswer
from coordd.errors import ConfigError, UnavailableError
from coordd.ports import Ledger

log = structlog.get_logger("ledger")
T = TypeVar("T")

# Operations that go to the thread in one crossing; a batch must fit well into the ledger's timeout.
BATCH_MAX = 64

# Questions that may wait; further ones are answered "unavailable" at once.
QUEUE_MAX = 50_000

Answered = Callable[[list[tuple[int, Answer | OpenAnswer, float]]], None]


class LedgerService:
    """Between the core, which must not wait, and a ledger that blocks."""

    def __init__(self, open_ledger: Callable[[], Ledger], timeout_s: float) -> None:
        self._open = open_ledger
        self._ledger: Ledger | None = None
        self._reader: Ledger | None = None
        self._timeout_s = timeout_s
        self._queue: deque[LedgerRequest] = deque()
        self._wake = trio.Event()
        self._thread = trio.CapacityLimiter(1)
        self._reading = trio.CapacityLimiter(1)
        self.state = "connected"
        self.error = ""
        self._writes_fail = False  # a locked SQLite file still answers readers

    def submit(self, requests: Sequence[LedgerRequest]) -> None:
        """Queue questions; their answers come in the same order."""
        self._queue.extend(requests)
        self._wake.set()

    async def run(self, answered: Answered) -> None:
        """Answer questions for ever."""
        while True:
            if not self._queue:
                self._wake = trio.Event()
                await self._wake.wait()
            if len(self._queue) > QUEUE_MAX:
                self._refuse(answered)
            batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
            answered(await self._ask(batch))

    async def query(self, call: Callable[[Ledger], T]) -> T:
        """Read for people, on a connection of its own.

        Raises UnavailableError when the ledger does not answer within twice its timeout.
        """
        with trio.move_on_after(2 * self._timeout_s):
            return await trio.to_thread.run_sync(
                partial(self._read, call), limiter=self._reading, abandon_on_cancel=True
            )
        self._reader = None  # its thread may still be stuck in it
        self._reading = trio.CapacityLimiter(1)
        raise UnavailableError(f"the ledger did not answer within {2 * self._timeout_s:g} s")

    async def _ask(self, batch: list[LedgerRequest]) -> list[tuple[int, Answer | OpenAnswer, float]]:
        results: list[tuple[int, Answer | OpenAnswer, float]] = []
        started = boottime()
        with trio.move_on_after(self._timeout_s * 2 + 0.02 * len(batch)) as scope:
            await trio.to_thread.run_sync(
                partial(self._perform, batch, results), limiter=self._thread, abandon_on_cancel=True
            )
        if scope.cancelled_caught:
            self._ledger = None  # that thread is stuck: a new one gets a connection of its own
            self._thread = trio.CapacityLimiter(1)
            results = results[:]
            self._failed("no answer in time")
        done = {request for request, _, _ in results}
        results += [(r.id, Answer(UNAVAILABLE), started) for r in batch if r.id not in done]
        return results

    def _perform(self, batch: list[LedgerRequest], results: list[tuple[int, Answer | OpenAnswer, float]]) -> None:
        """In the thread."""
        for request in batch:
            sent_at = boottime()
            try:
                if self._ledger is None:
                    self._ledger = self._open()
                answer: Answer | OpenAnswer = self._ledger.call(request.op, *request.args)
                if self.state != "connected":
                    self._answers_again(request.op)
            except (UnavailableError, ConfigError) as exc:  # ConfigError: its file has become something else
                self._failed(str(exc))
                self._writes_fail = self._writes_fail or request.op != "open"
                answer = Answer(UNAVAILABLE)
            results.append((request.id, answer, sent_at))
            if answer.word == UNAVAILABLE:
                return  # the rest would only wait as long again

    def _read(self, call: Callable[[Ledger], T]) -> T:
        try:
            if self._reader is None:
                self._reader = self._open()
            return call(self._reader)
        except ConfigError as exc:  # its file has become something else
            raise UnavailableError(str(exc)) from exc

    def _answers_again(self, op: str) -> None:
        """In the thread: it is back, once it does again what it could not do."""
        if op == "open" and self._writes_fail:
            assert self._ledger is not None
            try:
                self._ledger.call("prune", 0.0, 0)  # writes nothing, and takes the lock for it
            except UnavailableError as exc:
                self._failed(str(exc))
                return
        self._writes_fail = False
        self.state, self.error = "connected", ""

    def _failed(self, reason: str) -> None:
        if self.state == "connected":
            log.warning("ledger.unavailable", reason=reason)
        self.state, self.error = "unavailable", reason

    def _refuse(self, answered: Answered) -> None:
        refused = [self._queue.pop() for _ in range(len(self._queue) - QUEUE_MAX)]
        log.error("ledger.queue_full", refused=len(refused))
        answered([(r.id, Answer(UNAVAILABLE), boottime()) for r in reversed(refused)])

    def close(self) -> None:
        """Close the connections."""
        for ledger in (self._ledger, self._reader):
            if ledger is not None:
                ledger.close()


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME: monotonic, and it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
