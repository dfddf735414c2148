"""Sections of a driver or a hook that are tried again, that may fail, or whose inputs are given up after some failures.

    @retry(on=OSError, attempts=5)          with optional(ConnectionError):       @poisonous(key="{path}", attempts=3)
    def fetch(url): ...                         tell_somebody()                   def load(path): ...

    for attempt in retrying(on=OSError):    async for attempt in retrying():      with poisonous(key=path):
        with attempt:                           with attempt:                         load(path)
            fetch(url)                              await fetch(url)

Each works for plain code and for coroutines, under asyncio and trio. One file, as coordd.guard: ship both, and
tenacity, with ``--py-files`` where coordd is not installed. ``optional`` needs nothing, ``retry`` needs tenacity, and
``poisonous`` needs coordd.guard. docs/spark.md has an example.

How often an input has failed is remembered in the ledger, by the job and the key: the program asks its runner, as
coordd.guard does. So the next attempt, on whichever node, knows it. Without coordd nothing is remembered, and each
input is processed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType, TracebackType
from typing import Any, TypeVar, cast

__all__ = ["PoisonousError", "optional", "poisonous", "retry", "retrying"]

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("coordd.resilience")

BACKOFFS = ("fixed", "linear", "exponential")
ASK_S = 10.0  # the longest wait for the runner's answer before an input is processed
TELL_S = 30.0  # the same for the news that it has failed

# The longest key and the longest reason (characters) that a runner takes.
KEY_LENGTH_MAX = 300
REASON_LENGTH_MAX = 300

# Errors that say: stop now. No section swallows them or tries again, and they do not count against an input.
_STOPS = (("coordd.guard", "LeaseLostError"), ("guard", "LeaseLostError"), ("coordd.errors", "LeaseLostError"))


class PoisonousError(Exception):
    """This input has failed too often and is not processed, or a section failed that must not be tried again."""


# ---- retry


def retrying(
    on: Any = Exception,
    attempts: int = 3,
    backoff: str = "exponential",
    *,
    delay: float = 1.0,
    delay_max: float = 60.0,
    timeout: float | None = None,
) -> _Retrying:
    """Attempts of a section, at most ``attempts`` in all, for errors of the type (or types) ``on``.

    ``backoff``: the pause before the second attempt is ``delay`` seconds, then the same, one ``delay`` more each time,
    or twice as long each time; at most ``delay_max``. After ``timeout`` seconds no further attempt begins. The last
    attempt's error is raised as it is. Raises ValueError for a policy that makes no sense.
    """
    return _Retrying(on, attempts, backoff, delay, delay_max, timeout)


def retry(on: Any = Exception, attempts: int = 3, backoff: str = "exponential", **other: Any) -> Callable[[F], F]:
    """As ``retrying``, for a function or a coroutine function."""
    policy = retrying(on, attempts, backoff, **other)

    def decorate(function: F) -> F:
        _refuse_generator("retry", function)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                async for attempt in policy:
                    with attempt:
                        return await function(*args, **kwargs)
                raise AssertionError("the last attempt returns or raises")

            return cast("F", call_async)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for attempt in policy:
                with attempt:
                    return function(*args, **kwargs)
            raise AssertionError("the last attempt returns or raises")

        return cast("F", call)

    return decorate


class _Retrying:
    """A policy; each loop over it begins from the start."""

    def __init__(
        self, on: Any, attempts: int, backoff: str, delay: float, delay_max: float, timeout: float | None
    ) -> None:
        if type(attempts) is not int or attempts < 1:
            raise ValueError(f"attempts: expected a whole number from 1, found {attempts!r}")
        if backoff not in BACKOFFS:
            raise ValueError(f"backoff: expected one of {', '.join(BACKOFFS)}, found {backoff!r}")
        if not 0 <= delay <= delay_max:
            raise ValueError(f"delay: expected seconds from 0 to delay_max ({delay_max:g}), found {delay!r}")
        tenacity = _tenacity()
        pauses = {
            "fixed": tenacity.wait_fixed(delay),
            "linear": tenacity.wait_incrementing(start=delay, increment=delay, max=delay_max),
            "exponential": tenacity.wait_exponential(multiplier=delay, max=delay_max),
        }
        stop = tenacity.stop_after_attempt(attempts)
        if timeout is not None:
            stop = stop | tenacity.stop_before_delay(timeout)  # the pause counts, too
        self._how = {
            "retry": tenacity.retry_if_exception(lambda exc: isinstance(exc, on) and not _is_final(exc)),
            "wait": pauses[backoff],
            "stop": stop,
            "reraise": True,
            "before_sleep": _tell_retry,
        }

    def __iter__(self) -> Iterator[Any]:
        return iter(_tenacity().Retrying(**self._how))

    def __aiter__(self) -> AsyncIterator[Any]:
        import anyio

        # No generator of ours: a section that returns would leave it unfinished, which trio complains about.
        found: AsyncIterator[Any] = _tenacity().AsyncRetrying(sleep=anyio.sleep, **self._how).__aiter__()
        return found


def _tenacity() -> ModuleType:
    try:
        import tenacity
    except ImportError as exc:
        raise ImportError(
            "coordd.resilience: retry needs the package tenacity: install it where the driver runs, or ship its wheel"
            " with --py-files"
        ) from exc
    return tenacity


def _tell_retry(state: Any) -> None:
    exc, pause = state.outcome.exception(), state.next_action.sleep
    log.warning("attempt %d failed, the next one begins in %.1f s: %r", state.attempt_number, pause, exc)


def _is_final(exc: BaseException) -> bool:
    """True for errors after which no section goes on."""
    loaded = [getattr(sys.modules.get(module), name, None) for module, name in _STOPS]
    return isinstance(exc, (PoisonousError, *[kind for kind in loaded if isinstance(kind, type)]))


def _refuse_generator(section: str, function: Callable[..., Any]) -> None:
    """The body of a generator begins after the call has returned, so it would not be in the section."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{section}: {function.__qualname__}: expected a function or a coroutine function, found a generator:"
            " decorate what it calls for each item, or use the section as a block inside it"
        )


# ---- optional


class optional(contextlib.ContextDecorator):  # noqa: N801 - it is used as a decorator and in a with statement
    """A section that may fail: with an error of one of these types (any, without types) the program goes on after the
    section, and a warning goes to ``log``. For functions and coroutine functions, ``with`` and ``async with``. A
    function that fails returns None.
    """

    def __init__(self, *on: type[Exception], log: logging.Logger | None = None) -> None:
        self._on = on or (Exception,)
        self._log = log or logging.getLogger("coordd.resilience")

    def __call__(self, function: F) -> F:
        _refuse_generator("optional", function)
        if not inspect.iscoroutinefunction(function):
            return super().__call__(function)

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        return cast("F", call)

    def __enter__(self) -> None:
        """Nothing happens yet."""

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if exc is None or not isinstance(exc, self._on) or _is_final(exc):
            return False
        self._log.warning("an optional section failed, and the program goes on: %r", exc, exc_info=exc)
        return True

    async def __aenter__(self) -> None:
        """As ``with``."""

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.__exit__(kind, exc, trace)


# ---- poisonous


class poisonous:  # noqa: N801 - it is used as a decorator and in a with statement
    """A section that processes one input. After ``attempts`` failures with the same key, of all runs of the job, the
    section is not entered any more: PoisonousError, until a person discards the dead letter
    (``coordctl deadletter list``). A success forgets the failures before it.

    ``key``: for a function its parameters in a template ("{path}"), or a callable with the function's arguments that
    returns a text; for a block the text itself. ``on``: the types of errors that count. ``fatal``: also count a program
    that dies in the section; each input costs three questions to the
    ledger then, otherwise one.
    ``skip``: a function returns None, with a warning, in place of the error.

    Without a key nothing is remembered: an error in the section becomes PoisonousError, which no ``retry`` tries again.
    """

    def __init__(
        self,
        key: str | Callable[..., str] = "",
        *,
        attempts: int = 3,
        on: Any = Exception,
        fatal: bool = False,
        skip: bool = False,
    ) -> None:
        if type(attempts) is not int or not 1 <= attempts <= 1000:
            raise ValueError(f"attempts: expected a whole number from 1 to 1000, found {attempts!r}")
        self._key = key
        self._attempts = attempts
        self._on = on
        self._fatal = fatal
        self._skip = skip

    def __call__(self, function: F) -> F:
        """Each call of the function is a section."""
        _refuse_generator("poisonous", function)
        key_of = self._key if callable(self._key) else _from_template(self._key, function)

        def section(args: Any, kwargs: Any) -> poisonous:
            key = str(key_of(*args, **kwargs))
            return poisonous(key, attempts=self._attempts, on=self._on, fatal=self._fatal)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                block = section(args, kwargs)
                if await _in_thread(block._may_skip, self._skip):
                    return None
                async with _Entered(block):
                    return await function(*args, **kwargs)

            return cast("F", call_async)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            block = section(args, kwargs)
            if block._may_skip(self._skip):
                return None
            with _Entered(block):
                return function(*args, **kwargs)

        return cast("F", call)

    def __enter__(self) -> None:
        self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(exc)

    async def __aenter__(self) -> None:
        await _in_thread(self._enter)

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _in_thread(self._leave, exc)

    def _may_skip(self, skip: bool) -> bool:
        """Enter the section; True if it is to be skipped. Raises PoisonousError and LeaseLostError."""
        try:
            self._enter()
        except PoisonousError as exc:
            if not skip:
                raise
            log.warning("skipped: %s", exc)
            return True
        return False

    def _enter(self) -> None:
        self._failed = 0
        if not self._key:
            return
        failed, why, letter = self._tell("asked", ASK_S)
        if failed >= self._attempts:
            raise PoisonousError(
                # The letter first: the reason of the run has this text up to a length.
                f"{self._key:.60} has failed {failed} times and is not processed any more. When its cause is mended:"
                f" coordctl deadletter discard {letter} --note TEXT (last: {why})"
            )
        self._failed = failed
        if self._fatal:
            self._tell("begun", TELL_S, "the program died while it processed this input")

    def _leave(self, exc: BaseException | None) -> None:
        if exc is None:
            if self._key and (self._failed or self._fatal):
                self._tell("passed", TELL_S)
            return
        counts = isinstance(exc, self._on) and not _is_final(exc)
        if not self._key:
            if counts:
                raise PoisonousError(f"a section that must not be tried again has failed: {_why(exc)}") from exc
        elif counts:
            what = "explained" if self._fatal else "failed"  # the former has counted already
            reason = _why(exc)
            failed, why, letter = self._tell(what, TELL_S, reason)
            if failed:
                log.warning("%s has failed %d of %d times (%s): %s", self._key, failed, self._attempts, letter, reason)
            elif why:
                log.warning("%s has failed: %s", self._key, why)
        elif self._fatal:
            self._tell("interrupted", TELL_S)

    def _tell(self, what: str, wait_s: float, reason: str = "") -> tuple[int, str, str]:
        """The failures so far, the last reason, and the id of the dead letter. Raises LeaseLostError if this attempt
        does not hold its run; without an answer it is as if the input had never failed.
        """
        guard = _guard()
        key = _short(str(self._key), KEY_LENGTH_MAX)
        try:
            grant = guard.Grant.of(os.environ)
            more = {"input": key, "says": what, "limit": self._attempts, "reason": _short(reason, REASON_LENGTH_MAX)}
            until = time.clock_gettime(time.CLOCK_BOOTTIME) + wait_s
            word, failed, why = guard._ask(grant, "input", until, **more)
        except guard.LeaseLostError as exc:
            log.warning("%s: nothing is known or remembered of its failures: %s", self._key, exc)
            return 0, "", ""
        if word != "ok":
            raise guard.LeaseLostError(f"{grant.run}, attempt {grant.attempt}: not the owner any more: {why}")
        return failed, why, f"input:{grant.job}:{hashlib.sha256(key.encode()).hexdigest()[:16]}"


class _Entered:
    """The rest of a section that has been entered."""

    def __init__(self, section: poisonous) -> None:
        self._section = section

    def __enter__(self) -> None:
        """It has been entered."""

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._section._leave(exc)

    async def __aenter__(self) -> None:
        """As ``with``."""

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _in_thread(self._section._leave, exc)


def _why(exc: BaseException) -> str:
    """A failure in a line. What Py4J raises for an error of Spark says only that a call has failed: Java's trace in its
    text has the cause.
    """
    try:
        causes = [line for line in str(exc).splitlines() if line.startswith((": ", "Caused by: "))]
    except Exception:  # Py4J asks the JVM for this text, which may have ended
        causes = []
    return f"{type(exc).__name__}: {causes[-1].partition(': ')[2]}" if causes else repr(exc)


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """The runner's answer is waited for in a thread. A cancelled program still tells what became of its input."""
    import anyio
    import anyio.to_thread

    with anyio.CancelScope(shield=True):
        return await anyio.to_thread.run_sync(function, *args)


def _guard() -> Any:
    try:
        from coordd import guard
    except ImportError:  # shipped beside this file
        import importlib

        return importlib.import_module("guard")
    return guard


def _from_template(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    signature = inspect.signature(function)

    def key(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return template.format(**bound.arguments)

    return key


def _short(text: str, longest: int) -> str:
    """Printable ASCII of at most that length; a digest tells apart what is longer."""
    text = text.encode("unicode_escape").decode("ascii")
    if len(text) <= longest:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[: longest - len(digest) - 4]}... {digest}"
