"""The socket for the daemon's commands: cancel, shut down."""

import _socket
import os

COMMAND_SOCKET = "sock"
COMMAND_BYTES_MAX = 4096


class Commands:
    """Listens in an attempt's directory."""

    def __init__(self, directory: str) -> None:
        """Listen. Raises OSError if the disk refuses."""
        self.path = f"{directory}/{COMMAND_SOCKET}"
        # Through the directory's descriptor: the path itself may be longer than a socket's name may be.
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)
            self._socket.bind(f"/proc/self/fd/{fd}/{COMMAND_SOCKET}")
        finally:
            os.close(fd)
        self.fd: int = self._socket.fileno()

    def take(self) -> "tuple[str, str]":
        """A command that has come, and its reason; empty texts if it cannot be read."""
        try:
            word, _, reason = self._socket.recv(COMMAND_BYTES_MAX).decode(errors="replace").partition(" ")
        except OSError:
            return "", ""
        return word, reason

    def is_there(self) -> bool:
        """True if the socket is where a daemon looks for it; False if somebody has removed it."""
        return os.path.exists(self.path)

    def close(self) -> None:
        """Take no more commands."""
        self._socket.close()

    def remove(self) -> None:
        """Remove the socket's file."""
        try:
            os.unlink(self.path)
        except OSError:
            return  # somebody has removed it, or the disk is read-only by now
