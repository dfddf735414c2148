"""coordd.single: the body's process and its thread. Forks, a held interpreter, a keeper that is away."""

from __future__ import annotations

import os
import threading
import time

import pytest
from support.fake_daemon import FakeDaemon

from coordd.once.held import LOOK_S, Held
from coordd.runner.kernel import boottime
from once.granting import DEADLINE_S, grants, program, reports

# A child of fork leaves the block by an exception. Then the parent goes on in the block.
FORKS = """
import os, sys, time
from coordd.single import single
with single("j", socket=sys.argv[1]) as held:
    pid = os.fork()
    if pid == 0:
        {leaves}
    os.waitpid(pid, 0)
    time.sleep(1.5)
    print("lost" if held.lost else "held")
"""

# A child cannot end the event loop that it has a copy of, so it leaves from there.
FORKS_ASYNC = """
import os, sys, time
import anyio
from coordd.single import single
async def main():
    pid = 1
    try:
        async with single("j", socket=sys.argv[1]) as held:
            pid = os.fork()
            if pid == 0:
                {leaves}
            os.waitpid(pid, 0)
            await anyio.sleep(1.5)
            print("lost" if held.lost else "held")
    finally:
        if pid == 0:
            os._exit(0)
anyio.run(main)
"""


@pytest.mark.parametrize("text", [FORKS, FORKS_ASYNC])
@pytest.mark.parametrize("leaves", ["sys.exit(3)", "raise ValueError('x')"])
def test_a_child_that_leaves_the_block_ends_nothing(daemon: FakeDaemon, text: str, leaves: str) -> None:
    grants(daemon)
    parent = program(text.format(leaves=leaves), daemon.path)
    out, err = parent.communicate(timeout=DEADLINE_S)
    assert (parent.returncode, out) == (0, "held\n"), err
    assert reports(daemon) == [("success", 0, "")]


def test_a_child_has_nothing_to_give_up(daemon: FakeDaemon) -> None:
    grants(daemon)
    text = FORKS.format(leaves="held.gives_up(); held.ends(''); os._exit(0)")
    parent = program(text, daemon.path)
    out, err = parent.communicate(timeout=DEADLINE_S)
    assert (parent.returncode, out) == (0, "held\n"), err
    assert reports(daemon) == [("success", 0, "")]


# Code that holds the interpreter's lock beyond the deadline, from right after a renewal on: the next one comes when the
# thread has stopped waiting for it. The keeper renews meanwhile.
HOLDS_LOCK = """
import ctypes, sys, time
from coordd.single import single
with single("j", socket=sys.argv[1]) as held:
    old = held._deadline
    while held._deadline == old:
        time.sleep(0.01)
    ctypes.PyDLL(None).usleep(int(float(sys.argv[2]) * 1e6))
    time.sleep(0.5)
    print("lost" if held.lost else "held")
"""


def test_a_renewed_lease_is_held_by_code_that_held_the_interpreter(daemon: FakeDaemon) -> None:
    grants(daemon, lease_s=4.0, kill_grace_s=1.0, renew_interval_s=1.5, ledger_timeout_s=0.3)
    one = program(HOLDS_LOCK, daemon.path, "6.0")
    out, err = one.communicate(timeout=DEADLINE_S)
    assert (one.returncode, out) == (0, "held\n"), err


# The keeper is killed before the code holds the lock: nobody renews, and the lease ends.
HOLDS_LOCK_ALONE = HOLDS_LOCK.replace("    ctypes", "    os.kill(held._keeper, 9)\n    ctypes")


def test_a_lease_that_nobody_has_renewed_still_kills(daemon: FakeDaemon) -> None:
    grants(daemon, lease_s=4.0, kill_grace_s=1.0, renew_interval_s=1.5, ledger_timeout_s=0.3)
    one = program("import os\n" + HOLDS_LOCK_ALONE, daemon.path, "6.0")
    out, err = one.communicate(timeout=DEADLINE_S)
    assert (one.returncode, out) == (-9, ""), err


def held(on_lost: str, *, over: bool) -> tuple[Held, int]:
    """A body whose deadline has passed, without a keeper; and the keeper's end of the pipe."""
    made = Held.__new__(Held)
    made._hears, keeper = os.pipe()
    made._spec = {"kill_grace_s": 1.0, "on_lost": on_lost}
    made._deadline = boottime() - 0.5
    made._begun, made._over, made._reported = threading.Event(), threading.Event(), threading.Event()
    made._may, made._end, made.lost, made.on_lost = True, {}, "", lambda _why: None
    if over:
        made._over.set()
    return made, keeper


@pytest.mark.parametrize(("on_lost", "over"), [("relaunch", True), ("hold", False)])
def test_the_thread_rests_when_it_may_not_kill(on_lost: str, over: bool) -> None:
    made, keeper = held(on_lost, over=over)
    spent: list[float] = []

    def watch() -> None:
        made._watch()
        spent.append(time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID))

    thread = threading.Thread(target=watch)
    thread.start()
    time.sleep(2 * LOOK_S)
    os.close(keeper)
    made._over.set()
    thread.join(DEADLINE_S)
    assert spent
    assert spent[0] < 0.5 * LOOK_S


def test_no_room_for_a_thread_does_not_stop_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made, keeper = held("hold", over=False)
    monkeypatch.setattr(threading.Thread, "start", refused)
    made.run = "j#1"
    made._heard(b"lost")
    assert made.lost == "the lease is lost, or the run was cancelled"
    os.close(keeper)
    os.close(made._hears)
