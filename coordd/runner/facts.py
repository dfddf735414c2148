"""A runner's facts on disk: one JSON object per line, written before the report."""

import _socket
import os
import time

from coordd.adapters.lean_json import encode
from coordd.runner.kernel import boottime, complain, start_ticks

FACT_FILE = "facts"
POKE_SOCKET = "facts.sock"


class Facts:
    """Appends facts to the attempt's file, and pokes the daemon to read them.

    Best effort: the disk may be full, read-only or broken, or somebody may have removed the directory; a lost fact must
    not end a run. A fact that could not be written is kept, and written with a later one; until then the poke contains
    it.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.name = os.path.basename(directory)
        self.failure = ""  # why the last fact is not on the disk
        # all facts so far: a handful; if the directory was removed, they are written again
        self._lines: list[bytes] = []
        self._written = 0
        self._torn = False  # the file ends in the middle of a line
        self._fd = -1
        self._runtime_fd = -1

    def append(self, fact: str, *, sync: bool = False, **fields: object) -> bool:
        """Write one fact; with ``sync`` it is on the disk when this returns True. False: the disk refused it."""
        pid = os.getpid()
        record = {
            "fact": fact,
            "at": time.time(),
            "boottime": boottime(),
            "pid": pid,
            "start_ticks": _own_start_ticks(pid),
            **fields,
        }
        self._lines.append(encode(record).encode() + b"\n")
        written = self.catch_up(sync=sync)
        self._poke(b"" if written else self._lines[-1])
        return written

    def catch_up(self, *, sync: bool = False) -> bool:
        """Write the facts that the disk has refused, or all of them if the directory was removed; False if it refuses
        again.
        """
        failure = ""
        try:
            if self._fd < 0 or os.fstat(self._fd).st_nlink == 0:
                self._open()
            while self._written < len(self._lines):
                self._write(self._lines[self._written])
                self._written += 1
            if sync:
                os.fsync(self._fd)
        except OSError as exc:
            failure = f"{self.directory}/{FACT_FILE}: {exc.strerror}"
        if failure and failure != self.failure:
            complain(failure)
        self.failure = failure
        return not failure

    def is_there(self) -> bool:
        """True if the file is where a daemon looks for it; False if somebody has removed it."""
        try:
            return self._fd >= 0 and os.fstat(self._fd).st_nlink > 0
        except OSError:
            return False

    def _open(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._written = 0
            self._torn = False
        os.makedirs(self.directory, 0o700, exist_ok=True)
        self._fd = os.open(
            f"{self.directory}/{FACT_FILE}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )

    def _write(self, line: bytes) -> None:
        if self._torn:
            line = b"\n" + line  # the partial line becomes a line of its own, which nobody can read
        while line:
            written = os.write(self._fd, line)
            self._torn = written < len(line)
            line = line[written:]

    def _poke(self, unwritten: bytes) -> None:
        """Poke the daemon; it also looks by itself, so a missing listener is not an error."""
        try:
            if self._runtime_fd < 0:
                runtime_dir = os.path.dirname(os.path.dirname(self.directory))
                self._runtime_fd = os.open(runtime_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with _closing(_socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)) as sock:
                # Through the directory's descriptor: the path itself may be longer than a socket's name may be.
                news = self.name.encode() + (b"\n" + unwritten if unwritten else b"")
                sock.sendto(news, f"/proc/self/fd/{self._runtime_fd}/{POKE_SOCKET}")
        except OSError:
            return


def _own_start_ticks(pid: int) -> int:
    try:
        return start_ticks(pid)
    except OSError:
        return 0  # /proc cannot be read now; the fact is more important than this


class _closing:  # noqa: N801  # contextlib.closing, less the import of contextlib
    def __init__(self, sock: "_socket.socket") -> None:
        self.sock = sock

    def __enter__(self) -> "_socket.socket":
        return self.sock

    def __exit__(self, *_exc: object) -> None:
        self.sock.close()
