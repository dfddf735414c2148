"""Spark's application id: from the launcher's back-channel, else from the program's output.

The back-channel is what Spark's own launcher library uses: a driver that finds _SPARK_LAUNCHER_PORT and
_SPARK_LAUNCHER_SECRET in its environment connects and sends Java-serialised messages. It is private to Spark,
so it is only read, loosely, and only for the id; whether a run succeeded, the exit code alone says.
"""

import _socket
import os
import re

# Nothing but the driver has a reason to connect, and its messages are short.
CONNECTIONS_MAX = 4
BUFFER_BYTES_MAX = 65536

# In Java's serialisation a string is 't', its length in two bytes, its bytes.
STRING = b"t"
ID = re.compile(rb"[A-Za-z][A-Za-z0-9_.-]{3,126}[0-9a-f]")

# What drivers print: YARN, standalone, local; a driver submitted to a standalone cluster; Kubernetes.
PRINTED = re.compile(
    rb"\b(application_\d{9,}_\d{4,}|app-\d{14}-\d{4,}|local-\d{13}|driver-\d{14}-\d{4,}|spark-[0-9a-f]{32})\b"
)
PRINTED_LENGTH_MAX = 64


def is_ours(peer_port: int, port: int) -> bool:
    """The other end of a connection over the loop-back device is a process of our own user (or root's)."""
    ours = (str(os.geteuid()), "0")
    ends = (f"{peer_port:04X}", f"{port:04X}")
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):  # Java speaks IPv4 by way of IPv6 sockets
        try:
            with open(table, encoding="ascii") as file:
                next(file, "")
                for line in file:
                    fields = line.split()
                    if (fields[1].rpartition(":")[2], fields[2].rpartition(":")[2]) == ends:
                        return fields[7] in ours
        except OSError:
            return True  # no /proc/net: the secret alone has to tell
    return False


class Channel:
    """The listening end of the back-channel."""

    def __init__(self, fd: int, secret: str) -> None:
        self._listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM, 0, fd)
        self._listener.setblocking(False)
        self._secret = java_string(secret.encode())
        self._buffers: dict[int, tuple[_socket.socket, bytes]] = {}

    def fds(self) -> "list[int]":
        """What to wait on."""
        return [self._listener.fileno(), *self._buffers]

    def accept(self) -> "int | None":
        """Take a connection; its descriptor, or None."""
        try:
            fd, peer = self._listener._accept()  # type: ignore[attr-defined]  # what socket.accept is made of
        except OSError:
            return None
        sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM, 0, fd)
        if not is_ours(peer[1], self._listener.getsockname()[1]):  # anybody on this machine may connect
            sock.close()
            return None
        if len(self._buffers) >= CONNECTIONS_MAX:
            sock.close()
            return None
        sock.setblocking(False)
        self._buffers[fd] = (sock, b"")
        return int(fd)

    def read(self, fd: int) -> "tuple[bool, str]":
        """Take what has come: (still open, the application id when it is in there)."""
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
        # Without the secret it is some other user of this machine.
        return True, application_id(buffer) if self._secret in buffer else ""

    def close(self) -> None:
        """Stop listening; the driver goes on without."""
        self._listener.close()
        for sock, _ in self._buffers.values():
            sock.close()
        self._buffers.clear()


class Printed:
    """Looks for an application id in the output, across the pieces that it comes in."""

    def __init__(self) -> None:
        self._end = b""

    def search(self, data: bytes) -> str:
        """The id, or ""."""
        text = self._end + data
        # One that touches the end may go on in the next piece.
        for match in PRINTED.finditer(text):
            if match.end() < len(text):
                return match.group().decode()
        self._end = text[-PRINTED_LENGTH_MAX:]
        return ""


def java_string(text: bytes) -> bytes:
    """A string as Java serialises it."""
    return STRING + len(text).to_bytes(2, "big") + text


def application_id(buffer: bytes) -> str:
    """The first string that can be an id after the message SetAppId has begun; "" when it is not there yet."""
    at = buffer.find(b"$SetAppId")
    while at >= 0:
        at = buffer.find(STRING, at + 1)
        if at < 0 or at + 3 > len(buffer):
            break
        text = buffer[at + 3 : at + 3 + int.from_bytes(buffer[at + 1 : at + 3], "big")]
        if java_string(text) == buffer[at : at + 3 + len(text)] and ID.fullmatch(text):
            return text.decode()
    return ""
