"""The files of this node that have copies: where they are, and the names of the copies. Names are below the state
directory, as on the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence

from coordd.errors import RefusedError, UnavailableError

# The sinks.
LOG, JOURNAL = "log", "journal"
SINKS = (LOG, JOURNAL)


def directories(state_dir: str, sink: str) -> list[str]:
    """The directories with files of a sink: one of each job, or that of the journal."""
    if sink == JOURNAL:
        return [JOURNAL]
    try:
        return [f"logs/{name}" for name in sorted(os.listdir(os.path.join(state_dir, "logs")))]
    except FileNotFoundError:
        return []


def files_of(state_dir: str, sink: str, directory: str) -> list[str]:
    """The names of the logs, or of the closed segments, in a directory."""
    try:
        names = sorted(os.listdir(os.path.join(state_dir, directory)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [f"{directory}/{name}" for name in names if (_is_segment(name) if sink == JOURNAL else _is_log(name))]


def _is_log(name: str) -> bool:
    return name.endswith(".log")


def _is_segment(name: str) -> bool:
    return name.endswith(".jsonl") and name.removesuffix(".jsonl").isdecimal()


def local_paths(state_dir: str, name: str) -> list[str]:
    """The files whose bytes, one after the other, make the copy: of a log the older half comes first."""
    path = os.path.join(state_dir, name)
    return [f"{path}.old", path] if name.endswith(".log") else [path]


def size_of(state_dir: str, name: str) -> int:
    """How many bytes the copy would have; -1 if there is nothing any more."""
    size = -1
    for each in local_paths(state_dir, name):
        with contextlib.suppress(OSError):
            size = max(size, 0) + os.stat(each).st_size
    return size


def stored_as(name: str, paths: Sequence[str]) -> str:
    """The name of the copy. That of a segment has a part of its hash, because a node that lost its disk counts its
    segments from 1 again. Raises RefusedError if the file is gone, or UnavailableError.
    """
    if name.endswith(".log"):
        return name
    try:
        with open(paths[-1], "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    except FileNotFoundError as exc:
        raise RefusedError(f"{paths[-1]} is gone", kind="gone") from exc
    except OSError as exc:
        raise UnavailableError(f"cannot read {paths[-1]}: {exc.strerror or exc}") from exc
    return f"{name.removesuffix('.jsonl')}-{digest}.jsonl"
