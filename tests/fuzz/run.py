"""Runs many inputs in a row, counts them, and reduces a failure to the few inputs that cause it.

An input is identified by its target, the seed, its chunk and its place in it: the same numbers give the same bytes.
Every chunk has its own world. A failing input is tried again alone; if it needs earlier inputs, these are kept with it.
"""

from __future__ import annotations

import base64
import contextlib
import faulthandler
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import structlog
import trio
import trio.testing

from fuzz.amqp import AmqpTarget
from fuzz.bus import BusTarget
from fuzz.control import ControlTarget
from fuzz.drivers.guard import GuardTarget
from fuzz.files import FilesTarget
from fuzz.journal import JournalTarget
from fuzz.leftovers import LeftoversTarget
from fuzz.trial import Target
from fuzz.values.worth import WorthTarget

TARGETS: dict[str, type[Target]] = {
    target.name: target
    for target in (
        ControlTarget,
        GuardTarget,
        BusTarget,
        AmqpTarget,
        FilesTarget,
        JournalTarget,
        LeftoversTarget,
        WorthTarget,
    )
}
PAST = Path(__file__).parent / "past"

# Number of inputs that share a world: each starts in the state that the earlier ones left.
CHUNK = 2000

# A process of a fuzzer gets no more than this; an input that wants it fails with MemoryError.
ADDRESS_SPACE_BYTES = 3 * 2**30

# An input may take this many times as long by the clock as it may take of a processor.
SHARED = 20

# A process that hangs in C handles no alarm. Only its traceback tells where it hangs.
HANGS_AFTER_S = 180.0

# Maximum number of failures per chunk: a broken check fails for every second input.
FAILURES_MAX = 5


class HangError(Exception):
    """An input took longer than its target allows."""


@dataclass
class Failure:
    """A failure, and the inputs that show it: mostly one."""

    target: str
    place: str  # chunk and index
    what: str
    told: str  # the traceback
    inputs: list[bytes]

    def text(self) -> str:
        """A file for --replay: one input a line, in base64."""
        return "".join([base64.b64encode(data).decode() + "\n" for data in self.inputs])


@dataclass
class Result:
    """The result of a chunk."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest: bytes = b""
    peak_bytes: int = 0  # of this process, so far
    grown_bytes: int = 0  # from the end of its first chunk to now

    def add(self, other: Result) -> None:
        """Sum up."""
        self.inputs += other.inputs
        self.outcomes += other.outcomes
        self.failures += other.failures
        if other.slowest_s > self.slowest_s:
            self.slowest_s, self.slowest = other.slowest_s, other.slowest
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)
        self.grown_bytes = max(self.grown_bytes, other.grown_bytes)


_targets: dict[str, Target] = {}
_resident: dict[str, int] = {}  # after the first chunk


def target_of(name: str) -> Target:
    """The target; made once a process."""
    if name not in _targets:
        _targets[name] = TARGETS[name]()
    return _targets[name]


def inputs_of(name: str, seed: int, chunk: int, count: int) -> list[bytes]:
    """The inputs of a chunk."""
    rng = random.Random(f"{name}/{seed}/{chunk}")
    target = target_of(name)
    return [target.make(rng) for _ in range(count)]


def run_chunk(name: str, seed: int, chunk: int, count: int) -> Result:
    """Try the inputs of a chunk."""
    result = Result()
    inputs = inputs_of(name, seed, chunk, count)
    at = 0
    with _quiet():
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True, file=sys.__stderr__ or 2)
        try:
            while at < len(inputs):
                tried, failure = _run_until_failure(name, inputs[at:], result)
                if failure is not None:
                    failure.place = f"seed {seed}, chunk {chunk}, input {at + tried - 1}"
                    failure.inputs = _shortest(name, inputs[at : at + tried])
                    result.failures.append(failure)
                at += tried
                if len(result.failures) >= FAILURES_MAX:
                    break
        finally:
            faulthandler.cancel_dump_traceback_later()
    result.inputs = at
    result.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resident = _resident_bytes()
    result.grown_bytes = resident - _resident.setdefault(name, resident)
    return result


def replay(name: str, inputs: Sequence[bytes]) -> Failure | None:
    """Try these inputs in a new world, one after the other; the failure, if there is one."""
    with _quiet():
        return _run_until_failure(name, inputs, Result())[1]


def read_inputs(path: Path) -> list[bytes]:
    """The inputs of a file that ``Failure.text`` wrote."""
    return [base64.b64decode(line, validate=True) for line in path.read_text().split()]


# ---- single steps


def _run_until_failure(name: str, inputs: Sequence[bytes], result: Result) -> tuple[int, Failure | None]:
    """One world; returns how many inputs were tried, and the failure of the last of them."""
    target = target_of(name)
    tried = 0
    limit_s = target.limit_s

    async def main() -> None:
        nonlocal tried
        async with target.world() as attempt:
            for data in inputs:
                tried += 1
                started = time.perf_counter()
                _limit(limit_s)
                outcome = await attempt(data)
                _limit(0.0)
                seconds = time.perf_counter() - started
                result.outcomes[outcome] += 1
                if seconds > result.slowest_s:
                    result.slowest_s, result.slowest = seconds, data

    before = {kind: signal.signal(kind, _too_slow) for kind in (signal.SIGALRM, signal.SIGPROF)}
    try:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseException as exc:
        if isinstance(exc, (KeyboardInterrupt, SystemExit)):
            raise
        while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
            exc = exc.exceptions[0]
        told = "".join(traceback.format_exception(exc))
        return max(1, tried), Failure(name, "", f"{type(exc).__name__}: {exc}"[:300], told, [])
    finally:
        _limit(0.0)
        for kind, handler in before.items():
            signal.signal(kind, handler)
    return tried, None


def _limit(seconds: float) -> None:
    """The next input may take that much of a processor (0.0: any), and more of the clock: the machine is shared."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, SHARED * seconds)


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    raise HangError("an input took longer than its target allows")


def _shortest(name: str, history: list[bytes]) -> list[bytes]:
    """The last inputs of a history that still fail: the last alone, the last two, four, …"""
    length = 1
    while length < len(history):
        if _run_until_failure(name, history[-length:], Result())[1] is not None:
            return history[-length:]
        length *= 2
    return history


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the product's log: it would be most of the work."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        yield
    finally:
        structlog.configure(**before)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
