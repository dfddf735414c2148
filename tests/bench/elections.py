"""Elections on the unix bus: messages, latency compared with a bare exchange of the same shape, bursts."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from bench.figures import Figure, summary

SECTION = "election, unix bus"
LIMIT_S = 40.0
BURST = 1000

# (nodes, decided elections per second that a burst must reach)
CLUSTERS = ((3, 10_000), (5, 5_000))


class Process:
    """The process of a member."""

    def __init__(self, root: str, index: int, count: int) -> None:
        here = os.path.dirname(os.path.abspath(__file__))
        path = f"{os.path.dirname(os.path.dirname(here))}:{os.path.dirname(here)}"
        self._process = subprocess.Popen(
            [sys.executable, f"{here}/member.py", root, str(index), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._buffer = b""

    def tell(self, do: str, **fields: Any) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """The member's answer to the oldest command."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        limit = time.monotonic() + LIMIT_S
        while b"\n" not in self._buffer:
            if not select.select([fd], [], [], max(0.0, limit - time.monotonic()))[0]:
                raise TimeoutError(f"a member has not answered within {LIMIT_S:g} s")
            data = os.read(fd, 1 << 20)
            if not data:
                raise RuntimeError(f"a member has ended, exit code {self._process.wait()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def ask(self, do: str, **fields: Any) -> Any:
        """Send a command, and return its answer."""
        self.tell(do, **fields)
        return self.answer()

    def stop(self) -> None:
        """End the process: by the end of its stdin, or by force."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def cluster(count: int) -> Iterator[list[Process]]:
    """Members that know each other; the first one opens the elections."""
    with tempfile.TemporaryDirectory(prefix="coordd-bench-") as root:
        members = [Process(root, index, count) for index in range(count)]
        try:
            for member in members:
                member.tell("join")
            for member in members:
                member.answer()
            yield members
        finally:
            for member in members:
                member.stop()


def measure(*, quick: bool) -> list[Figure]:
    """Measure all figures about elections."""
    figures = []
    for count, rate in CLUSTERS:
        with cluster(count) as members:
            members[0].ask("latency", prefix="warm-", rounds=50)
            for member in members:
                member.ask("decided", prefix="warm-", count=50)
            figures += _latency(members, rounds=150 if quick else 1000)
            figures += _bursts(members, rate, repeats=5 if quick else 20)
    return figures


def _latency(members: list[Process], rounds: int) -> list[Figure]:
    before = [member.ask("counts")["published"] for member in members]
    said = members[0].ask("latency", prefix="one-", rounds=rounds)
    decided = [member.ask("decided", prefix="one-", count=rounds) for member in members]
    after = [member.ask("counts")["published"] for member in members]
    published = [(b - a) / rounds for a, b in zip(before, after, strict=True)]
    opener, last = [], []
    for ident, began in said["elections"].items():
        opener.append(decided[0][ident] - began)
        last.append(max(times[ident] for times in decided) - began)
    bare = said["bare"]
    base = statistics.median(bare)
    size = f"N = {len(members)}"
    samples = {name: summary(values, 1e6) for name, values in (("bare", bare), ("opener", opener), ("last", last))}

    def ratio(what: str, values: list[float], target: float) -> Figure:
        p50 = statistics.median(values)
        told = f"p50 {p50 * 1e6:.0f} µs, bare exchange {base * 1e6:.0f} µs; {rounds} of each in turn"
        return Figure(
            SECTION, f"{size}: {what} ÷ bare exchange", p50 / base, "x", target, "<=", told, {"microseconds": samples}
        )

    worst = max(published, key=lambda each: abs(each - 1))
    return [
        Figure(SECTION, f"{size}: messages published, per node and election", worst, "", 1, "=", "the bus's own count"),
        ratio("opener decides", opener, 1.5),
        ratio("last node decides", last, 2.0),
    ]


def _bursts(members: list[Process], rate: float, repeats: int) -> list[Figure]:
    figures = []
    for together, what in ((True, "opened in one turn"), (False, "each opened by a turn of its own")):
        last, opener = [], []
        unheard = 0
        dropped = -_dropped(members)
        for number in range(repeats):
            prefix = f"burst-{together}-{number}-"
            for member in members[1:]:
                member.tell("decided", prefix=prefix, count=BURST)
            began = members[0].ask("burst", prefix=prefix, count=BURST, together=together)["began"]
            decided = [members[0].ask("decided", prefix=prefix, count=BURST)]
            decided += [member.answer() for member in members[1:]]
            unheard += sum(BURST - len(times) for times in decided)
            ends = [max(times.values(), default=math.inf) for times in decided]  # a node may have heard of none
            opener.append(BURST / (ends[0] - began))
            last.append(BURST / (max(ends) - began))
        dropped += _dropped(members)
        figures.append(
            Figure(
                SECTION,
                f"N = {len(members)}: burst of {BURST:,}, {what}",
                statistics.median(last),
                "decided/s",
                rate if together else None,
                ">=",
                f"p50 of {repeats}, until the last node has decided all; opener {statistics.median(opener):,.0f}; "
                f"{dropped} messages dropped, {unheard} elections never heard of",
                {"last": summary(last), "opener": summary(opener)},
            )
        )
    return figures


def _dropped(members: list[Process]) -> int:
    return sum(member.ask("counts")["dropped"] for member in members)
