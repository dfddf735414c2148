"""The keeper of one prepared server of Spark Connect: starts it, warms it up, and gives it to one attempt.

    python … keeper OPTIONS -- SPARK-SUBMIT …

OPTIONS is JSON: ``address``, a path for a socket; ``warm_up``, the argv of a client that makes the server load what
every first query needs; ``ready``, a path that is made after that. The daemon holds the other end of the standard
input. While nobody has taken the server, its end ends keeper and server. After the daemon has given it away ("given"),
a runner must take it within TAKE_S. From then on the runner's link is its life.

The server dies with the keeper, however that ends. (One below a script that stays beside it: unless the keeper is
killed.)
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

from coordd.runner import kernel
from coordd.runner.connect.server import Server, below, client_env, spawn

# A runner takes the server within this time (seconds) after the daemon has given it away.
TAKE_S = 30.0

# How often (seconds) server and warm-up are looked at.
LOOK_S = 0.1

# What a server prints before somebody wants it: this much (bytes) of the end is kept.
KEPT_BYTES = 64 * 1024

# A pipe takes this many bytes at once, or none.
PIPE_BUF = 4096

# A warm-up that takes longer (seconds) is ended.
WARM_UP_S = 120.0


class Keeper:
    """One server, and who may have it."""

    def __init__(self, options: "dict[str, object]", argv: "list[str]") -> None:
        self._options = options
        address = str(options["address"])
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen(4)
        self._said, said = os.pipe()
        os.set_blocking(self._said, False)
        self._server = Server(argv, dict(os.environ), said)
        os.close(said)
        self._link: socket.socket | None = None
        self._output = -1
        self._kept = b""
        self._give_up_at = float("inf")
        self._warm_up = 0  # its pid
        self._warm_up_until = 0.0
        self._warmed = False
        self._daemon = True  # the daemon holds our standard input

    def run(self) -> None:
        """Until the server is not wanted any more, or has ended."""
        try:
            while not self._server.has_ended() and time.monotonic() < self._give_up_at:
                if not self._step():
                    return
        except SystemExit:
            if self._link is not None:
                self._server.end()  # a cancel: its driver may say good-bye
            raise
        finally:
            _end_all()
            self._forward()

    def _step(self) -> bool:
        """Wait for something, and do it; False: it is over."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._said, select.POLLIN)
        if self._daemon:
            poll.register(0, select.POLLIN)
        if self._link is not None:
            poll.register(self._link, select.POLLIN)
        for fd, _ in poll.poll(int(LOOK_S * 1000)):
            if fd == self._listener.fileno():
                self._called()
            elif fd == self._said:
                self._forward()
            elif not (self._hear_daemon() if fd == 0 else self._hears_runner()):
                return False
        if self._link is None and self._server.is_shut_out():
            return False  # nobody could use it: the attempt starts one of its own
        self._look_after_warm_up()
        return True

    def _hear_daemon(self) -> bool:
        said = os.read(0, 64)
        if said:
            if self._link is None:  # the runner may have been quicker than this word
                self._give_up_at = time.monotonic() + TAKE_S
            return True
        self._daemon = False
        return self._link is not None

    def _hears_runner(self) -> bool:
        """False if the link has ended: the runner says nothing."""
        return self._link is None or bool(self._link.recv(16))

    def _called(self) -> None:
        link, _ = self._listener.accept()
        link.settimeout(1.0)
        try:
            uid = kernel.peer_uid(link)
            word, fds, _, _ = socket.recv_fds(link, 16, 1)
            if uid != os.geteuid():
                return
            if word == b"take" and self._link is None:
                server = self._server
                self._end_warm_up()
                told = {"keeper": os.getpid(), "pid": server.pid, "port": server.port, "token": server.token}
                link.send(json.dumps(told).encode())
                self._link, self._give_up_at = link, float("inf")
            elif word == b"output" and fds and self._link is not None:
                self._output = fds.pop()
                self._forward()
            for fd in fds:
                os.close(fd)
        except OSError:
            return
        finally:
            if link is not self._link:
                link.close()

    def _look_after_warm_up(self) -> None:
        if self._warmed or self._link is not None:
            return
        if not self._warm_up:
            if self._server.listens():
                env = client_env(dict(os.environ), self._server.port, self._server.token)
                argv = [str(word) for word in self._options["warm_up"]]  # type: ignore[attr-defined]  # a list
                null = os.open(os.devnull, os.O_WRONLY)
                self._warm_up = spawn(argv, env, null)
                os.close(null)
                self._warm_up_until = time.monotonic() + WARM_UP_S
            return
        done, _ = os.waitpid(self._warm_up, os.WNOHANG)
        if not done and time.monotonic() < self._warm_up_until:
            return
        if done:
            self._warm_up = 0
        self._end_warm_up()
        self._warmed = True
        os.close(os.open(str(self._options["ready"]), os.O_CREAT | os.O_WRONLY, 0o600))

    def _end_warm_up(self) -> None:
        if self._warm_up:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._warm_up, signal.SIGKILL)
            os.waitpid(self._warm_up, 0)
            self._warm_up = 0

    def _forward(self) -> None:
        """What the server has printed: into the log of the run, or kept until there is one."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._said, 65536):
                self._kept = (self._kept + data)[-KEPT_BYTES:]
        while self._kept and self._output >= 0:
            room = select.poll()
            room.register(self._output, select.POLLOUT)
            if not room.poll(0):
                return  # the log is slow: the end of what is printed is kept
            try:
                self._kept = self._kept[os.write(self._output, self._kept[:PIPE_BUF]) :]
            except OSError:
                self._output = -1


def _end_all() -> None:
    """Kill the server and all that is left of it. It is below this process, also as an orphan."""
    while True:
        for pid in below(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def main() -> NoReturn:
    """Keep it."""
    kernel.take_name("coordd-connect")
    kernel.become_subreaper()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.umask(0o077)
    Keeper(json.loads(sys.argv[1]), sys.argv[3:]).run()
    sys.exit(0)


if __name__ == "__main__":
    main()
