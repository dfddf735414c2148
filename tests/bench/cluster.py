"""Real daemons for the benchmarks: a cluster in a temporary directory, with control sockets and runners' facts."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Row = dict[str, Any]

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT_S = 30.0

# After this time (seconds) a daemon has finished its start and is idle.
SETTLE_S = 3.0

CONFIG = """
[node]
name = "n{index}"
state_dir = "{root}/state{index}"
runtime_dir = "{root}/run{index}"
jobs_dir = "{root}/jobs"
budget = {{ client = 8, cluster = 8 }}
[cluster]
bus = "{bus}"
ledger = "{ledger}"
{timings}
[control]
socket = "{root}/n{index}.sock"
"""


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def until(look: Callable[[], T | None], what: str, *, limit_s: float = LIMIT_S, every_s: float = 0.02) -> T:
    """Wait until ``look`` finds something, and return it."""
    limit = time.monotonic() + limit_s
    while True:
        found = look()
        if found is not None:
            return found
        if time.monotonic() > limit:
            raise TimeoutError(f"{what}: not within {limit_s:g} s")
        time.sleep(every_s)


class Usage(NamedTuple):
    """For each figure the largest value among all nodes."""

    cpu_percent: float  # of a core
    rss_mb: float  # 10^6 bytes
    pss_mb: float


class Node:
    """One daemon."""

    def __init__(self, root: str, index: int, timings: str, bus: str, ledger: str) -> None:
        self.name = f"n{index}"
        self.config = f"{root}/{self.name}.toml"
        self.socket = f"{root}/{self.name}.sock"
        self.runtime_dir = f"{root}/run{index}"
        self.log = f"{root}/{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(root=root, index=index, timings=timings, bus=bus, ledger=ledger))

    def start(self, **env: str) -> float:
        """Start the daemon. Returns the instant (CLOCK_BOOTTIME) just before."""
        with open(self.log, "ab") as log:
            at = boottime()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "coordd", "run", "--config", self.config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": TOP, **env},
            )
        return at

    @property
    def pid(self) -> int:
        """The pid of the daemon."""
        assert self.process is not None
        return self.process.pid

    def call(self, method: str, **params: Any) -> Any:
        """Call a method over the control socket."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(LIMIT_S)
            sock.connect(self.socket)
            sock.sendall(json.dumps({"id": 1, "method": method, "params": params}).encode() + b"\n")
            with sock.makefile("rb") as stream:
                line = stream.readline()
        if not line:
            raise ConnectionResetError(f"{self.name} has closed the connection")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def ready(self, members: int) -> bool | None:
        """True if the daemon is ready and knows that number of members."""
        assert self.process is not None
        if self.process.poll() is not None:
            with open(self.log, encoding="utf-8") as file:
                raise RuntimeError(f"{self.name} has ended: {file.read()[-300:].strip().splitlines()[-1:]}")
        try:
            status = self.call("status")
        except OSError:
            return None
        return True if status["state"] == "ready" and status["members"]["alive"] >= members else None

    def facts(self, run: str) -> dict[str, dict[str, Any]]:
        """The facts of a run's newest runner on this node by their word, and the runner's
        directory; {} without a runner.
        """
        newest: dict[str, dict[str, Any]] = {}
        for directory in glob.glob(f"{self.runtime_dir}/runs/*"):
            facts = read_facts(directory)
            if facts.get("adopted", {}).get("run") == run and facts["adopted"]["token"] > newest.get("adopted", {}).get(
                "token", -1
            ):
                newest = facts
        return newest

    def stop(self) -> None:
        """Send TERM, and KILL if TERM is not enough."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def read_facts(directory: str) -> dict[str, dict[str, Any]]:
    """The facts of one runner by their word. The file may vanish, or may end in the middle of a line."""
    facts = {}
    with contextlib.suppress(OSError), open(f"{directory}/facts", encoding="utf-8") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                fact = json.loads(line)
                facts[fact["fact"]] = fact
    return facts


def copy_rows(db: sqlite3.Connection, table: str, run: str, changes: Callable[[Row], Iterator[Row]]) -> None:
    """Copy the rows of a run in a ledger's table; ``changes`` yields the changed columns of each copy of a row."""
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    write = f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - question marks only
    for values in db.execute(f"SELECT * FROM {table} WHERE run = ?", (run,)).fetchall():  # noqa: S608 - our own name
        template = dict(zip(columns, values, strict=True))
        copies = ([{**template, **changed}[column] for column in columns] for changed in changes(template))
        db.executemany(write, copies)


class Cluster:
    """Several daemons on one machine."""

    def __init__(self, root: str, count: int, jobs: dict[str, str], timings: str, bus: str, ledger: str) -> None:
        self.root = root
        os.makedirs(f"{root}/jobs")
        for name, text in jobs.items():
            with open(f"{root}/jobs/{name}.toml", "w", encoding="utf-8") as file:
                file.write(text)
        self.nodes = [Node(root, index, timings, bus, ledger) for index in range(count)]

    def start(self, **env: str) -> None:
        """Start all nodes, and wait until each one knows the others."""
        for node in self.nodes:
            node.start(**env)
        for node in self.nodes:
            until(lambda node=node: node.ready(len(self.nodes)), f"{node.name} is ready")  # type: ignore[misc]  # mypy infers no type for a lambda with defaults

    def started(self, run: str, but: Node | None = None, limit_s: float = LIMIT_S) -> tuple[Node, dict[str, Any]]:
        """Wait until a run's program was executed. Returns the node and the runner's facts."""

        def look() -> tuple[Node, dict[str, Any]] | None:
            for node in self.nodes:
                if node is not but:
                    facts = node.facts(run)
                    if "started" in facts:
                        return node, facts
            return None

        return until(look, f"{run} has started", limit_s=limit_s)

    def reached(self, run: str, state: str, by: Node) -> None:
        """Wait until a run that was just triggered is in that state."""

        def look() -> bool | None:
            with contextlib.suppress(RuntimeError):  # the node may have accepted it before the ledger has its row
                return by.call("run.show", id=run)["state"] == state or None
            return None

        until(look, f"{run} is {state}")

    def over(self, run: str, by: Node) -> str:
        """Wait until a run is over. Returns its state."""

        def look() -> str | None:
            state = by.call("run.show", id=run)["state"]
            return state if state in ("success", "failure", "revoked", "rejected", "missed") else None

        return until(look, f"{run} is over")

    def usage(self, watch_s: float) -> Usage:
        """CPU and memory of the idle nodes, measured over that number of seconds."""
        time.sleep(SETTLE_S)
        before = [cpu_s(node.pid) for node in self.nodes]
        began = time.monotonic()
        time.sleep(watch_s)
        passed_s = time.monotonic() - began
        used = [(cpu_s(node.pid) - was) / passed_s * 100 for node, was in zip(self.nodes, before, strict=True)]
        memory = [memory_mb(node.pid) for node in self.nodes]
        return Usage(max(used), max(rss for rss, _ in memory), max(pss for _, pss in memory))

    def end_runs(self) -> None:
        """Kill the remaining runners. The daemons have already ended."""
        for directory in glob.glob(f"{self.root}/run*/runs/*"):
            kill_attempt(read_facts(directory))


def kill_attempt(facts: dict[str, dict[str, Any]]) -> None:
    """Kill runner, watcher and program together. They are stopped first, so that none of
    them can react to the death of another one.
    """
    pids = [facts["adopted"]["pid"], facts["adopted"]["watcher"]] if "adopted" in facts else []
    if "started" in facts:
        pids.append(facts["started"]["program"])
    ticks = {}
    for word, pid, born in (
        ("adopted", "pid", "start_ticks"),
        ("adopted", "watcher", "watcher_start_ticks"),
        ("started", "program", "program_start_ticks"),
    ):
        if word in facts:
            ticks[facts[word][pid]] = facts[word][born]
    pids = [pid for pid in pids if start_ticks(pid) == ticks[pid]]  # otherwise another process has the pid by now
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def start_ticks(pid: int) -> int:
    """When a process was started; 0 if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return 0


def memory_mb(pid: int) -> tuple[float, float]:
    """Resident and proportional set size of a process, in MB (10^6)."""
    found = {}
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            word, _, rest = line.partition(":")
            if word in ("Rss", "Pss"):
                found[word] = int(rest.split()[0]) * 1024 / 1e6
    return found["Rss"], found["Pss"]


def cpu_s(pid: int) -> float:
    """CPU time (seconds) of all threads of a process, with a resolution of nanoseconds. Threads that have ended count:
    the sum over /proc/PID/task would lose theirs. See clock_getcpuclockid(3) for the number of the clock."""
    return time.clock_gettime(~pid << 3 | 2)


@contextlib.contextmanager
def cluster(
    count: int, jobs: dict[str, str], timings: str = "", *, bus: str = "", ledger: str = "", **env: str
) -> Iterator[Cluster]:
    """A running cluster. At the end it is removed with all of its programs. ``timings`` contains lines of [cluster],
    ``env`` variables of the daemons."""
    with tempfile.TemporaryDirectory(prefix="coordd-bench-") as root:
        bus, ledger = bus or f"unix://{root}/bus", ledger or f"sqlite:///{root}/ledger.db"
        made = Cluster(root, count, jobs, timings, bus, ledger)
        try:
            made.start(**env)
            yield made
        finally:
            for node in made.nodes:
                node.stop()
            made.end_runs()
