"""Reads /proc for those who only look: a process that is gone, or that is hidden from us, has no text."""

from __future__ import annotations

# Maximum number of bytes that are read of one file.
BYTES_MAX = 4 * 1024 * 1024
STAT_BYTES = 4096  # more than one /proc/PID/stat has


def read(pid: int, file: str) -> bytes:
    """A file of a process; empty if the process is gone, or another user's."""
    try:
        with open(f"/proc/{pid}/{file}", "rb") as opened:
            return opened.read(BYTES_MAX)
    except OSError:
        return b""


def state_and_parent(pid: int) -> tuple[str, int]:
    """The state letter of a process and its parent; ("", 0) if it is gone."""
    text = read(pid, "stat")
    fields = text[text.rfind(b")") + 2 :].split()  # the process name before it may contain anything
    return (fields[0].decode(), int(fields[1])) if len(fields) > 1 else ("", 0)


def start_ticks(pid: int) -> int:
    """The start time of a process, in clock ticks since the boot; 0 if it does not exist, or is only a zombie.

    Raises OSError when that cannot be seen: who is hidden may be alive.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as opened:
            fields = opened.read(STAT_BYTES).rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    if fields[0] in b"ZX" and int(fields[17]) <= 1:  # otherwise other threads of it are alive
        return 0
    return int(fields[19])
