"""The program's output: a file of limited size, with its last lines in memory."""

import os
import time

# How many bytes of the end are kept in memory, and how many lines of it go into a fact.
TAIL_BYTES = 8192
LINES_MAX = 20
LINE_LENGTH_MAX = 500

# Bytes per read of the program's output.
READ_BYTES = 65536

# A log that cannot be opened is tried again after this time (seconds): until then its output is lost.
OPEN_AGAIN_S = 1.0


class Log:
    """Appends to ``path``; at half of ``bytes_max`` that file becomes ``path``.old and a new one is started."""

    def __init__(self, path: str, bytes_max: int) -> None:
        self.path = path
        self.half = max(1, bytes_max // 2)
        self.failure = ""  # why a part of the output is missing in the file
        self.tail = b""
        self._fd = -1
        self._size = 0
        self._again_at = 0.0  # before it, a file that could not be opened is not tried again
        self._open()

    def write(self, data: bytes) -> None:
        """Append a piece of output. A full disk loses output, never the run; ``failure`` then has the reason."""
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        while data:
            if not self._has_room():
                return
            piece = data[: self.half - self._size]
            try:
                written = os.write(self._fd, piece)
            except OSError as exc:
                self.failure = f"{self.path}: {exc.strerror}"
                return
            self._size += written
            data = data[written:]

    def lines(self) -> "list[str]":
        """The last lines of the output, for a fact."""
        return self.tail_lines()[-LINES_MAX:]

    def tail_lines(self) -> "list[str]":
        """All lines of the end that is in memory."""
        return [line[:LINE_LENGTH_MAX] for line in self.tail.decode(errors="replace").splitlines()]

    def _has_room(self) -> bool:
        """True if a file is open that is not full. What failed is tried again, at most once in OPEN_AGAIN_S."""
        is_full = self._size >= self.half
        if self._fd >= 0 and not is_full:
            return True
        now = time.monotonic()
        if self._fd < 0 and now < self._again_at:
            return False
        self._again_at = now + OPEN_AGAIN_S
        if is_full:
            self._rotate()
        else:
            self._open()
        return self._fd >= 0

    def _open(self) -> None:
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            self._size = os.fstat(self._fd).st_size
        except OSError as exc:
            self._fd = -1
            self.failure = f"{self.path}: {exc.strerror}"

    def _rotate(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        try:
            os.replace(self.path, f"{self.path}.old")
        except FileNotFoundError:
            pass  # it is there already: the new file could not be opened then
        except OSError as exc:
            self.failure = f"{self.path}: {exc.strerror}"
            self._fd = -1
            return
        self._open()
