"""The parts of the unix bus: the directory of sockets, and one peer behind one of them."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import socket
import stat
from collections import deque

from coordd.errors import ConfigError, LocalProtocolError, UnavailableError

# Limits of kept messages per slow peer. A hung node is lost after three heartbeats; until then the newest messages
# count.
WAITING_LENGTH_MAX = 4096
WAITING_BYTES_MAX = 4 * 1024 * 1024

# A datagram in a peer's queue is charged to *our* send buffer (unix(7): the receive buffer has no effect), and
# the kernel counts its own overhead too. This lets a peer's whole queue of 64 KiB messages wait.
SEND_BUFFER_BYTES = 2 * 1024 * 1024

# The size of struct sockaddr_un without the final NUL. Longer paths go through the open directory.
ADDRESS_LENGTH_MAX = 107

# Nobody listens at the other end. ECONNRESET and the others occur when it ended between two calls.
_GONE = frozenset((errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE, errno.ENOTSOCK))
_FULL = frozenset((errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM))


class Outcome(enum.Enum):
    """The result of sending one datagram."""

    SENT = "sent"
    FULL = "full"
    GONE = "gone"
    FAILED = "failed"


class Peer:
    """Another node: a socket connected to it, and the messages that wait for room."""

    __slots__ = ("address", "flushing", "inode", "name", "sock", "waiting", "waiting_bytes")

    def __init__(self, name: str, address: str, inode: int = 0) -> None:
        self.name = name
        self.address = address
        self.inode = inode  # the inode of its file, when last seen
        self.waiting: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.flushing = False
        self.sock: socket.socket

    def connect(self) -> Outcome:
        """SENT if somebody listens there."""
        try:
            self.sock = new_socket()
        except OSError:
            return Outcome.FAILED
        try:
            self.sock.connect(self.address)
        except OSError as exc:
            self.sock.close()
            return Outcome.GONE if exc.errno in _GONE else Outcome.FAILED
        return Outcome.SENT

    def send(self, data: bytes) -> Outcome:
        """Send now, unless other messages wait already: the order is kept."""
        return Outcome.FULL if self.waiting else self._send(data)

    def listens(self) -> bool:
        """Test with an empty datagram, which the other side ignores."""
        return self._send(b"") is not Outcome.GONE

    def keep(self, data: bytes) -> int:
        """Keep a message until there is room; returns how many old ones were dropped."""
        self.waiting.append(data)
        self.waiting_bytes += len(data)
        dropped = 0
        while len(self.waiting) > WAITING_LENGTH_MAX or self.waiting_bytes > WAITING_BYTES_MAX:
            self.waiting_bytes -= len(self.waiting.popleft())
            dropped += 1
        return dropped

    def send_waiting(self) -> Outcome:
        """Send the oldest waiting message."""
        outcome = self._send(self.waiting[0])
        if outcome in (Outcome.SENT, Outcome.FAILED):
            self.waiting_bytes -= len(self.waiting.popleft())
        return outcome

    def _send(self, data: bytes) -> Outcome:
        try:
            self.sock.send(data)
        except OSError as exc:
            if exc.errno in _FULL:
                return Outcome.FULL
            if exc.errno in _GONE:
                return Outcome.GONE
            if exc.errno == errno.EMSGSIZE:
                raise LocalProtocolError(f"a datagram of {len(data)} bytes is more than this kernel sends") from exc
            return Outcome.FAILED
        return Outcome.SENT


class Directory:
    """The directory in which every node has its socket file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.read_stamp = (0, 0)  # the stamp before ``names`` read the directory
        self._fd = -1
        self._open()

    def stamp(self) -> tuple[int, int] | None:
        """Changes when a name appears or disappears: (inode, time in ns); None if there is no directory."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return (found.st_ino, found.st_mtime_ns)

    def names(self) -> dict[str, int]:
        """The names of the sockets, with their inodes. Creates the directory again if it is gone."""
        stamp = self.stamp()
        if self._fd < 0 or stamp is None or stamp[0] != os.fstat(self._fd).st_ino:
            self.close()
            self._open()
            stamp = self.stamp()
        self.read_stamp = stamp or (0, 0)
        return self.sockets()

    def sockets(self) -> dict[str, int]:
        """Like ``names``, but creates nothing."""
        found = {}
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                other = (
                    entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False) or entry.is_symlink()
                )
                if not other and not entry.name.startswith("."):
                    found[entry.name] = entry.inode()
        return found

    def address(self, name: str) -> str:
        """A short enough path for bind and connect."""
        path = os.path.join(self.path, name)
        if len(os.fsencode(path)) > ADDRESS_LENGTH_MAX:
            path = f"/proc/self/fd/{self._fd}/{name}"
        if len(os.fsencode(path)) > ADDRESS_LENGTH_MAX:
            raise ConfigError(f"[node] name: {name!r} is too long for a unix socket; choose a shorter one")
        return path

    def bind(self, name: str) -> tuple[socket.socket, int]:
        """Listen under a name; returns the socket and its inode. The file appears only when the socket is ready."""
        probe = Peer(name, self.address(name))
        if probe.connect() is Outcome.SENT:
            probe.sock.close()
            raise ConfigError(f"[node] name: a live node listens at {os.path.join(self.path, name)} already")
        hidden = f".{name}"
        address = self.address(hidden)
        sock = None
        try:
            sock = new_socket()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(hidden, dir_fd=self._fd)
            sock.bind(address)
            os.chmod(hidden, 0o600, dir_fd=self._fd)
            inode = os.stat(hidden, dir_fd=self._fd).st_ino
            os.rename(hidden, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError as exc:
            if sock is not None:
                sock.close()
            raise UnavailableError(f"cannot listen in {self.path}: {exc.strerror or exc}") from exc
        return sock, inode

    def remove(self, name: str, inode: int) -> None:
        """Remove a socket file, if it still has the expected inode."""
        with contextlib.suppress(OSError):
            found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            if stat.S_ISSOCK(found.st_mode) and found.st_ino == inode:
                os.unlink(name, dir_fd=self._fd)

    def close(self) -> None:
        """Close the directory."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        try:
            # Parents as usual, the directory itself for our user alone: anybody who enters it is trusted.
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, 0o700)
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise UnavailableError(f"cannot open the bus directory {self.path}: {exc.strerror or exc}") from exc
        found = os.fstat(fd)
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            os.close(fd)
            raise ConfigError(
                f"[cluster] bus: others may write to {self.path} (owner {found.st_uid}, mode"
                f" {stat.S_IMODE(found.st_mode):04o}), so anybody could speak for a node; it must be yours and 0700"
            )
        self._fd = fd


def new_socket() -> socket.socket:
    """A non-blocking datagram socket that takes large messages and is not inherited."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return sock


def check_name(name: str) -> None:
    """Check that a full_hostname can be a file name; raises ConfigError otherwise."""
    if not name or "/" in name or "\0" in name or name.startswith("."):
        raise ConfigError(f"[node] name: {name!r} cannot be the name of a socket file")
