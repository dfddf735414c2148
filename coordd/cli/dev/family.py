"""The processes of a throw-away cluster: all that descend from this process. None of them outlives it unseen."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable

from coordd.adapters.kernel import proc

LOOK_S = 0.05


def descendants(of: Iterable[int] = ()) -> set[int]:
    """The processes below this one, or below the given ones; zombies do not count."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            state, parent = proc.state_and_parent(int(name))
            if state and state not in "ZX":
                children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    waiting = list(of) or [os.getpid()]
    while waiting:
        fresh = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(fresh)
        waiting += fresh
    return found


def naming(place: str) -> set[int]:
    """Our descendants whose command line or environment names a path below ``place``, with all their descendants."""
    mark = os.fsencode(f"{place.rstrip('/')}/")
    found = {pid for pid in descendants() if any(mark in proc.read(pid, file) for file in ("cmdline", "environ"))}
    return found | descendants(found) if found else found


def cut_power(find: Callable[[], set[int]]) -> None:
    """Kill processes at once: all are stopped before the first is killed, so none of them sees another die."""
    stopped: set[int] = set()
    while fresh := find() - stopped:
        for pid in fresh:
            _signal(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def reap(known: Collection[int]) -> None:
    """Collect adopted processes that have ended. ``known``: pids that somebody else waits for."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in known:
                return
            os.waitpid(ended.si_pid, 0)


def end_all(grace_s: float, limit_s: float, hurry: Callable[[], bool]) -> set[int]:
    """TERM, then KILL after ``grace_s``, to every descendant; returns those that are left after ``limit_s``."""
    began = time.monotonic()
    for pid in descendants():
        _signal(pid, signal.SIGTERM)
    while left := descendants():
        reap(())
        passed_s = time.monotonic() - began
        if passed_s > limit_s:
            return left
        if passed_s > grace_s or hurry():
            for pid in left:
                _signal(pid, signal.SIGKILL)
        time.sleep(LOOK_S)
    reap(())
    return set()


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
