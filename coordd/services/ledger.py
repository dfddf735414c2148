"""The ledger service: asks the core's requests in batches, in a worker thread or on trio's own loop; every request is
answered in time.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TypeVar

import structlog
import trio

from coordd.core.breaker import HALF_OPEN, SLOW, TIMEOUT, Breaker
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Claim, ListOpen, Register, Settle
from coordd.core.ledger.runner_requests import Report, Request
from coordd.core.ledger.words import BAD, FAILURE, RECOVERING, UNAVAILABLE
from coordd.core.ready import LedgerRequest
from coordd.errors import (
    BadRowError,
    ConfigError,
    ForeignLedgerError,
    FullError,
    LedgerClosedError,
    RefusedError,
    UnavailableError,
)
from coordd.ports import Batching, Ledger, OnLoop
from coordd.services.pace import in_thread

log = structlog.get_logger("ledger")
T = TypeVar("T")

# Requests per batch; a batch must fit well into the ledger's timeout.
BATCH_MAX = 64

# Operations that the loop may ask without a thread: their answers are small. A sweep's would hold up the loop.
ON_LOOP = frozenset({Claim.op, Register.op, Settle.op, Report.op})

# Maximum number of waiting requests; further ones are answered "unavailable" at once.
QUEUE_MAX = 50_000

# An answer that took longer than this part of the timeout is slow; a failure that took as long is one of no answer.
SLOW_PART = 0.8

# Whether the present request comes from a viewer. Viewers share one reader of the ledger, and others have another:
# operators do not wait behind strangers.
ONLY_LOOKS: ContextVar[bool] = ContextVar("only_looks", default=False)

# The reader of drivers on other machines: neither they nor people wait behind the others.
DRIVERS = "drivers"

CONNECTED = "connected"
# It answers, but is another ledger than this node has used; or it was closed, and lives on elsewhere.
FOREIGN = "foreign"
CLOSED = "closed"
UNREACHABLE = "unavailable"

Result = tuple[int, Answer | OpenAnswer, float]
Answered = Callable[[list[Result]], None]


class Reader:
    """One connection for people's requests, and its queue."""

    def __init__(self) -> None:
        self.ledger: Ledger | None = None
        self.turn = trio.Lock()
        self.thread = trio.CapacityLimiter(1)


class LedgerService:
    """Connects the core, which must not wait, with a ledger that blocks.

    Its breaker avoids repeated waits for a ledger that is away: while it is open, requests are answered UNAVAILABLE at
    once; from time to time one of them is the probe.
    """

    def __init__(
        self, open_ledger: Callable[[], Ledger], timeout_s: float, *, open_any: Callable[[], Ledger] | None = None
    ) -> None:
        """``open_any`` also opens a ledger that this node would refuse."""
        self._open = open_ledger
        self._open_any = open_any or open_ledger
        self._ledger: Ledger | None = None
        self._on_loop: OnLoop | None = None  # the same, if the loop can ask it
        self._readers: dict[bool | str, Reader] = {whose: Reader() for whose in (False, True, DRIVERS)}
        self._timeout_s = timeout_s
        self._queue: deque[LedgerRequest] = deque()
        self._wake = trio.Event()
        self._thread = trio.CapacityLimiter(1)
        self._unread_at = 0.0  # when a read for people last failed
        self._up = True
        self._refused = ""  # FOREIGN or CLOSED, if that is why it is not up
        self._recovering_until = 0.0
        self._writes_fail = False  # a locked SQLite file still answers readers
        self._full = ""  # why it writes no new row, if it does everything else
        self.breaker = Breaker("ledger")
        self.error = ""
        # Called, also in a thread, with the operation and how long (seconds) its answer took; those of a batch take as
        # long as each other.
        self.timed: Callable[[str, float], None] | None = None

    # ---- for people

    @property
    def state(self) -> str:
        """connected, recovering (it went back, and grants nothing for a while), foreign, closed or unavailable."""
        if not self._up:
            return self._refused or UNREACHABLE
        return RECOVERING if self.recovering_s else CONNECTED

    @property
    def recovering_s(self) -> float:
        """Seconds for which the ledger will grant nothing, because it went back or was replaced; otherwise 0.0."""
        return max(0.0, self._recovering_until - boottime())

    # ---- requests

    def submit(self, requests: Sequence[LedgerRequest]) -> None:
        """Queue requests; their answers come in the same order."""
        self._queue.extend(requests)
        self._wake.set()

    async def run(self, answered: Answered) -> None:
        """Answer requests for ever."""
        while True:
            if not self._queue:
                self._wake = trio.Event()
                await self._wake.wait()
            if len(self._queue) > QUEUE_MAX:
                self._refuse(answered)
            batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
            answered(await self._ask(batch))

    async def write(self, request: Request[Answer]) -> Answer:
        """A person's change of the ledger, on the connection of operators.

        Raises as ``query`` does. After UnavailableError it is not known whether the change took place; repeating it is
        safe.
        """
        return await self._for_people(lambda ledger: ledger.ask(request))

    async def query(self, call: Callable[[Ledger], T], *, whose: str = "") -> T:
        """Read for people, on a separate connection (one for viewers, one for all others); or for DRIVERS.

        Raises UnavailableError when the ledger does not answer within twice its timeout, and at once while the breaker
        is open and another read has failed since. Raises RefusedError when too many callers wait.
        """
        return await self._for_people(call, whose)

    async def _for_people(self, call: Callable[[Ledger], T], whose: str = "") -> T:
        if self.breaker.is_open and self._unread_at >= self.breaker.changed_at > 0.0:
            raise UnavailableError(self.error or self.breaker.reason)
        looks = whose or ONLY_LOOKS.get()
        with trio.move_on_after(2 * self._timeout_s) as waiting:
            reader = await self._next_turn(looks)
        if waiting.cancelled_caught and looks is not True:
            raise UnavailableError(f"the ledger did not answer within {2 * self._timeout_s:g} s")
        if waiting.cancelled_caught:
            raise RefusedError(
                "too many questions about the ledger wait already", kind="try_later", hint="wait a little"
            )
        try:
            with trio.move_on_after(2 * self._timeout_s):
                return await in_thread(partial(self._read, reader, call), reader.thread, abandon_on_cancel=True)
        except UnavailableError:
            self._unread_at = boottime()
            raise
        finally:
            reader.turn.release()
        self._unread_at = boottime()
        if self._readers[looks] is reader:
            self._readers[looks] = Reader()  # its thread may still be stuck in the old connection
        raise UnavailableError(f"the ledger did not answer within {2 * self._timeout_s:g} s")

    async def _next_turn(self, looks: bool | str) -> Reader:
        """The reader; the caller has its turn now."""
        while True:
            reader = self._readers[looks]
            await reader.turn.acquire()
            if reader is self._readers[looks]:
                return reader
            reader.turn.release()  # it got stuck meanwhile, and was replaced

    async def query_any(self, call: Callable[[Ledger], T], limit_s: float = 0.0) -> T:
        """Ask the configured ledger, even if this node would refuse it, on a connection for this request only.

        Raises UnavailableError when it does not answer within ``limit_s``, or twice the ledger's timeout.
        """

        def ask() -> T:
            try:
                ledger = self._open_any()
            except ConfigError as exc:
                raise UnavailableError(str(exc)) from exc
            try:
                return call(ledger)
            finally:
                ledger.close()

        limit_s = limit_s or 2 * self._timeout_s
        with trio.move_on_after(limit_s):
            return await in_thread(ask, abandon_on_cancel=True)
        raise UnavailableError(f"the ledger was not done within {limit_s:g} s; `coordctl ledger status` shows it")

    def reset(self) -> None:
        """A person says that the ledger is back: the next request is sent."""
        self.breaker.reset(boottime())

    # ---- one batch

    async def _ask(self, batch: list[LedgerRequest]) -> list[Result]:
        started = boottime()
        permit = self.breaker.allow(started)
        if not permit:
            await trio.lowlevel.checkpoint()
            return [(request.id, Answer(UNAVAILABLE), started) for request in batch]
        probing = self.breaker.state == HALF_OPEN
        results = await self._ask_under(permit, batch[:1] if probing else batch)
        if len(results) < len(batch):  # a probe failed: its answer counts for the rest
            results += await self._ask(batch[len(results) :])
        return results

    async def _ask_under(self, permit: int, batch: list[LedgerRequest]) -> list[Result]:
        results: list[Result] = []
        started = boottime()
        failure = "no answer in time"
        with trio.move_on_after(self._timeout_s * 2 + 0.02 * len(batch)) as scope:
            on_loop = self._on_loop
            if on_loop is None or not self._up or not on_loop.is_open or not ON_LOOP.issuperset(ops_of(batch)):
                failure = await self._perform_there(batch, results)
            else:
                failure = await self._perform_here(on_loop, batch, results)
        if scope.cancelled_caught:
            self._ledger = self._on_loop = None  # that thread is stuck: a new one gets its own connection
            self._thread = trio.CapacityLimiter(1)
            results = results[:]
        self._judge(permit, failure, boottime() - started)
        for _, answer, sent_at in results:
            self._look_for_recovery(answer, sent_at)
        done = {request for request, _, _ in results}
        results += [(r.id, Answer(UNAVAILABLE), started) for r in batch if r.id not in done]
        return results

    async def _perform_here(self, ledger: OnLoop, batch: list[LedgerRequest], results: list[Result]) -> str:
        """As ``_perform``, without a thread, for a ledger that answered the last time."""
        sent_at = boottime()
        try:
            answers = await ledger.ask_here([question.request for question in batch])
        except (UnavailableError, ConfigError) as exc:
            self._refused, self._full = refused_as(exc), full_as(exc)
            self._writes_fail = True
            return str(exc) or "it did not answer"
        except Exception as exc:
            log.warning("ledger.batch_failed", reason=repr(exc), questions=len(batch))
            return await self._perform_there(batch, results)
        self._time(ops_of(batch), sent_at)
        results += [(question.id, answer, sent_at) for question, answer in zip(batch, answers, strict=True)]
        return ""

    async def _perform_there(self, batch: list[LedgerRequest], results: list[Result]) -> str:
        """``_perform``, in the thread."""
        try:
            return await in_thread(partial(self._perform, batch, results), self._thread, abandon_on_cancel=True)
        except UnavailableError as exc:  # there is no room for one
            return str(exc)

    def _perform(self, batch: list[LedgerRequest], results: list[Result]) -> str:
        """Runs in the thread. Returns why no more requests were answered, or ""."""
        op = batch[0].request.op
        try:
            if self._ledger is None:
                self._ledger = self._open()
                self._on_loop = self._ledger if isinstance(self._ledger, OnLoop) else None
            ledger = self._ledger
            if isinstance(ledger, Batching) and len(batch) > 1:
                op = next((question.request.op for question in batch if question.request.writes), ListOpen.op)
                sent_at = boottime()
                answers = self._together(ledger, batch)
                if answers is not None:
                    self._time(ops_of(batch), sent_at)
                    results += [(r.id, answer, sent_at) for r, answer in zip(batch, answers, strict=True)]
                    batch = []
            for question in batch:
                op, sent_at = question.request.op, boottime()
                results.append((question.id, self._alone(ledger, question.request), sent_at))
                self._time([op], sent_at)
                if not self._up:
                    self._check_writes(ledger, op)
            if not self._up:
                self._check_writes(ledger, op)
        except (UnavailableError, ConfigError) as exc:  # configError: its file has become something else
            self._refused, self._full = refused_as(exc), full_as(exc)
            self._writes_fail = self._writes_fail or op != ListOpen.op
            return str(exc) or "it did not answer"  # every other request in the batch would wait as long
        return ""

    def _time(self, ops: list[str], sent_at: float) -> None:
        if self.timed is not None:
            seconds = boottime() - sent_at
            for op in ops:
                self.timed(op, seconds)

    def _together(self, ledger: Batching, batch: list[LedgerRequest]) -> list[Answer | OpenAnswer] | None:
        """Runs in the thread. None if one of the requests cannot be sent: then each is sent alone."""
        try:
            return ledger.ask_all([question.request for question in batch])
        except (UnavailableError, ConfigError):
            raise
        except Exception as exc:
            log.warning("ledger.batch_failed", reason=repr(exc), questions=len(batch))
            return None

    def _alone(self, ledger: Ledger, request: Request[Answer | OpenAnswer]) -> Answer | OpenAnswer:
        """Runs in the thread: one request. A bad row, or a bug of ours, becomes its answer."""
        try:
            return ledger.ask(request)
        except BadRowError as exc:
            return Answer(BAD, by=str(exc))
        except (UnavailableError, ConfigError):
            raise
        except Exception as exc:
            # The boundary of one request: it must not stop the node, which has others.
            log.exception("ledger.question_failed", op=request.op)
            return Answer(BAD, by=f"{request.op} failed: {exc!r:.300}")

    def _check_writes(self, ledger: Ledger, op: str) -> None:
        """Runs in the thread: the ledger is back once the failed kind of operation works again."""
        if op == ListOpen.op and (self._writes_fail or self._full):
            try:
                ledger.prune(0.0, 0)  # changes nothing, and needs the same as a new row: the lock, or memory
            except FullError as exc:
                self._full = str(exc)
            else:
                self._full = ""
        self._writes_fail = False

    def _judge(self, permit: int, failure: str, took_s: float = 0.0) -> None:
        """Pass the outcome to the breaker and to people. ``took_s``: how long it took until there was one."""
        breaker, now = self.breaker, boottime()
        late = took_s >= SLOW_PART * self._timeout_s
        was_open = breaker.is_open
        if failure:
            if self._up:
                log.warning("ledger.unavailable", reason=failure)
            self._up, self.error = False, failure
            kind = TIMEOUT if late else FAILURE
            breaker.failed(permit, failure, now, random.random(), kind)  # noqa: S311  # only keeps nodes out of step
        else:
            if not self._up and not self._full:
                log.info("ledger.answered")
            self._up, self.error = not self._full, self._full
            if late and breaker.counts(SLOW):
                reason = f"it answered after {took_s:.1f} s"
                breaker.failed(permit, reason, now, random.random(), SLOW)  # noqa: S311  # the same
            else:
                breaker.succeeded(permit, now)
        if breaker.is_open != was_open:
            tell, word = log.info, "breaker.closed"
            if breaker.is_open:
                tell, word = log.error if breaker.is_loud(now) else log.warning, "breaker.opened"
            tell(word, name=breaker.name, reason=breaker.reason, failures=breaker.failures)

    def _look_for_recovery(self, answer: Answer | OpenAnswer, sent_at: float) -> None:
        """A sweep's answer says how long the ledger will grant nothing; so does a refused claim."""
        if isinstance(answer, OpenAnswer):
            left_s = answer.recovering_s
        elif answer.word == RECOVERING:
            left_s = max(answer.left_s, answer.in_s)
        else:
            return
        self._recovering_until = sent_at + left_s if left_s > 0 else 0.0

    def _read(self, reader: Reader, call: Callable[[Ledger], T]) -> T:
        try:
            if reader.ledger is None:
                reader.ledger = self._open()
            return call(reader.ledger)
        except ConfigError as exc:  # its file has become something else
            raise UnavailableError(str(exc)) from exc

    def _refuse(self, answered: Answered) -> None:
        refused = [self._queue.pop() for _ in range(len(self._queue) - QUEUE_MAX)]
        log.error("ledger.queue_full", refused=len(refused))
        answered([(r.id, Answer(UNAVAILABLE), boottime()) for r in reversed(refused)])

    def close(self) -> None:
        """Close the connections."""
        for ledger in (self._ledger, *[reader.ledger for reader in self._readers.values()]):
            if ledger is not None:
                ledger.close()


def ops_of(batch: Sequence[LedgerRequest]) -> list[str]:
    """The operations of a batch."""
    return [question.request.op for question in batch]


def refused_as(exc: Exception) -> str:
    """FOREIGN or CLOSED if the ledger has answered so; "" if it has not answered."""
    if isinstance(exc, ForeignLedgerError):
        return FOREIGN
    return CLOSED if isinstance(exc, LedgerClosedError) else ""


def full_as(exc: Exception) -> str:
    """Why the ledger writes no new row; "" if that is not what it said."""
    return str(exc) if isinstance(exc, FullError) else ""


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME: monotonic, and it continues while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
