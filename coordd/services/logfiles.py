"""The output of attempts on this node: its path, and how it is read."""

from __future__ import annotations

import hashlib
import os
import re

from coordd.core.jobs.job import job_of
from coordd.core.redaction import redact_text

# Ids chosen by people; their file names are the same as in older versions.
_PLAIN = re.compile(r"#[A-Za-z0-9._-]+")

# A scheduled run. A person may choose a similar id with "_" for ":", which then gets a hash.
_TIMED = re.compile(r"@\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_LOOKS_TIMED = re.compile(r"#\d{4}-\d\d-\d\dT\d\d_")

TAIL_BYTES = 8192
TAIL_LINES_MAX = 20
TAIL_LINE_LENGTH_MAX = 500


def log_path(log_dir: str, run: str, attempt: int) -> str:
    """The path of an attempt's output: no two runs share a file.

    It is the run's id, with "_" for characters that are bad in file names. If another id would give the same name, a
    part of the id's hash follows.
    """
    rest = run[len(job_of(run)) :]
    own = _TIMED.fullmatch(rest) if rest.startswith("@") else _PLAIN.fullmatch(rest) and not _LOOKS_TIMED.match(rest)
    suffix = "" if own else "~" + hashlib.sha256(run.encode()).hexdigest()[:12]
    return os.path.join(log_dir, job_of(run), f"{_safe(run)}{suffix}.{attempt}.log")


def _safe(run: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", run)


def find_log(log_dir: str, run: str, attempt: int, *, earlier: bool) -> str:
    """The path of an attempt's log on this node, or (``earlier``) of the last attempt before it; "" if neither exists.

    Older versions used one file for several ids: those files are found too.
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
    """The last bytes of a log, including the rotated file."""
    parts: list[bytes] = []
    for name in (path, path + ".old"):  # newest first; a log has tens of MiB, and only its end is read
        left = limit - sum(map(len, parts))
        if left > 0 and os.path.exists(name):
            with open(name, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - left))
                parts.insert(0, file.read(left))
    return b"".join(parts).decode(errors="replace")


def read_from(path: str, offset: int) -> tuple[str, int]:
    """The new bytes since the last call; after a rotation it starts at the beginning."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < offset:
            offset = 0
        file.seek(offset)
        data = file.read(64 * 1024)
    return data.decode(errors="replace"), offset + len(data)
