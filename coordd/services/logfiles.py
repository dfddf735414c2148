"""The output of attempts on this node: where it is kept, and how people read it."""

from __future__ import annotations

import hashlib
import os
import re

from coordd.core.jobs.job import job_of
from coordd.core.redaction import redact_text

# What people choose for a run of theirs, and what keeps the file name it always had.
_PLAIN = re.compile(r"#[A-Za-z0-9._-]+")

# A run by schedule; a person may name one that looks the same with "_" for ":", which is not plain then.
_TIMED = re.compile(r"@\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_LOOKS_TIMED = re.compile(r"#\d{4}-\d\d-\d\dT\d\d_")

TAIL_BYTES = 8192
TAIL_LINES_MAX = 20
TAIL_LINE_LENGTH_MAX = 500


def log_path(log_dir: str, run: str, attempt: int) -> str:
    """Where the output of an attempt is kept: no two runs share a file.

    The run's id with "_" for what is better not in a file's name. Where another id would become the same, a part of
    the id's hash follows.
    """
    rest = run[len(job_of(run)) :]
    own = _TIMED.fullmatch(rest) if rest.startswith("@") else _PLAIN.fullmatch(rest) and not _LOOKS_TIMED.match(rest)
    mark = "" if own else "~" + hashlib.sha256(run.encode()).hexdigest()[:12]
    return os.path.join(log_dir, job_of(run), f"{_safe(run)}{mark}.{attempt}.log")


def _safe(run: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", run)


def find_log(log_dir: str, run: str, attempt: int, *, earlier: bool) -> str:
    """The log of an attempt on this node, or (``earlier``) of the last one before it; "" when there is none.

    Older versions gave several ids one file: what they wrote is found as well.
    """
    for number in range(attempt, -1, -1) if earlier else (attempt,):
        path = log_path(log_dir, run, number)
        for each in (path, os.path.join(os.path.dirname(path), f"{_safe(run)}.{number}.log")):
            if os.path.exists(each):
                return each
    return ""


def tail_lines(path: str) -> list[str]:
    """The last lines of a log, without passwords; [] when it cannot be read."""
    try:
        lines = read_tail(path, TAIL_BYTES).splitlines()[-TAIL_LINES_MAX:]
    except OSError:
        return []
    return [redact_text(line)[:TAIL_LINE_LENGTH_MAX] for line in lines]


def read_tail(path: str, limit: int) -> str:
    """The last bytes of a log, what was turned over included."""
    parts: list[bytes] = []
    for name in (path, path + ".old"):  # the newest first; a log has tens of MiB, of which only the end is read
        left = limit - sum(map(len, parts))
        if left > 0 and os.path.exists(name):
            with open(name, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - left))
                parts.insert(0, file.read(left))
    return b"".join(parts).decode(errors="replace")


def read_from(path: str, offset: int) -> tuple[str, int]:
    """What has been written since; a log that was turned over begins anew."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < offset:
            offset = 0
        file.seek(offset)
        data = file.read(64 * 1024)
    return data.decode(errors="replace"), offset + len(data)
