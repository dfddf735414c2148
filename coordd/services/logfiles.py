"""The output of attempts on this node: where it is kept, and how people read it."""

from __future__ import annotations

import os
import re

from coordd.core.job import job_of


def log_path(log_dir: str, run: str, attempt: int) -> str:
    """Where the output of an attempt is kept."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", run)
    return os.path.join(log_dir, job_of(run), f"{safe}.{attempt}.log")


def find_log(log_dir: str, run: str, attempt: int, *, earlier: bool) -> str:
    """The log of an attempt on this node, or (``earlier``) of the last one before it; "" when there is none."""
    for number in range(attempt, -1, -1) if earlier else (attempt,):
        path = log_path(log_dir, run, number)
        if os.path.exists(path):
            return path
    return ""


def read_tail(path: str, limit: int) -> str:
    """The last bytes of a log, what was turned over included."""
    data = b""
    for name in (path + ".old", path):
        if os.path.exists(name):
            with open(name, "rb") as file:
                data += file.read()
    return data[-limit:].decode(errors="replace")


def read_from(path: str, offset: int) -> tuple[str, int]:
    """What has been written since; a log that was turned over begins anew."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < offset:
            offset = 0
        file.seek(offset)
        data = file.read(64 * 1024)
    return data.decode(errors="replace"), offset + len(data)
