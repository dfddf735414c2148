"""The processes of a cluster under test: the program that its jobs run, and how to find, count and end all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[3]

LIMIT_S = 60.0  # a loaded machine must not fail a test; a test that works never waits this long
LOOK_S = 0.02

# The program that jobs run. It writes a line to the disk for each step. While it lives, it holds a lock on its run's
# name. So the kernel, not a clock, tells whether an earlier attempt is still alive when the next one starts.
PROGRAM = """
import fcntl, os, signal, sys, time
log, verb, what, ending, code = sys.argv[1:]
env = os.environ
def say(word):
    words = (env["COORDD_RUN"], env["COORDD_ATTEMPT"], env["COORDD_TOKEN"], env["COORDD_NODE"], word,
             repr(time.clock_gettime(time.CLOCK_BOOTTIME)), repr(time.time()), str(os.getpid()))
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, " ".join(words).encode() + b"\\n")
    os.fsync(fd)
    os.close(fd)
lock = os.open(log + ".d/" + env["COORDD_RUN"], os.O_RDWR | os.O_CREAT, 0o644)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    say("overlap")
if verb == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
say("start")
if verb == "sleep":
    time.sleep(float(what))
while verb in ("until", "deaf") and not os.path.exists(what):
    time.sleep(0.02)
while verb == "busy":
    pass
if verb == "first" and env["COORDD_ATTEMPT"] not in what.split(","):
    code = "0"
if verb == "not_on" and env["COORDD_NODE"].partition(".")[0] != what:
    code = "0"
say("end")
if ending == "signal":
    os.kill(os.getpid(), int(code))
sys.exit(int(code))
"""


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def until(what: Callable[[], T], limit_s: float = LIMIT_S, why: str = "") -> T:
    """Call ``what`` until its result is true; returns the result."""
    limit = time.monotonic() + limit_s
    while not (value := what()):
        assert time.monotonic() < limit, f"not true within {limit_s:g} s: {why or what}"
        time.sleep(LOOK_S)
    return value


def exists(pid: int) -> bool:
    """True if the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes(marks: Iterable[str]) -> set[int]:
    """The pids of all live processes that name one of the marks (in the command line, in the environment or in the
    path of the output), and of all their descendants."""
    wanted = [mark.encode() for mark in marks]
    found: set[int] = set()
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if stat[0] in "ZX":
                continue
            children.setdefault(int(stat[1]), []).append(int(name))
            said = b"\0".join(
                [
                    Path(f"/proc/{name}/cmdline").read_bytes(),
                    Path(f"/proc/{name}/environ").read_bytes(),
                    *[os.fsencode(os.readlink(f"/proc/{name}/fd/{fd}")) for fd in (1, 2) if _has(name, fd)],
                ]
            )
        except (OSError, ValueError):
            continue  # the process is gone
        if any(mark in said for mark in wanted):
            found.add(int(name))
    waiting = list(found)
    while waiting:
        fresh = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(fresh)
        waiting += fresh
    return found


def warm_parents(daemon: int) -> set[int]:
    """The pid of a daemon's warm parent; nothing if it has none now."""
    found = set()
    with contextlib.suppress(OSError):  # the daemon is gone
        for child in Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split():
            with contextlib.suppress(OSError):
                if b"\0coordd-warm\0" in Path(f"/proc/{child}/cmdline").read_bytes() and exists(int(child)):
                    found.add(int(child))
    return found


def _has(pid: str, fd: int) -> bool:
    return os.path.lexists(f"/proc/{pid}/fd/{fd}")


def kill_at_once(find: Callable[[], set[int]]) -> int:
    """Kill processes as a power cut would; returns their number. All are stopped before the first is killed, so none
    of them sees another die."""
    stopped: set[int] = set()
    while fresh := sorted(find() - stopped):
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        stopped.update(fresh)
    for pid in stopped:
        send(pid, signal.SIGKILL)
    until(lambda: not [pid for pid in stopped if exists(pid)], why=f"{stopped} die")
    return len(stopped)


def send(pid: int, number: int) -> None:
    """Send a signal to a process, which may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
