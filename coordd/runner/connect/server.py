"""One server of Spark Connect: its port, its token, its process.

Other users of the machine can connect to a port of the loopback, so the server wants a token, which is in the
environment of server and client alone. A client that says "localhost" may try ::1 before 127.0.0.1, so that port is
occupied there: nobody else gets the token. The client is started only when the process that listens is the server.
"""

import contextlib
import errno
import os
import select
import signal
import socket
import time

from coordd.runner import kernel

# A server that was told to end may write its event log for this time (seconds).
END_S = 10.0

LISTENING = "0A"
ADDRESS = "127.0.0.1"
TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of a variable
PORT = "spark.connect.grpc.binding.port"

# The exit code of a server that is the child of another process.
UNKNOWN_CODE = 255

# The runner's own way to the application's id; the server's driver uses it, not the client.
BACK_CHANNEL = ("_SPARK_LAUNCHER_PORT", "_SPARK_LAUNCHER_SECRET")


class Started:
    """A server of which there are a process and a port."""

    pid: int
    port: int
    token: str
    exit_code: "int | None" = None
    _told = False

    def listens(self) -> bool:
        """True if the server, and no other process, listens on its port."""
        return listens(self.pid, self.port)

    def is_shut_out(self) -> bool:
        """True if another process listens on its port: it took it before the server could. Spark tries the next one."""
        return bool(_listening(self.port)) and not self.listens()

    def has_ended(self) -> bool:
        """True if its process is gone; its code is in ``exit_code``."""
        raise NotImplementedError

    def end(self) -> None:
        """End it; its driver may say good-bye before."""
        deadline = time.monotonic() + END_S
        self._signal(signal.SIGTERM)
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Tell it to end, once, and do not wait."""
        if not self._told:
            self._told = True
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                self._send(number)

    def _send(self, number: int) -> None:
        """Raises ProcessLookupError: it is gone."""
        raise NotImplementedError


class Server(Started):
    """A server that was started by this process."""

    def __init__(self, argv: "list[str]", env: "dict[str, str]", output: int = -1) -> None:
        """Start it. ``argv``: spark-submit and its arguments. ``output``: a descriptor for what it prints; -1: ours."""
        self.token = os.urandom(32).hex()
        self.port, self._occupied = _free_port()
        words = [argv[0], "--conf", f"{PORT}={self.port}", *argv[1:]]
        self.pid = spawn(words, {**env, TOKEN: self.token}, output)

    def has_ended(self) -> bool:
        """As of Started."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is not None

    def end(self) -> None:
        """As of Started; its process is gone then."""
        super().end()
        while not self.has_ended():
            time.sleep(0.02)
        for held in self._occupied:
            held.close()

    def _send(self, number: int) -> None:
        os.kill(self.pid, number)


class PreparedServer(Started):
    """A server that a keeper has prepared, and that the runner has taken for this attempt."""

    def __init__(self, pid: int, port: int, token: str) -> None:
        """Raises OSError: it is gone."""
        self.pid, self.port, self.token = pid, port, token
        self._fd = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        if not self.token or self.has_ended():
            raise ProcessLookupError(errno.ESRCH, "the prepared server is gone")

    def has_ended(self) -> bool:
        """As of Started; nobody but its keeper knows the code."""
        if self.exit_code is None and self._poll.poll(0):
            self.exit_code = UNKNOWN_CODE
        return self.exit_code is not None

    def _send(self, number: int) -> None:
        signal.pidfd_send_signal(self._fd, number)


def spawn(argv: "list[str]", env: "dict[str, str]", output: int = -1) -> int:
    """Start a program that dies with this process. ``output``: as of Server."""
    parent = os.getpid()
    # Until the child has the default again, our handler of SIGTERM must not take a signal for it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid
    try:
        kernel.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(126)
        if output >= 0:
            os.dup2(output, 1)
            os.dup2(output, 2)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvpe(argv[0], argv, env)
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        os.write(2, f"coordd: {argv[0]} cannot be executed: {why}\n".encode())
    finally:
        os._exit(127)


def client_env(env: "dict[str, str]", port: int, token: str) -> "dict[str, str]":
    """The environment of a client of that server."""
    left = {name: value for name, value in env.items() if name not in BACK_CHANNEL}
    return {**left, TOKEN: token, "SPARK_REMOTE": f"sc://localhost:{port}/"}


def listens(pid: int, port: int) -> bool:
    """True if that process, or one below it, listens on that port: a spark-submit may be a script that stays."""
    inodes = _listening(port)
    return bool(inodes) and (_has(pid, inodes) or any(_has(one, inodes) for one in below(pid)))


def below(pid: int) -> "list[int]":
    """The living descendants of a process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        stat = kernel.stat_of(int(name)) if name.isdecimal() else None
        if stat is not None and stat[0] not in "ZX":
            children.setdefault(stat[1], []).append(int(name))
    found = list(children.get(pid, ()))
    for one in found:  # it grows meanwhile
        found += children.get(one, ())
    return found


def _has(pid: int, inodes: "set[str]") -> bool:
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}") in inodes:
                    return True
    except OSError:
        return False
    return False


def _listening(port: int) -> "set[str]":
    return _listeners("/proc/net/tcp", port) | _listeners("/proc/net/tcp6", port)


def _listeners(path: str, port: int) -> "set[str]":
    """The sockets that listen on that port, as /proc/PID/fd names them."""
    found: set[str] = set()
    try:
        with open(path, encoding="ascii") as file:
            next(file)
            for line in file:
                words = line.split()
                if words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{words[9]}]")
    except (OSError, StopIteration):
        return found
    return found


def _free_port() -> "tuple[int, list[socket.socket]]":
    """A port of the loopback that is free now, and what occupies it on ::1 from now on."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((ADDRESS, 0))
            port = int(probe.getsockname()[1])
            try:
                other = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
            except OSError:
                return port, []  # a machine without IPv6
            try:
                other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                other.bind(("::1", port))  # and does not listen: who connects is refused, and tries 127.0.0.1
            except OSError as exc:
                other.close()
                if exc.errno == errno.EADDRINUSE:
                    continue
                return port, []  # no ::1 on this machine
            return port, [other]
