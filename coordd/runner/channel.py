"""Spark's application id, from the launcher's back-channel, or from the program's output.

The back-channel is what Spark's own launcher library uses: a driver that finds _SPARK_LAUNCHER_PORT and
_SPARK_LAUNCHER_SECRET in its environment connects and sends Java-serialised messages. It is private to Spark, so it is
read tolerantly, and only for the id; only the exit code says whether a run succeeded.
"""

import _socket
import os
import pwd
import re

# Only the driver connects, and its messages are short.
CONNECTIONS_MAX = 4
BUFFER_BYTES_MAX = 65536

# Java serialises a string as 't', its length in two bytes, its bytes.
STRING = b"t"
ID = re.compile(rb"[A-Za-z][A-Za-z0-9_.-]{3,126}[0-9a-f]")

# The lines that drivers print: YARN, standalone, local; a driver submitted to a standalone cluster; Kubernetes.
PRINTED = re.compile(
    rb"\b(application_\d{9,}_\d{4,}|app-\d{14}-\d{4,}|local-\d{13}|driver-\d{14}-\d{4,}|spark-[0-9a-f]{32})\b"
)
PRINTED_LENGTH_MAX = 64


def is_ours(peer_port: int, port: int, user: str = "") -> bool:
    """True if the other end of a loop-back connection is a process of our own user, of root, or of ``user``."""
    ours = [str(os.geteuid()), "0"]
    if user:
        try:
            ours.append(str(pwd.getpwnam(user).pw_uid))
        except KeyError:
            return False  # its program has not started either
    ends = (f"{peer_port:04X}", f"{port:04X}")
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):  # Java uses IPv4 through IPv6 sockets
        try:
            with open(table, encoding="ascii") as file:
                next(file, "")
                for line in file:
                    fields = line.split()
                    if (fields[1].rpartition(":")[2], fields[2].rpartition(":")[2]) == ends:
                        return fields[7] in ours
        except OSError:
            return True  # no /proc/net: only the secret can tell
    return False


class Channel:
    """The listening end of the back-channel."""

    def __init__(self, fd: int, secret: str, user: str = "") -> None:
        """``user``: who the driver is; "" for our own user."""
        self._listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM, 0, fd)
        self._listener.setblocking(False)
        self._secret = java_string(secret.encode())
        self._user = user
        self._buffers: dict[int, tuple[_socket.socket, bytes]] = {}

    def fds(self) -> "list[int]":
        """The descriptors to wait for."""
        return [self._listener.fileno(), *self._buffers]

    def accept(self) -> "int | None":
        """Accept a connection; returns its descriptor, or None."""
        try:
            fd, peer = self._listener._accept()  # type: ignore[attr-defined]  # what socket.accept is made of
        except OSError:
            return None
        sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM, 0, fd)
        # Anybody on this machine may connect. A driver that is sent away fails.
        if not is_ours(peer[1], self._listener.getsockname()[1], self._user):
            sock.close()
            return None
        if len(self._buffers) >= CONNECTIONS_MAX:
            sock.close()
            return None
        sock.setblocking(False)
        self._buffers[fd] = (sock, b"")
        return int(fd)

    def read(self, fd: int) -> "tuple[bool, str]":
        """Read: (still open, the application id if it has come)."""
        sock, buffer = self._buffers[fd]
        try:
            data = sock.recv(BUFFER_BYTES_MAX)
        except BlockingIOError:
            return True, ""
        except OSError:
            data = b""
        if not data or len(buffer) + len(data) > BUFFER_BYTES_MAX:
            del self._buffers[fd]
            sock.close()
            return False, ""
        buffer += data
        self._buffers[fd] = (sock, buffer)
        # Without the secret it is another user of this machine.
        return True, application_id(buffer) if self._secret in buffer else ""

    def close(self) -> None:
        """Stop listening; the driver continues without."""
        self._listener.close()
        for sock, _ in self._buffers.values():
            sock.close()
        self._buffers.clear()


class Printed:
    """Searches the output for an application id, across its pieces."""

    def __init__(self) -> None:
        self._end = b""

    def search(self, data: bytes) -> str:
        """The id, or ""."""
        text = self._end + data
        # A match at the end may continue in the next piece.
        for match in PRINTED.finditer(text):
            if match.end() < len(text):
                return match.group().decode()
        self._end = text[-PRINTED_LENGTH_MAX:]
        return ""


def java_string(text: bytes) -> bytes:
    """A string as Java serialises it."""
    return STRING + len(text).to_bytes(2, "big") + text


def application_id(buffer: bytes) -> str:
    """The first possible id after the start of the message SetAppId; "" if it has not come yet."""
    at = buffer.find(b"$SetAppId")
    while at >= 0:
        at = buffer.find(STRING, at + 1)
        if at < 0 or at + 3 > len(buffer):
            break
        text = buffer[at + 3 : at + 3 + int.from_bytes(buffer[at + 1 : at + 3], "big")]
        if java_string(text) == buffer[at : at + 3 + len(text)] and ID.fullmatch(text):
            return text.decode()
    return ""
