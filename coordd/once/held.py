"""A granted run whose body is code of this process. This module starts the run's keeper (keeper.py) and watches it.

A thread reads the keeper's messages. If the keeper dies or hangs, the thread does the keeper's work: it kills this
process before the lease ends, unless the body has ended by then.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import select
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any

from coordd.adapters.control_line import ControlLine
from coordd.core.attempt import REPORT_LIMIT_S, watcher_kill_at
from coordd.errors import CoorddError
from coordd.once.keeper import HEARS_FD, SAYS_FD
from coordd.runner.kernel import boottime

BOOT = "import sys; sys.path.insert(0, {root!r}); from coordd.once.keeper import main; main()"

# CLOCK_BOOTTIME may have advanced while a poll slept (suspend), so the thread looks at least this often (seconds).
LOOK_S = 1.0

# The maximum length of a reason. A line to the keeper is atomic up to 4096 bytes.
REASON_MAX = 500

REPORT_S = 5.0


class Held:
    """One grant, from the start of its keeper to the keeper's report."""

    def __init__(self, granted: dict[str, Any], spec: dict[str, Any], socket: str) -> None:
        self.run: str = granted["run"]
        self.job: str = granted["job"]
        self.attempt: int = granted["attempt"]
        self.token: int = granted["token"]
        self.fire_time: str = granted["fire_time"]
        self.lost = ""  # why the lease is lost; set when that is known
        self.on_lost: Callable[[str], None] = lambda _why: None  # called once, in another thread
        address = f"abstract:coordd-guard/{os.urandom(16).hex()}"
        self._spec = {**spec, "born_ticks": 1, "owner": os.getpid(), "guard": address}
        # For coordd.guard, as a program has it in its environment: guard.publish(…, environ=held.environ).
        self.environ: dict[str, str] = {
            "COORDD_RUN": self.run,
            "COORDD_JOB": self.job,
            "COORDD_ATTEMPT": str(self.attempt),
            "COORDD_TOKEN": str(self.token),
            "COORDD_NONCE": spec["nonce"],
            "COORDD_GUARD": address,
        }
        self._owner = os.getpid()
        self._socket = socket
        self._deadline: float = spec["deadline"]
        self._begun = threading.Event()  # set when it is known whether the body may begin
        self._may = False
        self._over = threading.Event()  # set when the body has ended
        self._reported = threading.Event()  # set when the keeper has reported, or is gone
        self._end: dict[str, Any] = {}
        self._hears, keeper_says = os.pipe()
        keeper_hears, self._says = os.pipe()
        spec_in, spec_out = os.pipe()
        root = str(Path(__file__).parents[2])
        # The text of the arguments helps people who read ps.
        command = [sys.executable, "-I", "-S", "-E", "-c", BOOT.format(root=root), "coordd-keeper", self.run]
        # The descriptors are first moved above 4, because one of them may already have a number that the keeper needs.
        high = [os.dup(fd) for fd in (spec_in, keeper_hears, keeper_says)]
        moves = [(os.POSIX_SPAWN_DUP2, fd, target) for fd, target in zip(high, (0, HEARS_FD, SAYS_FD), strict=True)]
        self._keeper = os.posix_spawn(command[0], command, {"LANG": "C.UTF-8"}, file_actions=moves, setsid=True)
        for fd in (*high, spec_in, keeper_hears, keeper_says):
            os.close(fd)
        with open(spec_out, "wb") as file:
            file.write(marshal.dumps(self._spec))
        self._thread = threading.Thread(target=self._watch, name=f"coordd.single {self.run}", daemon=True)
        self._thread.start()

    def begins(self) -> bool:
        """Wait until the keeper lets the body begin. Returns False if it never will (``lost`` says why)."""
        self._begun.wait()
        return self._may

    def is_ours(self) -> bool:
        """False in a child of the process with the body: a fork copies this object, and the child owns no lease."""
        return os.getpid() == self._owner

    def ends(self, failure: str) -> None:
        """The body has ended; ``failure`` is "" or the reason. Waits until the end is reported.

        A child of the body's process does nothing.
        """
        if not self.is_ours():
            return
        self._over.set()
        reason = " ".join(failure.split())[:REASON_MAX]
        with contextlib.suppress(OSError):  # the keeper is gone
            os.write(self._says, f"end {int(bool(failure))} {reason}\n".encode()[: REASON_MAX * 4])
        while not self._reported.wait(LOOK_S) and boottime() < self._deadline + REPORT_LIMIT_S:
            pass  # the daemon is away, or the keeper is stopped: do not wait longer
        if not self._end:
            self._report("failure" if failure else "success", int(bool(failure)), reason)
        self._close()

    def gives_up(self) -> None:
        """The body never began: give the attempt back. A child of the body's process does nothing."""
        if not self.is_ours():
            return
        self._over.set()
        os.close(self._says)
        self._says = -1
        self._reported.wait()
        self._close()

    def _close(self) -> None:
        if not self._reported.is_set():
            return
        self._thread.join()
        for fd in (self._says, self._hears):
            if fd >= 0:
                os.close(fd)
        with contextlib.suppress(ChildProcessError):  # the program may wait for all of its children itself
            os.waitpid(self._keeper, 0)

    # ---- the thread

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._hears, select.POLLIN)
        rest = b""
        while True:
            left_s = self._left_s()
            # This thread may not have run for a while. The keeper's messages of that time are read first.
            if left_s <= 0 and not self._over.is_set() and not self._may_outlive() and not poll.poll(0):
                os.kill(os.getpid(), SIGKILL)  # the keeper should have killed us, but it is gone or hangs
            if poll.poll(int((min(left_s, LOOK_S) if left_s > 0 else LOOK_S) * 1000 + 0.999)):
                data = os.read(self._hears, 65536)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._heard(line)
        self._lose("its keeper has died")
        self._begun.set()
        self._reported.set()
        while self._may and not self._over.is_set() and not self._may_outlive():
            left_s = self._left_s()
            if left_s <= 0:
                os.kill(os.getpid(), SIGKILL)
            self._over.wait(min(left_s, LOOK_S))

    def _left_s(self) -> float:
        """Seconds until this thread has to kill."""
        return watcher_kill_at(self._deadline, float(self._spec["kill_grace_s"])) - boottime()

    def _may_outlive(self) -> bool:
        """A body that has not begun is harmless. If a lost attempt is held for a person, the body may continue."""
        return not self._may or self._spec["on_lost"] == "hold"

    def _heard(self, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        if word in (b"pet", b"wait"):
            self._deadline = float(rest.split()[0])
        elif word == b"go":
            self._may = True
            self._begun.set()
        elif word == b"lost":
            self._lose("the lease is lost, or the run was cancelled")
        elif word == b"end":
            self._end = json.loads(rest)
            if not self._over.is_set():
                self._lose(str(self._end.get("reason", "")))
        elif word == b"bye":
            self._begun.set()
            self._reported.set()

    def _lose(self, why: str) -> None:
        if not self.lost and not self._over.is_set() and not self._reported.is_set():
            self.lost = why or "the lease is lost"
            # A separate thread calls this: a blocked event loop must not stop our own thread, which may have to kill.
            try:
                threading.Thread(target=self.on_lost, args=(self.lost,), daemon=True).start()
            except RuntimeError as exc:  # no room for a thread: the code is not cancelled, and is killed in time
                os.write(
                    2, f"coordd.single: the code of {self.run} cannot be told that its lease is lost: {exc}\n".encode()
                )

    def _report(self, state: str, exit_code: int, reason: str) -> None:
        """Report the end ourselves: the keeper died before it could, and we still have the lease."""
        params = {**self._spec["ledger_options"]["about"], "state": state, "exit_code": exit_code, "reason": reason}
        grant = {name: self._spec[name] for name in ("attempt", "token", "nonce")}
        line = ControlLine(self._socket, REPORT_S)
        try:
            line.call("exec.report", {**params, **grant})
        except CoorddError as exc:
            os.write(2, f"coordd.single: the end of {self.run} is not reported: {exc}\n".encode())
        finally:
            line.close()
