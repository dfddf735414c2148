"""coordd's nodes and Celery's workers as processes on one broker. The processes of each side report into one pipe."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from celery import Celery

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(os.path.dirname(HERE))

START_S = 120.0
LIMIT_S = 30.0
PIPE_BYTES = 1 << 20

# Seconds without a fact after which the facts are counted, and at the latest.
QUIET_S = 0.002
LOOK_MAX_S = 0.2

Fact = dict[str, Any]


class Watcher:
    """Receives the facts of all processes of one side, a line of JSON each, in the order of their arrival.

    It is a pipe with much room: a socket holds ten datagrams, and then the processes wait for the reader.
    """

    def __init__(self, root: str) -> None:
        self.path = os.path.join(root, uuid.uuid4().hex[:8])
        os.mkfifo(self.path)
        self._pipe = os.fdopen(os.open(self.path, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0)
        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._rest = b""
        self.facts: list[Fact] = []

    def clear(self) -> None:
        """Drop the facts received until now."""
        self.read(0.0)
        self.facts.clear()

    def read(self, wait_s: float) -> bool:
        """Read the facts that have arrived; wait up to ``wait_s`` for the first one. Returns True if there was one."""
        if not select.select([self._pipe], [], [], wait_s)[0]:
            return False
        *lines, self._rest = (self._rest + os.read(self._pipe.fileno(), PIPE_BYTES)).split(b"\n")
        self.facts.extend(json.loads(line) for line in lines)
        return True

    def until(self, enough: Callable[[list[Fact]], bool], limit_s: float) -> bool:
        """Read until there is enough. Returns False if that takes too long.

        It looks only when nothing has come for a moment: counting while facts come would take the processor from the
        processes that are measured.
        """
        limit = time.monotonic() + limit_s
        while True:
            looks_at = min(limit, time.monotonic() + LOOK_MAX_S)
            while self.read(QUIET_S) and time.monotonic() < looks_at:
                pass
            if enough(self.facts):
                return True
            if time.monotonic() >= limit:
                return False
            self.read(min(limit - time.monotonic(), 0.25))

    def close(self) -> None:
        """Close the pipe; a second time does nothing."""
        self._pipe.close()


class Side:
    """One side of the comparison: its processes, and the facts that they send."""

    name = ""
    settled = ""  # the last fact about an election that each process sends

    def __init__(self, root: str, count: int) -> None:
        self.count = count
        self.watcher = Watcher(root)
        self.processes: list[subprocess.Popen[bytes]] = []

    def trigger(self, how: str = "elect") -> tuple[str, int]:
        """Start one election. Returns its id, and the instant just before (CLOCK_MONOTONIC, ns)."""
        raise NotImplementedError

    def burst(self, count: int) -> tuple[Callable[[str], bool], int]:
        """Open many elections at once. Returns their ids, and the instant just before."""
        raise NotImplementedError

    def one(self, how: str = "elect") -> float | None:
        """The milliseconds from trigger to action in one election; None if no process acted in time."""
        self.watcher.clear()
        ident, began = self.trigger(how)

        def over(facts: list[Fact]) -> bool:
            mine = [fact["k"] for fact in facts if fact.get("id") in (ident, f"{ident}/0")]
            return "acted" in mine and mine.count(self.settled) >= self.count

        self.watcher.until(over, 3.0)
        times = [fact["t"] for fact in self.watcher.facts if fact["k"] == "acted" and fact["id"] == ident]
        return (min(times) - began) / 1e6 if times else None

    def many(self, count: int, limit_s: float) -> tuple[float, int]:
        """A burst. Returns the actions per second until the last action, and their number."""
        return self._burst(count, limit_s)[:2]

    def _burst(self, count: int, limit_s: float) -> tuple[float, int, int]:
        """Returns the actions per second, their number, and the instant just before (ns)."""
        self.watcher.clear()
        mine, began = self.burst(count)

        def acted(facts: list[Fact]) -> dict[str, int]:
            first: dict[str, int] = {}
            for fact in facts:
                if fact["k"] == "acted" and mine(fact["id"]):
                    first.setdefault(fact["id"], fact["t"])
            return first

        self.watcher.until(lambda facts: len(facts) >= count and len(acted(facts)) >= count, limit_s)
        times = acted(self.watcher.facts)
        if not times:
            return 0.0, 0, began
        return len(times) / ((max(times.values()) - began) / 1e9), len(times), began

    def rest(self, quiet_s: float = 0.7) -> None:
        """Wait until no process has sent a fact for a while: then the burst is over."""
        limit = time.monotonic() + LIMIT_S
        while self.watcher.read(quiet_s) and time.monotonic() < limit:
            pass

    def dead(self) -> int:
        """The number of processes that have ended by themselves."""
        return sum(process.poll() is not None for process in self.processes)

    def spawn(self, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start one process of this side."""
        env = {**os.environ, "PYTHONPATH": f"{os.path.dirname(TESTS)}:{TESTS}", "PYTHONWARNINGS": "ignore"}
        process = subprocess.Popen(
            [sys.executable, *command], env=env, stdout=subprocess.DEVNULL, start_new_session=True, **options
        )
        self.processes.append(process)
        return process

    def wait_ready(self) -> None:
        """Wait until each process has said that it is ready."""

        def enough(facts: list[Fact]) -> bool:
            if self.dead():
                raise RuntimeError(f"{self.name}: {self.dead()} of {self.count} have ended while they started")
            return len([fact for fact in facts if fact["k"] == "ready"]) >= self.count

        if not self.watcher.until(enough, START_S):
            raise TimeoutError(f"{self.name}: not all of {self.count} are ready within {START_S:g} s")

    def close(self) -> None:
        """End all processes, also the stopped ones."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(10)
        self.processes.clear()
        self.watcher.close()


class Coordd(Side):
    """coordd's nodes."""

    name = "coordd"
    settled = "decided"

    def __init__(self, root: str, count: int, broker: str, ledger: str, *, fast: bool = True) -> None:
        """``fast``: claims cross no thread."""
        super().__init__(root, count)
        cluster = f"bench{uuid.uuid4().hex[:8]}"
        for index in range(count):
            spec = {
                "index": index,
                "count": count,
                "bus": broker,
                "ledger": ledger,
                "cluster": cluster,
                "facts": self.watcher.path,
                "fast": fast,
            }
            self.spawn(f"{HERE}/gossip_member.py", json.dumps(spec), stdin=subprocess.PIPE)
        for process in self.processes:
            self.tell(process, "join")
        self._turn = 0

    def wait_ready(self) -> None:
        """Wait also until runs are granted, because nodes watch a new ledger for some seconds first."""
        super().wait_ready()
        limit = time.monotonic() + START_S
        while self.one() is None:
            if time.monotonic() > limit:
                raise TimeoutError("coordd: nothing is granted")
        self.rest()

    def decided(self, count: int, limit_s: float) -> tuple[float, float, int]:
        """A burst. Returns the elections per second until the last node has decided the last one, the grants per
        second, and the number of grants.
        """
        granted, acted, began = self._burst(count, limit_s)

        def all_decided(facts: list[Fact]) -> bool:
            return len(facts) >= count and sum(fact["k"] == "decided" for fact in facts) >= count * self.count

        self.watcher.until(all_decided, 3.0)
        last = max((fact["t"] for fact in self.watcher.facts if fact["k"] == "decided"), default=began)
        return count / max((last - began) / 1e9, 1e-9), granted, acted

    def rest(self, quiet_s: float = 0.7) -> None:
        """Wait also until the granted runs have ended."""
        for process in self.processes:
            self.tell(process, "finish")
        super().rest(quiet_s)

    def tell(self, process: subprocess.Popen[bytes], do: str, **fields: Any) -> None:
        """Send a command."""
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
            process.stdin.flush()

    def _next(self) -> subprocess.Popen[bytes]:
        self._turn += 1
        return self.processes[self._turn % self.count]

    def trigger(self, how: str = "elect") -> tuple[str, int]:
        """``elect`` is an election about a run. ``trigger`` is `run trigger`, which also records the run."""
        ident = f"bench#{how[0]}{uuid.uuid4().hex}"
        began = time.monotonic_ns()
        self.tell(self._next(), how, run=ident)
        return ident, began

    def burst(self, count: int) -> tuple[Callable[[str], bool], int]:
        prefix = f"b{uuid.uuid4().hex[:8]}."
        began = time.monotonic_ns()
        self.tell(self._next(), "burst", prefix=prefix, count=count)
        return lambda ident: ident.startswith(f"bench#{prefix}"), began


class Peer(Side):
    """Celery's workers."""

    name = "Celery"
    settled = "drained"

    def __init__(self, root: str, count: int, broker: str) -> None:
        super().__init__(root, count)
        self.app = Celery("peer", broker=broker)
        self.app.conf.task_ignore_result = True
        for index in range(count):
            name = f"w{index:02d}"
            self.spawn(
                f"{HERE}/celery_worker.py",
                name,
                broker,
                self.watcher.path,
                str(count),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=root,
            )

    def wait_ready(self) -> None:
        """Wait also until every worker knows all others. Workers learn of each other from heartbeats."""
        super().wait_ready()
        limit = time.monotonic() + START_S
        while True:
            answers = self.app.control.broadcast("peer_alive", reply=True, timeout=2.0, limit=self.count)
            views = [alive for answer in answers for alive in answer.values()]
            if len(views) == self.count and all(len(alive) == self.count - 1 for alive in views):
                return
            if time.monotonic() > limit:
                raise TimeoutError("Celery: its workers do not see each other")

    def trigger(self, how: str = "elect") -> tuple[str, int]:
        ident = uuid.uuid4().hex
        began = time.monotonic_ns()
        self.app.control.election(ident, "bench", {"id": ident})
        return ident, began

    def burst(self, count: int) -> tuple[Callable[[str], bool], int]:
        idents = {uuid.uuid4().hex for _ in range(count)}
        began = time.monotonic_ns()
        for ident in idents:
            self.app.control.election(ident, "bench", {"id": ident})
        return idents.__contains__, began

    def close(self) -> None:
        super().close()
        self.app.close()
