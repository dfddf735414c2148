"""A server process of one test run: its ports and its directory; to start, stop, pause and query it."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from support.netns import inside

READY_S = 120.0  # a broker starts in 5 s on an idle machine; three at a time on a loaded machine need more
ASK_S = 120.0  # one command of rabbitmqctl or redis-cli; on a loaded machine rabbitmqctl starts slowly
STOPPED_S = 10.0
LOOK_S = 0.05
HOST = "127.0.0.1"

# Below the range from which the kernel takes the ports of outgoing connections. Otherwise such a connection could have
# a server's port while the server is down, and could even be connected to itself.
PORTS = range(20000, 32000)

_claims = contextlib.ExitStack()
atexit.register(_claims.close)


class ServerError(Exception):
    """A server does not start, or does not answer."""


def stands_still(pid: int) -> bool:
    """Whether each thread of a process that was stopped has stopped. Until then it may still answer."""
    stats = [(task / "stat").read_bytes() for task in Path(f"/proc/{pid}/task").iterdir()]
    return all(stat.rpartition(b") ")[2].startswith(b"T") for stat in stats)


def free_port() -> int:
    """Returns a free port. No other test run on this machine gets it while this process lives."""
    for _ in range(1000):
        port = random.SystemRandom().choice(PORTS)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0coordd-tests-port-{port}")
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            claim.close()
            continue
        _claims.enter_context(claim)  # kept until this process ends
        return port
    raise ServerError("no free port")


class Place(NamedTuple):
    """The place of a server: its address, its network namespace ("": the caller's), and the parent of its directory."""

    host: str = HOST
    netns: str = ""
    parent: str = "/tmp"


HERE = Place()


class Server:
    """One process with its own directory."""

    program = ""
    package = ""

    def __init__(self, place: Place = HERE) -> None:
        self.place = place
        self.host = place.host
        self.directory = Path(tempfile.mkdtemp(prefix="cd-srv-", dir=place.parent))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    # ---- defined by each kind of server

    def argv(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": str(self.directory)}

    def answers(self) -> bool:
        """True if the server speaks its protocol."""
        raise NotImplementedError

    # ---- life

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def launch(self) -> None:
        """Start the process without waiting for it."""
        assert not self.up, "it runs"
        argv = self.argv()
        if shutil.which(argv[0]) is None:
            raise ServerError(f"{self.program} is not installed (Debian: apt-get install {self.package})")
        with (self.directory / "output").open("ab") as output, inside(self.place.netns):
            # It has its own session: ^C on the terminal is for the tests, and the tests then end their servers.
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv],
                cwd=self.directory,
                env=self.environment(),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def ready(self) -> None:
        """Wait until the server answers."""

        def look() -> bool:
            if not self.up:
                raise ServerError(f"{self.program} ended with {self.process and self.process.poll()}:\n{self.said()}")
            return self.answers()

        wait(look, f"{self.program} on port {self.port} answers", self.said)

    def start(self) -> None:
        """Start the server, with the same ports and data as before, and wait until it answers."""
        self.launch()
        self.ready()

    def stop(self) -> None:
        """End the server as a service manager does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server with SIGKILL."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Make the server hang: connections stay open, and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)
        until = time.monotonic() + STOPPED_S
        while not stands_still(self.pid):
            if time.monotonic() > until:
                raise ServerError(f"{self.pid} does not stop")
            time.sleep(0.001)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the server and remove its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.close)

    def asked(self, question: bytes, size: int) -> bytes:
        """The server's answer to one question on a new connection; b"" if it does not answer."""
        with inside(self.place.netns):
            return asked((self.host, self.port), question, size)

    def output_of(self, argv: Sequence[str], environment: dict[str, str]) -> str:
        """The output of a command in the server's namespace. Raises ServerError if the command fails."""
        with inside(self.place.netns):
            return output_of(argv, environment)

    def said(self) -> str:
        """The end of the server's output."""
        path = self.directory / "output"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def _end(self, number: int) -> None:
        if self.process is None:
            return
        if self.up:
            self.process.send_signal(number)
        try:
            self.process.wait(ASK_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(ASK_S)


def wait(true: Callable[[], object], what: str, said: Callable[[], str] = lambda: "") -> None:
    """Check until something is true. Raises ServerError after READY_S."""
    limit = time.monotonic() + READY_S
    while not true():
        if time.monotonic() > limit:
            raise ServerError(f"not within {READY_S:g} s: {what}\n{said()}")
        time.sleep(LOOK_S)


def asked(address: tuple[str, int], question: bytes, size: int) -> bytes:
    """A server's answer to one question on a new connection; b"" if it does not answer."""
    try:
        with socket.create_connection(address, 1.0) as sock:
            sock.settimeout(2.0)
            sock.sendall(question)
            answer = b""
            while len(answer) < size and (more := sock.recv(size - len(answer))):
                answer += more
            return answer
    except OSError:
        return b""


def output_of(argv: Sequence[str], environment: dict[str, str]) -> str:
    """The output of a command. Raises ServerError if the command fails."""
    done = subprocess.run(
        argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_S, check=False
    )
    if done.returncode:
        raise ServerError(f"{' '.join(argv)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()
