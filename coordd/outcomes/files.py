"""Sinks on the disk: a file of JSON lines, a directory with a file for each end, and a directory of Parquet.

Every write is whole or absent, also if the machine stops: a line is one write, a file comes by rename, and both are
synced before the call ends with success.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
from typing import Any

# What a call that was killed leaves behind begins so; readers of Parquet skip such names.
ASIDE = "."

# The columns of an end in Parquet, and their kinds: text, whole number, number. Instants are Unix seconds, as in the
# tables of the history.
COLUMNS = {
    "id": "string", "job": "string", "state": "string", "attempt": "int64", "node": "string", "token": "int64",
    "exit_code": "int64", "reason": "string", "fire_time": "float64", "started_at": "float64", "ended_at": "float64",
    "runtime_s": "float64", "parents": "string", "cluster": "string", "args": "string",
}  # fmt: skip
INSTANTS = ("fire_time", "started_at", "ended_at")


def to_file(path: str, document: str) -> str:
    """Append a line to the file; if the path ends with "/", write a file of its own, once for each end."""
    if path.endswith("/"):
        name = f"{key_of(document)}.json"
        os.makedirs(path, exist_ok=True)
        _replace(path, name, document.encode() + b"\n")
        return f"written as {os.path.join(path, name)}"
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o640)
    try:
        _lock(fd)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        size = status.st_size
        line = document.encode() + b"\n"
        if size and os.pread(fd, 1, size - 1) != b"\n":  # a line that was cut when a disk was full
            line = b"\n" + line
        if os.write(fd, line) != len(line):
            raise OSError("the disk took only a part of the line")
        os.fsync(fd)
    finally:
        os.close(fd)
    return f"appended to {path}"


def _lock(fd: int) -> None:
    """Until it is closed: on NFS, appenders of several nodes would write over each other."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX)
    except OSError as exc:
        if exc.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):  # a file system without locks
            raise


def to_parquet(path: str, document: str) -> str:
    """Write the end as one file of DIRECTORY/date=YYYY-MM-DD/; the same end replaces its file."""
    import pyarrow as pa
    from pyarrow import parquet

    said = json.loads(document)
    day = str(said["ended_at"] or "1970-01-01")[:10]
    row = {name: [_value(name, said.get(name))] for name in COLUMNS}
    schema = pa.schema([(name, getattr(pa, kind)()) for name, kind in COLUMNS.items()])
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(row, schema=schema), sink)
    directory = os.path.join(path, f"date={day}")
    os.makedirs(directory, exist_ok=True)
    name = f"{key_of(document)}.parquet"
    _replace(directory, name, sink.getvalue().to_pybytes())
    return f"written as {os.path.join(directory, name)}"


def _value(name: str, said: Any) -> Any:
    from datetime import datetime

    if said is None:
        return None
    if name in INSTANTS:
        return datetime.fromisoformat(said).timestamp()
    return json.dumps(said) if isinstance(said, list | dict) else said


def key_of(document: str) -> str:
    """What names one end, such as its file: the same for each call about it, and no other's."""
    said = json.loads(document)
    key = f"{said['cluster']} {said['id']} {said['attempt']} {said['state']}"
    return f"{said['job']}-{hashlib.sha256(key.encode()).hexdigest()[:20]}"


def _replace(directory: str, name: str, data: bytes) -> None:
    aside = os.path.join(directory, f"{ASIDE}{name}.{os.getpid()}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(aside, os.path.join(directory, name))
    except BaseException:
        os.unlink(aside)
        raise
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(held)
    finally:
        os.close(held)
