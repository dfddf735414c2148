"""Sections that are tried again, and sections that may fail: plain code and coroutines, under asyncio and trio."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import pytest

from coordd.guard import LeaseLostError
from coordd.resilience import PoisonousError, optional, poisonous, retry, retrying

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


class Failing:
    """Raises these errors, one a call, and then returns "done"."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_a_function_is_tried_again_until_it_succeeds() -> None:
    failing = Failing(OSError(), OSError())
    assert retry(on=OSError, attempts=3, delay=0.0)(failing)() == "done"
    assert failing.calls == 3


def test_the_last_attempts_error_is_raised_as_it_is() -> None:
    last = OSError("the third")
    failing = Failing(OSError(), OSError(), last, OSError())
    with pytest.raises(OSError, match="the third") as caught:
        retry(on=OSError, attempts=3, delay=0.0)(failing)()
    assert caught.value is last
    assert failing.calls == 3


@pytest.mark.parametrize("error", [ValueError(), PoisonousError(), LeaseLostError(), KeyboardInterrupt()])
def test_what_no_attempt_mends_is_raised_at_once(error: BaseException) -> None:
    failing = Failing(error)
    with pytest.raises(type(error)):
        retry(on=(OSError, PoisonousError, LeaseLostError), attempts=3, delay=0.0)(failing)()
    assert failing.calls == 1


def test_a_block_in_a_loop_is_tried_again() -> None:
    failing, found = Failing(OSError()), ""
    for attempt in retrying(on=OSError, attempts=2, delay=0.0):
        with attempt:
            found = failing()
    assert (found, failing.calls) == ("done", 2)


@BACKENDS
def test_coroutines_and_their_blocks_are_tried_again(backend: str) -> None:
    first, second = Failing(OSError()), Failing(OSError())

    @retry(on=OSError, attempts=2, delay=0.001)
    async def call() -> str:
        await anyio.lowlevel.checkpoint()
        return first()

    async def both() -> tuple[str, str]:
        async for attempt in retrying(on=OSError, attempts=2, delay=0.001):
            with attempt:
                found = second()
        return await call(), found

    assert anyio.run(both, backend=backend) == ("done", "done")
    assert (first.calls, second.calls) == (2, 2)


@pytest.mark.parametrize(
    ("backoff", "pauses"),
    [("fixed", [2.0, 2.0, 2.0, 2.0]), ("linear", [2.0, 4.0, 6.0, 7.0]), ("exponential", [2.0, 4.0, 7.0, 7.0])],
)
def test_pauses_grow_as_the_policy_says(backoff: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", slept.append)
    failing = Failing(*[OSError() for _ in pauses])
    retry(on=OSError, attempts=5, backoff=backoff, delay=2.0, delay_max=7.0)(failing)()
    assert slept == pauses


def test_each_failed_attempt_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing(OSError("away"))
    retry(on=OSError, attempts=2, delay=0.0)(failing)()
    assert caplog.messages == ["attempt 1 failed, the next one begins in 0.0 s: OSError('away')"]


@pytest.mark.parametrize(
    ("said", "name"),
    [({"attempts": 0}, "attempts"), ({"attempts": 1.5}, "attempts"), ({"backoff": "random"}, "backoff"),
     ({"delay": -1.0}, "delay"), ({"delay": 9.0, "delay_max": 8.0}, "delay")],
)  # fmt: skip
def test_a_policy_without_sense_is_refused(said: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected "):
        retrying(**said)


# ---- optional


def in_block(error: Exception, *on: type[Exception]) -> None:
    with optional(*on):
        raise error


def in_function(error: Exception, *on: type[Exception]) -> None:
    @optional(*on)
    def call() -> None:
        raise error

    assert call() is None


def in_coroutine(error: Exception, *on: type[Exception]) -> None:
    @optional(*on)
    async def call() -> None:
        raise error

    anyio.run(call, backend="trio")


def in_async_block(error: Exception, *on: type[Exception]) -> None:
    async def call() -> None:
        async with optional(*on):
            raise error

    anyio.run(call, backend="asyncio")


WAYS = pytest.mark.parametrize("way", [in_block, in_function, in_coroutine, in_async_block])


@WAYS
def test_an_optional_section_fails_with_a_warning(way: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    way(ConnectionError("refused"))
    way(ConnectionError("refused"), ConnectionError, TimeoutError)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "an optional section failed, and the program goes on: ConnectionError('refused')" in caplog.messages


@WAYS
def test_other_errors_pass_and_so_does_the_loss_of_the_lease(way: Callable[..., None]) -> None:
    with pytest.raises(ValueError, match="other"):
        way(ValueError("other"), ConnectionError)
    with pytest.raises(LeaseLostError):
        way(LeaseLostError())


def test_the_warning_goes_to_the_given_log(caplog: pytest.LogCaptureFixture) -> None:
    with optional(log=logging.getLogger("mine")):
        raise OSError
    assert [record.name for record in caplog.records] == ["mine"]


@BACKENDS
def test_no_attempt_begins_after_the_timeout(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause before it counts."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setattr(anyio, "sleep", sleep)
    policy = retry(on=OSError, attempts=5, backoff="fixed", delay=60.0, timeout=50.0)
    failing = Failing(OSError("the first"), OSError("the second"))
    with pytest.raises(OSError, match="the first"):
        policy(failing)()

    @policy
    async def call() -> str:
        return failing()

    with pytest.raises(OSError, match="the second"):
        anyio.run(call, backend=backend)
    assert (slept, failing.calls) == ([], 2)


@pytest.mark.parametrize("section", [retry(), optional(), poisonous("x")])
def test_a_generator_function_is_no_section(section: Callable[[Any], Any]) -> None:
    """Its body begins after the call has returned: nothing would be tried again, or caught."""

    def lines() -> Iterator[str]:
        yield "a"

    async def messages() -> AsyncIterator[str]:
        yield "a"

    for function in (lines, messages):
        with pytest.raises(TypeError, match=f"{function.__name__}: expected a function or a coroutine function, found"):
            section(function)
