"""Reads TOML files that people write: checks size, encoding and kind of file before the content."""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from typing import Any, Literal

import msgspec

from coordd.config import ownership
from coordd.config.values import printable

# Files that people write are smaller; a larger one is a mistake, and is not read.
FILE_BYTES_MAX = 1024 * 1024


# tomllib needs quadratic time for the parts of a dotted key: one long key would stop the daemon.
_DEEP_KEY = re.compile(r"""(?<!["'\w-])(?:["'\w-]++[ \t]*+\.[ \t]*+){64}""")


# What tomllib says of a list on one line, followed by a table of the same name, needs a translation.
_TWICE = ": a file has either NAME = [...] or [[NAME]], not both"


class Problem(msgspec.Struct, frozen=True):
    """A problem that a person must repair. A warning disables nothing."""

    file: str
    key: str
    line: int | None
    message: str
    severity: Literal["error", "warning"] = "error"
    kind: Literal["config", "job"] = "job"

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        parts = [place, self.key, "warning" if self.severity == "warning" else "", self.message]
        return ": ".join([part for part in parts if part])


def read_toml(
    path: str, kind: Literal["config", "job"], within: ownership.Directory | None = None
) -> tuple[str, dict[str, Any], Problem | None]:
    """The text and the table of a file; or, if it cannot be used, the problem. ``within``: the file's directory, of
    which many are read.
    """

    def problem(message: str, line: int | None = None) -> tuple[str, dict[str, Any], Problem]:
        return "", {}, Problem(printable(path), "", line, message, kind=kind)

    try:
        # O_NONBLOCK: a FIFO under the name of a file must not hang the daemon.
        opened_fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            opened = os.fstat(opened_fd)
            if stat.S_ISDIR(opened.st_mode):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not stat.S_ISREG(opened.st_mode):
                return problem("expected a regular file")
            name = os.path.basename(path)
            exposed = within.fault(name, opened) if within is not None else ownership.fault(path, opened)
            if exposed:
                return problem(exposed)
            data = _content(opened_fd, opened.st_size)
        finally:
            os.close(opened_fd)
    except OSError as exc:
        return problem(f"it cannot be read: {exc.strerror or exc}")
    except ValueError as exc:  # a NUL in the path
        return problem(f"it cannot be read: {exc}")
    return parsed_toml(data, path, kind)


def _content(fd: int, size: int) -> bytes:
    """A file, or as much of it as shows that it is too large. ``size``: as it says; a file may also grow, or say 0."""
    data = os.read(fd, min(size, FILE_BYTES_MAX) + 1)
    while len(data) <= FILE_BYTES_MAX and (more := os.read(fd, 65536)):
        data += more
    return data


def parsed_toml(data: bytes, path: str, kind: Literal["config", "job"]) -> tuple[str, dict[str, Any], Problem | None]:
    """The same for a text that is at hand; ``path`` is its name for messages."""

    def problem(message: str, line: int | None = None) -> tuple[str, dict[str, Any], Problem]:
        return "", {}, Problem(printable(path), "", line, message, kind=kind)

    if len(data) > FILE_BYTES_MAX:
        return problem(f"expected at most {FILE_BYTES_MAX} bytes, found more")
    try:
        content = data.decode()
    except UnicodeDecodeError as exc:
        return problem(f"expected UTF-8, found the byte {data[exc.start]:#04x}", data.count(b"\n", 0, exc.start) + 1)
    if content.startswith("\ufeff"):  # some editors of Windows write one; nobody sees it
        return problem("expected UTF-8 without a byte order mark, found one (EF BB BF): save it without", 1)
    if _DEEP_KEY.search(content):
        return problem("its keys have too many parts: expected fewer than 64 with dots between")
    try:
        return content, tomllib.loads(content), None
    except RecursionError:
        return problem("its tables are nested too deeply")
    except ValueError as exc:  # includes numbers and dates that Python refuses
        place = re.search(r"at line (\d+)", str(exc))
        twice = _TWICE if "Cannot mutate immutable namespace" in str(exc) else ""
        return problem(f"it is not TOML: {exc}{twice}", int(place.group(1)) if place else None)


_HEADER = re.compile(r"\s*\[\[?\s*([^\]]*?)\s*\]")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^\s.="'#]+))\s*[.=]""")


class Places:
    """The line number of each key in a file, for messages. Built once: a file may have as many mistakes as lines."""

    def __init__(self, content: str) -> None:
        self._content = content
        self._lines: dict[tuple[str, str], int] | None = None

    def line_of(self, section: str, key: str) -> int | None:
        """The line of a key in a section ("" is the top); None if it is not clear."""
        if self._lines is None:
            self._lines = _lines(self._content)
        return self._lines.get((section, key))


def _lines(content: str) -> dict[tuple[str, str], int]:
    """(section, key) -> its first line; a table is a key of its parent."""
    found: dict[tuple[str, str], int] = {}
    current = ""
    inside = ""  # the quotes of an open multi-line text
    for place, line in enumerate(content.split("\n"), 1):
        if not inside:
            header = _HEADER.match(line)
            if header:
                current = header.group(1)
                section, _, key = current.rpartition(".")
                found.setdefault((section, key), place)
            elif named := _KEY.match(line):
                found.setdefault((current, named.group(1) or named.group(2) or named.group(3) or ""), place)
        for quotes in re.findall(r"\"{3}|'{3}", line):
            inside = quotes if not inside else "" if inside == quotes else inside
    return found
