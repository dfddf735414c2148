"""Code that runs on one machine of the cluster: `coordd exec` for functions and blocks of a Python program.

    @single("report", every="1h")         async with single("import", id=day):     with single("deploy", wait=True):
    def report(): ...                         await import_day(day)                     deploy()

With ``tick``, ``every`` or ``id`` the callers on all machines agree on one run, and one caller enters. The others wait.
When the run is over they get NotElectedError; if the first caller's machine dies, one of them takes over. Without these
options it is a lock.
Functions and coroutine functions can be decorated, under asyncio and trio (through anyio). With ``skip=True`` a
decorated function returns None instead of raising the error, and a block gets None.

The lease belongs to the process. If the lease is lost or the run is cancelled, code under asyncio and trio is cancelled
and LeaseLostError is raised. If the code continues, its process is killed before any other caller can enter, so two
callers never run at the same time. Processes that the code started are not killed. A child of os.fork that leaves the
block ends nothing: the lease is its parent's.
"""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from coordd.errors import LeaseLostError, NotElectedError
from coordd.once.asking import LOCK, ONCE_MORE_S, Asking
from coordd.once.held import Held

__all__ = ["Held", "LeaseLostError", "NotElectedError", "single"]

P = ParamSpec("P")
T = TypeVar("T")


class single:  # noqa: N801 - it is used as a decorator and in a with statement
    """A decorator, and a context manager that gives the Held run."""

    def __init__(
        self,
        name: str,
        *,
        tick: str | None = None,
        every: str | None = None,
        id: str | None = None,  # noqa: A002 - the option's name
        timezone: str = "",
        lease: float = 0.0,
        wait: bool = False,
        skip: bool = False,
        socket: str = "",
    ) -> None:
        """The options of `coordd exec`. ``lease`` in seconds; 0: the cluster's.

        Raises TypeError, or ValueError for an empty key, more than one key, or a lease that is not a length.
        """
        keys = {how: what for how, what in (("tick", tick), ("every", every), ("id", id)) if what is not None}
        _check_texts({"name": name, **keys, "timezone": timezone, "socket": socket})
        _check_keys(keys)
        _check_lease(lease)
        ((how, what),) = keys.items() or ((LOCK, ""),)
        self._asking = functools.partial(
            Asking, name, how, what, timezone=timezone, lease_s=lease, wait=wait, socket=socket
        )
        self._name = name
        self._skip = skip
        self._held: Held | None = None
        self._scope: anyio.CancelScope | None = None

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Each call of the function is a separate block."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with self._copy() as held:
                    return await function(*args, **kwargs) if held is not None else None

            return cast("Callable[P, T]", call_async)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            with self._copy() as held:
                return function(*args, **kwargs) if held is not None else None

        return cast("Callable[P, T]", call)

    def _copy(self) -> single:
        made = single(self._name, skip=self._skip)
        made._asking = self._asking
        return made

    # ---- plain code

    def __enter__(self) -> Held | None:
        """Raises NotElectedError, and the errors of the socket's client."""
        asking = self._asking()
        try:
            while True:
                while (pause_s := asking.step()) is not None:
                    time.sleep(pause_s)
                held = _start(asking)
                if held is not None or not asking.granted or not asking.again():
                    return self._begun(asking, held)
                time.sleep(ONCE_MORE_S)
        finally:
            asking.line.close()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, self._held = self._held, None
        if held is None or not held.is_ours():
            return
        held.ends(kind.__name__ if kind is not None else "")
        if held.lost and kind is None:
            raise LeaseLostError(f"{held.run}: {held.lost}")

    # ---- asyncio and trio

    async def __aenter__(self) -> Held | None:
        """Raises the same errors as ``__enter__``."""
        asking = self._asking()
        while True:
            while (pause_s := await anyio.to_thread.run_sync(asking.step)) is not None:  # noqa: ASYNC110 - nobody sets an event
                await anyio.sleep(pause_s)
            with anyio.CancelScope(shield=True):  # a grant must not be lost here
                started = await anyio.to_thread.run_sync(_start, asking)
            if started is not None or not asking.granted or not asking.again():
                break
            await anyio.sleep(ONCE_MORE_S)
        held = self._begun(asking, started)
        if held is None:
            return None
        token, scope = anyio.lowlevel.current_token(), anyio.CancelScope()
        self._scope = scope
        held.on_lost = lambda _why: anyio.from_thread.run_sync(scope.cancel, token=token)
        scope.__enter__()
        if held.lost:
            scope.cancel()
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        held, self._held = self._held, None
        if held is None or self._scope is None or not held.is_ours():
            return False
        caught = self._scope.__exit__(kind, exc, trace)
        failure = kind.__name__ if kind is not None else ""
        with anyio.CancelScope(shield=True):  # wait until the end is reported
            await anyio.to_thread.run_sync(held.ends, failure)
        if held.lost and (caught or kind is None):
            raise LeaseLostError(f"{held.run}: {held.lost}")
        return bool(caught)

    def _begun(self, asking: Asking, held: Held | None) -> Held | None:
        if held is None and not self._skip:
            raise NotElectedError(asking.why or f"{self._name} is not run here")
        self._held = held
        return held


def _check_texts(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if not isinstance(value, str):
            found = f"found {value!r:.80} ({type(value).__name__})"
            raise TypeError(f"single: {name}: expected a text, {found}: write it in quotes, or use str()")


def _check_keys(keys: dict[str, str]) -> None:
    if len(keys) > 1:
        found = " and ".join(keys)
        raise ValueError(f"single: expected one of tick, every and id, found {found}: leave out all but one")
    for name, value in keys.items():
        if not value:  # with a random id each call would be another run
            raise ValueError(f'single: {name}: expected a text, found ""; leave it out for a lock')


def _check_lease(lease: Any) -> None:
    if isinstance(lease, bool) or not isinstance(lease, (int, float)):
        found = f"found {lease!r:.80} ({type(lease).__name__})"
        raise TypeError(f"single: lease: expected a number of seconds, {found}")
    if lease != 0 and not 0 < lease < math.inf:
        raise ValueError(
            f"single: lease: expected a number of seconds above 0, found {lease}; leave it out for the cluster's"
        )


def _start(asking: Asking) -> Held | None:
    """Start the keeper of a grant. Returns None if there is no grant, or if the attempt may no longer begin."""
    if not asking.granted:
        return None
    held = Held(asking.granted, asking.spec(), asking.socket)
    if held.begins():
        return held
    asking.why = f"{held.run} must not begin any more: {held.lost}"
    held.gives_up()
    return None
