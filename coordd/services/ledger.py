"""The ledger service: what the core asks goes to a worker thread in batches; every question is answered in time."""

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

from coordd.core.breaker import HALF_OPEN, Breaker
from coordd.core.ledger.answers import Answer, OpenAnswer
from coordd.core.ledger.requests import ListOpen, Request
from coordd.core.ledger.words import BAD, RECOVERING, UNAVAILABLE
from coordd.core.ready import LedgerRequest
from coordd.errors import (
    BadRowError,
    ConfigError,
    ForeignLedgerError,
    LedgerClosedError,
    RefusedError,
    UnavailableError,
)
from coordd.ports import Batching, Ledger

log = structlog.get_logger("ledger")
T = TypeVar("T")

# Operations that go to the thread in one crossing; a batch must fit well into the ledger's timeout.
BATCH_MAX = 64

# Questions that may wait; further ones are answered "unavailable" at once.
QUEUE_MAX = 50_000

# Whether the present question comes from somebody who may only look. These share one reader of the ledger, and the
# others have another: operators do not wait behind strangers.
ONLY_LOOKS: ContextVar[bool] = ContextVar("only_looks", default=False)

CONNECTED = "connected"
# It answers, and is another one than this node has used; it was closed, and lives on elsewhere.
FOREIGN = "foreign"
CLOSED = "closed"
UNREACHABLE = "unavailable"

Result = tuple[int, Answer | OpenAnswer, float]
Answered = Callable[[list[Result]], None]


class Reader:
    """One connection for people's questions, and the line before it."""

    def __init__(self) -> None:
        self.ledger: Ledger | None = None
        self.turn = trio.Lock()
        self.thread = trio.CapacityLimiter(1)


class LedgerService:
    """Between the core, which must not wait, and a ledger that blocks.

    Its breaker keeps a ledger that is away from being waited for again and again: while it is open, questions are
    answered UNAVAILABLE at once, and one of them is the probe when it is time for that.
    """

    def __init__(
        self, open_ledger: Callable[[], Ledger], timeout_s: float, *, open_any: Callable[[], Ledger] | None = None
    ) -> None:
        """``open_any`` opens a ledger that this node would refuse, too."""
        self._open = open_ledger
        self._open_any = open_any or open_ledger
        self._ledger: Ledger | None = None
        self._readers = {looks: Reader() for looks in (False, True)}
        self._timeout_s = timeout_s
        self._queue: deque[LedgerRequest] = deque()
        self._wake = trio.Event()
        self._thread = trio.CapacityLimiter(1)
        self._unread_at = 0.0  # when people were last told that nothing could be read
        self._up = True
        self._refused = ""  # FOREIGN or CLOSED, when that is why it is not up
        self._recovering_until = 0.0
        self._writes_fail = False  # a locked SQLite file still answers readers
        self.breaker = Breaker("ledger")
        self.error = ""

    # ---- what people see

    @property
    def state(self) -> str:
        """connected, recovering (it went back, and grants nothing for a while), foreign, closed or unavailable."""
        if not self._up:
            return self._refused or UNREACHABLE
        return RECOVERING if self.recovering_s else CONNECTED

    @property
    def recovering_s(self) -> float:
        """Seconds for which the ledger will grant nothing, because it went back or was replaced; else 0.0."""
        return max(0.0, self._recovering_until - boottime())

    # ---- questions

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

    async def write(self, request: Request[Answer]) -> Answer:
        """A change of the ledger that a person wants, on the connection of those who may do more than look.

        Raises as ``query`` does; UnavailableError says nothing of whether it took place, and asking again is safe.
        """
        return await self._for_people(lambda ledger: ledger.ask(request))

    async def query(self, call: Callable[[Ledger], T]) -> T:
        """Read for people, on a connection of its own (one for those who may only look, one for all others).

        Raises UnavailableError when the ledger does not answer within twice its timeout, and at once while the
        breaker is open and another reader has waited in vain since. Raises RefusedError when others were before.
        """
        return await self._for_people(call)

    async def _for_people(self, call: Callable[[Ledger], T]) -> T:
        if self.breaker.is_open and self._unread_at >= self.breaker.changed_at > 0.0:
            raise UnavailableError(self.error or self.breaker.reason)
        looks = ONLY_LOOKS.get()
        with trio.move_on_after(2 * self._timeout_s) as waiting:
            reader = await self._next_turn(looks)
        if waiting.cancelled_caught and not looks:
            raise UnavailableError(f"the ledger did not answer within {2 * self._timeout_s:g} s")
        if waiting.cancelled_caught:
            raise RefusedError(
                "too many questions about the ledger wait already", kind="try_later", hint="wait a little"
            )
        try:
            with trio.move_on_after(2 * self._timeout_s):
                return await trio.to_thread.run_sync(
                    partial(self._read, reader, call), limiter=reader.thread, abandon_on_cancel=True
                )
        except UnavailableError:
            self._unread_at = boottime()
            raise
        finally:
            reader.turn.release()
        self._unread_at = boottime()
        if self._readers[looks] is reader:
            self._readers[looks] = Reader()  # its thread may still be stuck in the old one
        raise UnavailableError(f"the ledger did not answer within {2 * self._timeout_s:g} s")

    async def _next_turn(self, looks: bool) -> Reader:
        """The reader, whose turn the caller now has."""
        while True:
            reader = self._readers[looks]
            await reader.turn.acquire()
            if reader is self._readers[looks]:
                return reader
            reader.turn.release()  # it got stuck meanwhile, and there is another

    async def query_any(self, call: Callable[[Ledger], T], limit_s: float = 0.0) -> T:
        """Ask whatever ledger is there, this node's own or not, on a connection for this question alone.

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
            return await trio.to_thread.run_sync(ask, abandon_on_cancel=True)
        raise UnavailableError(f"the ledger was not done within {limit_s:g} s; `coordctl ledger status` shows it")

    def reset(self) -> None:
        """A person says that it is back: the next question is asked."""
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
        if len(results) < len(batch):  # what stood behind a probe: one answer tells for all
            results += await self._ask(batch[len(results) :])
        return results

    async def _ask_under(self, permit: int, batch: list[LedgerRequest]) -> list[Result]:
        results: list[Result] = []
        started = boottime()
        failure = "no answer in time"
        with trio.move_on_after(self._timeout_s * 2 + 0.02 * len(batch)) as scope:
            failure = await trio.to_thread.run_sync(
                partial(self._perform, batch, results), limiter=self._thread, abandon_on_cancel=True
            )
        if scope.cancelled_caught:
            self._ledger = None  # that thread is stuck: a new one gets a connection of its own
            self._thread = trio.CapacityLimiter(1)
            results = results[:]
        self._judge(permit, failure)
        for _, answer, sent_at in results:
            self._look_for_recovery(answer, sent_at)
        done = {request for request, _, _ in results}
        results += [(r.id, Answer(UNAVAILABLE), started) for r in batch if r.id not in done]
        return results

    def _perform(self, batch: list[LedgerRequest], results: list[Result]) -> str:
        """In the thread. Returns why no more was answered, or ""."""
        op = batch[0].request.op
        try:
            if self._ledger is None:
                self._ledger = self._open()
            ledger = self._ledger
            if isinstance(ledger, Batching) and len(batch) > 1:
                op = next((question.request.op for question in batch if question.request.writes), ListOpen.op)
                sent_at = boottime()
                answers = self._together(ledger, batch)
                if answers is not None:
                    results += [(r.id, answer, sent_at) for r, answer in zip(batch, answers, strict=True)]
                    batch = []
            for question in batch:
                op, sent_at = question.request.op, boottime()
                results.append((question.id, self._alone(ledger, question.request), sent_at))
                if not self._up:
                    self._check_writes(ledger, op)
            if not self._up:
                self._check_writes(ledger, op)
        except (UnavailableError, ConfigError) as exc:  # ConfigError: its file has become something else
            self._refused = refused_as(exc)
            self._writes_fail = self._writes_fail or op != ListOpen.op
            return str(exc) or "it did not answer"  # the rest of the batch would only wait as long again
        return ""

    def _together(self, ledger: Batching, batch: list[LedgerRequest]) -> list[Answer | OpenAnswer] | None:
        """In the thread. None when a question among them cannot be asked: each is asked by itself then."""
        try:
            return ledger.ask_all([question.request for question in batch])
        except (UnavailableError, ConfigError):
            raise
        except Exception as exc:
            log.warning("ledger.batch_failed", reason=repr(exc), questions=len(batch))
            return None

    def _alone(self, ledger: Ledger, request: Request[Answer | OpenAnswer]) -> Answer | OpenAnswer:
        """In the thread: one question. Whatever is wrong with its row, or with our handling of it, is its answer."""
        try:
            return ledger.ask(request)
        except BadRowError as exc:
            return Answer(BAD, by=str(exc))
        except (UnavailableError, ConfigError):
            raise
        except Exception as exc:
            # The boundary of one question: it must not end the node, which has others to ask.
            log.exception("ledger.question_failed", op=request.op)
            return Answer(BAD, by=f"{request.op} failed: {exc!r:.300}")

    def _check_writes(self, ledger: Ledger, op: str) -> None:
        """In the thread: it is back once it does again what it could not do."""
        if op == ListOpen.op and self._writes_fail:
            ledger.prune(0.0, 0)  # writes nothing, and takes the lock for it
        self._writes_fail = False

    def _judge(self, permit: int, failure: str) -> None:
        """What came of it, for the breaker and for people."""
        breaker, now = self.breaker, boottime()
        was_open = breaker.is_open
        if failure:
            if self._up:
                log.warning("ledger.unavailable", reason=failure)
            self._up, self.error = False, failure
            breaker.failed(permit, failure, now, random.random())  # noqa: S311  # only keeps nodes out of step
        else:
            if not self._up:
                log.info("ledger.answered")
            self._up, self.error = True, ""
            breaker.succeeded(permit, now)
        if breaker.is_open != was_open:
            word = "breaker.opened" if breaker.is_open else "breaker.closed"
            log.info(word, name=breaker.name, reason=breaker.reason, failures=breaker.failures)

    def _look_for_recovery(self, answer: Answer | OpenAnswer, sent_at: float) -> None:
        """A sweep's answer says for how long the ledger will grant nothing; so does a refused claim."""
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


def refused_as(exc: Exception) -> str:
    """FOREIGN or CLOSED where the ledger has answered so; "" where it has not answered."""
    if isinstance(exc, ForeignLedgerError):
        return FOREIGN
    return CLOSED if isinstance(exc, LedgerClosedError) else ""


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME: monotonic, and it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
