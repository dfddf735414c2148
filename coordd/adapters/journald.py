"""The systemd journal's native protocol: structured fields in one datagram, or in a sealed memfd when large."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import re
import socket
import struct
from collections.abc import Mapping

SOCKET = "/run/systemd/journal/socket"

# If journald does not read for this long (seconds), the line goes to stderr, and the daemon continues.
SEND_TIMEOUT_S = 0.2

# A field's name: capitals, digits and underscores, at most 64; journald refuses others.
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9_]")
NAME_LENGTH_MAX = 64


class JournalSocket:
    """Sends entries, one datagram each. Not thread-safe: the sink of the logs holds a lock."""

    def __init__(self, path: str = SOCKET) -> None:
        self.path = path
        self._sock: socket.socket | None = None

    def send(self, fields: Mapping[str, str]) -> None:
        """Send one entry. Raises OSError when journald refuses it."""
        data = encode(fields)
        try:
            self._send(data)
        except OSError as exc:
            if exc.errno not in (errno.ECONNREFUSED, errno.ENOTCONN, errno.EPIPE):
                raise
            self.close()  # journald was restarted with a new socket: try once more
            self._send(data)

    def close(self) -> None:
        """Close the socket; the next entry opens it again."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _send(self, data: bytes) -> None:
        if self._sock is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            sock.settimeout(SEND_TIMEOUT_S)
            try:
                sock.connect(self.path)
            except OSError:
                sock.close()
                raise
            self._sock = sock
        try:
            self._sock.send(data)
        except TimeoutError:
            self._sock.settimeout(0.0)  # wait for a hung journald once, not for each line
            raise
        except OSError as exc:
            if exc.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            self._send_sealed(self._sock, data)
        if not self._sock.gettimeout():
            self._sock.settimeout(SEND_TIMEOUT_S)

    def _send_sealed(self, sock: socket.socket, data: bytes) -> None:
        """For entries too large for a datagram: sends a sealed memfd instead."""
        fd = os.memfd_create("coordd-log", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            sock.sendmsg([b""], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
        finally:
            os.close(fd)


def encode(fields: Mapping[str, str]) -> bytes:
    """NAME=value lines; a value of several lines is sent with its length."""
    out = []
    for name, value in fields.items():
        key = field_name(name).encode()
        data = value.encode("utf-8", "backslashreplace")
        out.append(key + b"\n" + struct.pack("<Q", len(data)) + data if b"\n" in data else key + b"=" + data)
    return b"\n".join(out) + b"\n"


def field_name(name: str) -> str:
    """The most similar name that journald accepts."""
    return _NOT_IN_NAMES.sub("_", name.upper())[:NAME_LENGTH_MAX].lstrip("_") or "FIELD"
