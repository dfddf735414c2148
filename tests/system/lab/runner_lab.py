"""A ledger, a launcher and programs for the runner's tests. Tests judge by the programs' output and by /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordd.adapters.launch.warm import WarmParent
from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.adapters.process import ProcessLauncher
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Claim
from coordd.core.ledger.rows import AttemptRow, Row
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import GRANTED, AttemptNumber, Policy
from system.lab.processes import LIMIT_S, boottime, exists, until

# Writes the time on CLOCK_BOOTTIME again and again. On SIGTERM it writes "term" and goes on.
STUBBORN = """
trap 'echo term >> "$OUT"' TERM
while :; do read up _ < /proc/uptime; echo "$up" >> "$OUT"; sleep 0.05; done
"""
# The same, but SIGTERM ends it.
BEATING = 'while :; do read up _ < /proc/uptime; echo "$up" >> "$OUT"; sleep 0.05; done'

# A real daemon: it forks twice, has a new session and an empty environment, and ignores SIGTERM.
DAEMON = """
import os, signal, sys, time
out = os.environ["OUT"]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", '''
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1] + ".pid", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".pid", sys.argv[1])
time.sleep(1000)
''', out], {})
    os._exit(0)
while not os.path.exists(out):
    time.sleep(0.01)
"""


# A program whose main thread ends while another thread goes on. It ignores SIGTERM, and writes its pid to $OUT again
# and again. With the argument "leave" it is the child of a process that ends in success.
HEADLESS = r"""
import ctypes, os, signal, sys, threading, time
out = os.environ["OUT"]
if "leave" in sys.argv and os.fork() > 0:
    while not os.path.exists(out):
        time.sleep(0.01)
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def beat():
    stat = f"/proc/{os.getpid()}/stat"
    while open(stat).read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    while True:
        with open(out, "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.05)
threading.Thread(target=beat, daemon=True).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def beats_on(out: Path) -> bool:
    """True if a process still writes to the file."""
    size = out.stat().st_size
    time.sleep(0.3)
    return out.stat().st_size > size


def kill_together(*pids: int) -> None:
    """Kill processes so that none of them sees another die."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


class Attempt:
    """One attempt that was started."""

    def __init__(self, world: World, run: str, directory: str, mark: str, out: Path) -> None:
        self.world = world
        self.run = run
        self.directory = directory
        self.mark = mark
        self.out = out

    def fact(self, word: str) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            return [fact for fact in self.world.launcher.facts(self.directory) if fact["fact"] == word]

        return until(found)[-1]

    def facts(self) -> list[str]:
        return [fact["fact"] for fact in self.world.launcher.facts(self.directory)]

    def pids(self) -> list[int]:
        """The pids of all processes that, according to the kernel, carry this attempt's mark in their environment."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    environ = Path(f"/proc/{name}/environ").read_bytes()
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue  # the process is gone; or not ours, and closed even to root (pid 1 on some machines)
                if self.mark.encode() in environ and exists(int(name)):
                    found.append(int(name))
        return found

    def lines(self) -> list[str]:
        return self.out.read_text().split() if self.out.exists() else []

    def begun(self, limit_s: float = LIMIT_S) -> Attempt:
        until(self.lines, limit_s)
        self.fact("started")
        return self

    def over(self, limit_s: float = LIMIT_S) -> Row:
        """Wait until runner and watcher are gone; returns the ledger's row."""
        until(lambda: not self.world.launcher.alive(self.directory), limit_s)
        cgroups = [fact["cgroup"] for fact in self.world.launcher.facts(self.directory) if fact.get("cgroup")]
        assert not any(os.path.exists(cgroup) for cgroup in cgroups), "it is removed when it is empty"
        return self.row()

    def row(self) -> Row:
        row = self.world.ledger.run(self.run)
        assert row is not None
        return row

    def attempt(self) -> AttemptRow:
        return self.world.ledger.attempts(self.run)[0]

    def runner(self) -> int:
        return int(self.fact("adopted")["pid"])

    def watcher(self) -> int:
        return int(self.fact("adopted")["watcher"])


class World:
    """A ledger and a launcher in their own directory."""

    def __init__(self, path: Path, *, use_cgroups: bool, warm: bool) -> None:
        self.path = path
        self.ledger = SqliteLedger(f"sqlite:///{path}/ledger.db")
        warm_for = self.ledger.url if warm else ""
        self.launcher = ProcessLauncher(f"{path}/run", use_cgroups=use_cgroups, warm_for=warm_for)
        if warm:
            self.warm_up()
        self.attempts: list[Attempt] = []

    def spec(self, argv: list[str], **changes: Any) -> tuple[dict[str, Any], Attempt]:
        """Claim a new run, as a daemon would; returns the spec and the attempt."""
        ident = uuid.uuid4().hex
        out = self.path / f"out-{ident}"
        lease_s = changes.get("lease_s", 60.0)
        fire_at = changes.get("fire_at", time.time())
        policy = Policy(on_lost=changes.get("on_lost", "relaunch"), attempts=changes.pop("attempts", 1))
        run = f"job{ident}#1"
        of = Registration(run, f"job{ident}", "digest", policy, fire_at, scheduled=False)
        sent_at = boottime()
        answer = self.ledger.ask(
            Claim(of=of, attempt=AttemptNumber(0), nonce=f"nonce-{ident}", node="edge-1", lease_s=lease_s)
        )
        assert isinstance(answer, Answer)
        assert answer.word == GRANTED
        spec = {
            "run": run,
            "job": of.job,
            "attempt": 0,
            "token": answer.token,
            "nonce": f"nonce-{ident}",
            "node": "edge-1",
            "fire_at": fire_at,
            "deadline": sent_at + answer.left_s * 0.98,
            "lease_s": lease_s,
            "renew_interval_s": 5.0,
            "ledger_timeout_s": 2.0,
            "kill_grace_s": 10.0,
            "on_lost": "relaunch",
            "timeout_s": 0.0,
            "never_on_codes": (),
            "never_on_patterns": (),
            "ledger": self.ledger.url,
            "argv": argv,
            "env": {"PATH": os.environ["PATH"], "OUT": str(out), "MARK": ident},
            "cwd": "",
            "log_bytes_max": 100_000,
            **changes,
        }
        directory = self.launcher.directory(run, 0, answer.token)
        attempt = Attempt(self, run, directory, f"MARK={ident}", out)
        self.attempts.append(attempt)
        return spec, attempt

    def start(self, argv: list[str], **changes: Any) -> Attempt:
        spec, attempt = self.spec(argv, **changes)
        assert self.launcher.start(spec) == attempt.directory
        return attempt

    def sh(self, script: str, **changes: Any) -> Attempt:
        return self.start(["/bin/sh", "-c", script], **changes)

    def python(self, script: str, **changes: Any) -> Attempt:
        return self.start([sys.executable, "-I", "-c", script], **changes)

    def warm_up(self) -> WarmParent:
        """Wait until a warm parent is ready."""
        warm = self.launcher.warm
        assert warm is not None
        until(lambda: self.launcher.reap() is not None and not warm.problem)
        return warm

    def close(self) -> None:
        """Kill every process that is left, whatever the test did."""
        for attempt in self.attempts:
            pids = attempt.pids()
            for fact in self.launcher.facts(attempt.directory):
                if fact["fact"] == "adopted":
                    pids += [pid for pid in (fact["pid"], fact["watcher"]) if self.launcher.alive(attempt.directory)]
            for pid in pids:
                if exists(pid):
                    os.kill(pid, signal.SIGKILL)
        until(lambda: self.launcher.reap() is not None and not self.launcher._children)
        self.launcher.close()
        self.ledger.close()


SHORT: dict[str, Any] = {"lease_s": 3.0, "renew_interval_s": 0.3, "ledger_timeout_s": 0.3, "kill_grace_s": 1.0}


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def lease_end(attempt: Attempt) -> float:
    """The end of the lease according to the ledger, on CLOCK_BOOTTIME."""
    return attempt.row().until


def last_beat(attempt: Attempt) -> float:
    return float([line for line in attempt.lines() if line != "term"][-1])


def guarded(watcher: int) -> bool:
    """True if a watcher already looks at its pipe: by then it catches SIGTERM."""
    caught = next(line for line in Path(f"/proc/{watcher}/status").read_text().splitlines() if "SigCgt" in line)
    return bool(int(caught.split()[1], 16) & (1 << (signal.SIGTERM - 1)))


@contextlib.contextmanager
def world_in(path: Path, *, use_cgroups: bool = False, warm: bool = False) -> Iterator[World]:
    """A ``World`` that leaves nothing behind. ``warm``: a warm parent forks its runners."""
    world = World(path, use_cgroups=use_cgroups, warm=warm)
    try:
        yield world
    finally:
        world.close()
