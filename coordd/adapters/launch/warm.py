"""The daemon's side of the warm parent (coordd/runner/warm): starts it, asks it for runners, replaces it.

Everything here may fail at any moment; then the caller starts the runner as a program of its own. Two rules hold:

- The caller does so only if this side has taken the permit of the request. Then no child of the warm parent can take
  it, and none goes on. The kernel gives the permit (an eventfd with the value 1) to one reader.
- A warm parent that did not even fork in time is killed, not asked again. One that is only slow goes on: on a busy
  machine a new one would cost more.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from typing import Final

from coordd import __version__

# As in coordd/runner/warm/parent.py, which adapters may not import.
PROTOCOL: Final = 1
SOCKET_FD: Final = 3

# The daemon waits this long (seconds) for the answer to a request; half a millisecond is usual.
ANSWER_S: Final = 0.1

# A warm parent that has ended is replaced after this pause (seconds), which doubles up to the second value.
AGAIN_S: Final = 1.0
AGAIN_MAX_S: Final = 60.0

ANSWER_BYTES_MAX: Final = 4096

# The command line of a child is written over the parent's, so the parent reserves this many bytes.
COMMAND_LINE_BYTES: Final = 1024


class WarmParent:
    """At most one warm parent at a time."""

    def __init__(self, python: str, boot: str, ledger: str) -> None:
        """``boot``: the Python text that starts it. ``ledger``: the ledger's URL; only its scheme is passed on."""
        self.problem = "it has not been started yet"  # why it is not used now; "" if it is
        self.lost: list[str] = []  # why the last ones were given up, for the log
        self.pid = 0
        self._argv = [python, "-I", "-S", "-E", "-c", boot, "coordd-warm", f"{ledger.partition(':')[0]}:"]
        self._argv.append("." * COMMAND_LINE_BYTES)
        self._socket: socket.socket | None = None
        self._number = 0
        self._has_refused = False
        self._children: dict[int, str] = {}  # pid -> directory
        self._late: dict[str, str] = {}  # number of a request whose child goes on before the answer came -> directory
        self._ended: list[tuple[str, int]] = []
        self._killed: set[int] = set()  # not reaped yet
        self._again_at = 0.0  # on CLOCK_MONOTONIC
        self._pause_s = AGAIN_S

    def start(self, directory: str, fds: list[int]) -> bool:
        """Ask for a runner with these descriptors: spec, runner.log, perhaps the listener.

        False: none was started and none will be. Never raises.
        """
        self._listen()
        if self._socket is None or self.problem:
            return False
        try:
            permit = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            return False
        try:
            if self._ask(directory, [*fds[:2], permit, *fds[2:]]):
                return True
            if not _take(permit):
                if self._socket is not None:
                    self._late[str(self._number)] = directory
                return True
        finally:
            os.close(permit)
        if not self._has_refused:
            self._end(f"it did not answer within {ANSWER_S * 1e3:g} ms")
        return False

    def children(self) -> list[tuple[int, str]]:
        """(pid, directory) of the children that have not been reported as ended."""
        return list(self._children.items())

    def look(self) -> list[tuple[str, int]]:
        """(directory, status as from waitpid) of each child that has ended since the last call. Replaces the warm
        parent when it has ended, and it is time."""
        self._listen()
        self._bury()
        if self._socket is None and time.monotonic() >= self._again_at:
            self._begin()
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """End it. Its children go on."""
        self._again_at = float("inf")
        self._end("the daemon stops")
        self.lost.clear()
        for pid in self._killed:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._killed.clear()

    # ---- steps

    def _begin(self) -> None:
        self._again_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, AGAIN_MAX_S)
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as exc:
            self._give_up(f"it cannot be started: {exc.strerror}")
            return
        with theirs:
            try:
                self.pid = os.posix_spawn(
                    self._argv[0],
                    self._argv,
                    {"LANG": "C.UTF-8"},  # as a runner's
                    file_actions=[
                        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                        (os.POSIX_SPAWN_DUP2, 2, 1),
                        (os.POSIX_SPAWN_DUP2, theirs.fileno(), SOCKET_FD),
                    ],
                    setsid=True,
                    setsigmask=(),
                )
            except OSError as exc:
                ours.close()
                self._give_up(f"it cannot be started: {exc.strerror}")
                return
        ours.setblocking(False)
        self._socket = ours
        self.problem = "it is starting"

    def _ask(self, directory: str, fds: list[int]) -> bool:
        """True if a child was forked; False if it refused, or did not answer."""
        assert self._socket is not None
        self._number += 1
        self._has_refused = False
        limit = time.monotonic() + ANSWER_S
        try:
            socket.send_fds(self._socket, [f"start {self._number}".encode()], fds, socket.MSG_NOSIGNAL)
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            while (left_s := limit - time.monotonic()) > 0:
                if not poll.poll(left_s * 1000):
                    continue
                for words in self._receive():
                    if words[:2] == ["started", str(self._number)]:
                        self._children[int(words[2])] = directory
                        self._pause_s = AGAIN_S
                        return True
                    if words[:2] == ["refused", str(self._number)]:
                        self._has_refused = True
                        return False
                if self._socket is None:
                    return False
        except (OSError, ValueError, IndexError) as exc:
            self._end(f"it cannot be asked: {exc}")
        return False

    def _listen(self) -> None:
        """Take what it has said meanwhile."""
        try:
            for _ in self._receive():
                pass  # an answer that nobody waits for any more
        except (OSError, ValueError, IndexError) as exc:
            self._end(f"it cannot be heard: {exc}")

    def _receive(self) -> list[list[str]]:
        """All messages that are there; those about starts are returned. Raises OSError, ValueError and IndexError."""
        answers: list[list[str]] = []
        while self._socket is not None:
            try:
                data = self._socket.recv(ANSWER_BYTES_MAX)
            except BlockingIOError:
                break
            if not data:
                self._end("it has ended")
                break
            words = data.decode().split(maxsplit=2)
            if words[0] == "hello":
                self._greeted(words[1:])
            elif words[0] == "exited":
                directory = self._children.pop(int(words[1]), "")
                self._ended.append((directory, int(words[2])))
            elif words[0] == "started" and words[1] in self._late:
                self._children[int(words[2])] = self._late.pop(words[1])
            else:
                answers.append(words)
        return answers

    def _greeted(self, said: list[str]) -> None:
        """It is ready. If the package was replaced since this daemon started, it has the other version's code."""
        if said == [str(PROTOCOL), __version__]:
            self.problem = ""
            return
        self._end(f"it is of version {' '.join(said[1:])}, and this daemon of {__version__}")
        self._again_at = float("inf")

    def _end(self, problem: str) -> None:
        """Kill it, if it still lives. Its children go on; from now on their locks tell who lives."""
        if self._socket is None:
            return
        self._give_up(problem)
        self._socket.close()
        self._socket = None
        self._children.clear()
        self._late.clear()
        with contextlib.suppress(ProcessLookupError):  # another part has collected it
            os.kill(self.pid, signal.SIGKILL)
        self._killed.add(self.pid)
        self.pid = 0

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self.lost.append(problem)

    def _bury(self) -> None:
        for pid in list(self._killed):
            try:
                reaped, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                reaped = pid
            if reaped:
                self._killed.discard(pid)


def _take(permit: int) -> bool:
    """Take the permit; False if the child has it, which goes on."""
    try:
        return len(os.read(permit, 8)) == 8
    except OSError:
        return False
