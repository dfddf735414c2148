"""Asks the ledger from a separate thread, so that a slow disk never prevents the runner from killing."""

import _thread
import os
import sys

from coordd.core.ledger.answers import Answer
from coordd.errors import ConfigError, CoorddError
from coordd.runner.kernel import boottime, complain, drain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, TypeVar

    from coordd.core.actions import AskReport
    from coordd.core.ledger.open_answer import OpenAnswer
    from coordd.core.ledger.runner_requests import Grant, Report, Request, Restore

    A = TypeVar("A", bound="Answer | OpenAnswer")

    class Ledger(Protocol):
        """The ledger's methods that a runner needs."""

        def ask(self, request: Request[A]) -> A: ...
        def close(self) -> None: ...


def load_ledger(url: str) -> "Callable[..., Ledger]":
    """The ledger class for a URL; imported here, because a runner needs only one.

    Raises ConfigError for an unknown kind.
    """
    if url.startswith("sqlite:"):
        from coordd.adapters.ledger.sqlite_ledger import SqliteLedger

        return SqliteLedger
    if url.startswith(("redis:", "rediss:", "redis+sentinel:", "rediss+sentinel:")):
        from coordd.adapters.ledger.redis_ledger import RedisLedger

        return RedisLedger
    if url.startswith("control:"):
        from coordd.adapters.ledger.by_daemon import LedgerByDaemon

        return LedgerByDaemon
    raise ConfigError(f"no ledger of this kind in this version: {url.partition(':')[0]}")


# What a question may meet: a ledger that is away, no free descriptor (also for a module that is loaded late). It has no
# answer then, and is asked again.
UNANSWERED = (CoorddError, OSError, ImportError)


class Asker:
    """Asks in place, or one request at a time from a thread; ``fd`` becomes readable when that answer has come."""

    def __init__(self, url: str, timeout_s: float, options: "dict[str, Any] | None" = None) -> None:
        """``options`` are further arguments of the ledger's class: of Redis, the cluster's name, where the password
        stands, TLS files."""
        self.url = url
        self.options = options or {}
        self.timeout_s = timeout_s
        self.busy = False
        self.fd, self._wake = os.pipe()
        os.set_blocking(self.fd, False)
        self._ledger: Ledger | None = None
        self._question: Request[Answer] | None = None
        self._answer: tuple[Answer | None, float] = (None, 0.0)
        self._go = _thread.allocate_lock()
        self._go.acquire()
        self._started = False

    def connect(self) -> "Ledger | None":
        """Connect, if possible now."""
        if self._ledger is None:
            try:
                self._ledger = load_ledger(self.url)(self.url, timeout_s=self.timeout_s, **self.options)
            except UNANSWERED as exc:
                complain(str(exc))
        return self._ledger

    def call(self, request: "Request[Answer]") -> "Answer | None":
        """Ask in place; None without an answer in time."""
        ledger = self.connect()
        if ledger is None:
            return None
        try:
            return ledger.ask(request)
        except UNANSWERED as exc:
            complain(str(exc))
            return None

    def ask(self, request: "Request[Answer]") -> bool:
        """Ask from the thread. False while the last request is open (its answer counts then), or if the machine has no
        room for the thread now: then ``busy`` is False, and the caller asks again later.
        """
        if self.busy:
            return False
        if not self._started:
            try:
                _thread.start_new_thread(self._run, ())
            except RuntimeError as exc:
                complain(f"cannot ask the ledger, and tries again: {exc}")
                return False
            self._started = True
        self.busy = True
        self._question = request
        self._go.release()
        return True

    def take(self) -> "tuple[Answer | None, float]":
        """The thread's answer, and when its request was sent; called when ``fd`` is readable."""
        drain(self.fd)
        self.busy = False
        return self._answer

    def _run(self) -> None:
        while True:
            self._go.acquire()
            answer: Answer | None = None
            sent_at = boottime()
            try:
                if self._question is not None and self.connect() is not None:
                    sent_at = boottime()
                    answer = self.call(self._question)
            except Exception:
                # A bug here must look like no answer, which ends in order: the program must not be abandoned.
                sys.excepthook(*sys.exc_info())
            finally:
                self._answer = (answer, sent_at)
                os.write(self._wake, b"a")


def restore_of(spec: "dict[str, Any]", grant: "Grant", state: str, application_id: str) -> "Restore":
    """The request that tells a ledger about a grant that it has forgotten."""
    from coordd.core.ledger.runner_requests import Registration, Restore
    from coordd.core.ledger.words import Policy

    of = Registration(
        grant.run,
        spec["job"],
        spec["digest"],
        Policy.unpack(spec["policy"]),
        spec["fire_at"],
        scheduled=spec["scheduled"],
        args=spec["args"],
        due=float(spec.get("due", 0.0)),
    )
    return Restore(
        of=of, grant=grant, node=spec["node"], lease_s=spec["lease_s"], state=state, application_id=application_id
    )


def report_of(grant: "Grant", end: "AskReport", application_id: str) -> "Report":
    """The request that tells the ledger how the attempt ended."""
    from coordd.core.ledger.runner_requests import Report

    return Report(
        grant=grant,
        state=end.state,
        exit_code=end.exit_code,
        reason=end.reason,
        application_id=application_id,
        final=end.final,
    )
