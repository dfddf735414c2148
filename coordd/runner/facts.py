"""What a runner leaves on disk: one JSON object a line, written before it is reported to anybody."""

import _socket
import os
import time
from _json import encode_basestring_ascii  # json itself costs 8 ms of every start

from coordd.runner.kernel import boottime, start_ticks

FACT_FILE = "facts"
POKE_SOCKET = "facts.sock"


class Facts:
    """Appends to the attempt's file and tells a daemon that there is something to read."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.name = os.path.basename(directory)
        self._fd = os.open(f"{directory}/{FACT_FILE}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._runtime_fd = os.open(
            os.path.dirname(os.path.dirname(directory)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        )

    def append(self, fact: str, *, sync: bool = False, **fields: object) -> None:
        """Write one fact; with ``sync`` it is on the disk when this returns."""
        pid = os.getpid()
        record = {
            "fact": fact, "at": time.time(), "boottime": boottime(), "pid": pid, "start_ticks": start_ticks(pid),
            **fields,
        }  # fmt: skip
        os.write(self._fd, encode(record).encode() + b"\n")
        if sync:
            os.fsync(self._fd)
        self._poke()

    def _poke(self) -> None:
        """Hurry the daemon along; it also looks by itself, so nobody listening is no error."""
        with _closing(_socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)) as sock:
            try:
                # By way of the directory's descriptor: the path itself may be longer than a socket's name may be.
                sock.sendto(self.name.encode(), f"/proc/self/fd/{self._runtime_fd}/{POKE_SOCKET}")
            except OSError:
                return


class _closing:  # noqa: N801  # contextlib.closing, less the import of contextlib
    def __init__(self, sock: "_socket.socket") -> None:
        self.sock = sock

    def __enter__(self) -> "_socket.socket":
        return self.sock

    def __exit__(self, *_exc: object) -> None:
        self.sock.close()


def encode(value: object) -> str:
    """JSON, for the few types that facts are made of."""
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, str):
        return str(encode_basestring_ascii(value))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if abs(value) < float("inf") else "null"
    if isinstance(value, dict):
        return "{" + ", ".join([f"{encode(str(key))}: {encode(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join([encode(item) for item in value]) + "]"
    raise TypeError(f"no fact is made of {type(value).__name__}")
