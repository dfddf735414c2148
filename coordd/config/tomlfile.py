"""TOML files that people write, read with care: size, encoding and kind of file are judged before the content."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from typing import Any, Literal

import msgspec

from coordd.config import ownership
from coordd.config.values import printable

# A file that people write is smaller; a larger one is a mistake, and is not read.
FILE_BYTES_MAX = 1024 * 1024


# tomllib takes the square of the number of parts of a dotted key: a file of nothing else would stop the daemon.
_DEEP_KEY = re.compile(r"""(?<!["'\w-])(?:["'\w-]++[ \t]*+\.[ \t]*+){64}""")


class Problem(msgspec.Struct, frozen=True):
    """Something that a person must mend. A warning disables nothing."""

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


def read_toml(path: str, kind: Literal["config", "job"]) -> tuple[str, dict[str, Any], Problem | None]:
    """The text of a file and its table; or, of a file that cannot be used, the problem."""

    def problem(message: str, line: int | None = None) -> tuple[str, dict[str, Any], Problem]:
        return "", {}, Problem(printable(path), "", line, message, kind=kind)

    try:
        # O_NONBLOCK: a FIFO under the name of a file must not hang the daemon.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            opened = os.fstat(stream.fileno())
            if not stat.S_ISREG(opened.st_mode):
                return problem("expected a regular file")
            exposed = ownership.fault(path, opened)
            if exposed:
                return problem(exposed)
            data = stream.read(FILE_BYTES_MAX + 1)
    except OSError as exc:
        return problem(f"it cannot be read: {exc.strerror or exc}")
    except ValueError as exc:  # a NUL in the path
        return problem(f"it cannot be read: {exc}")
    if len(data) > FILE_BYTES_MAX:
        return problem(f"expected at most {FILE_BYTES_MAX} bytes, found more")
    try:
        content = data.decode()
    except UnicodeDecodeError as exc:
        return problem(f"expected UTF-8, found the byte {data[exc.start]:#04x}", data.count(b"\n", 0, exc.start) + 1)
    if _DEEP_KEY.search(content):
        return problem("its keys have too many parts: expected fewer than 64 with dots between")
    try:
        return content, tomllib.loads(content), None
    except RecursionError:
        return problem("its tables are nested too deeply")
    except ValueError as exc:  # also numbers and dates that Python refuses
        place = re.search(r"at line (\d+)", str(exc))
        return problem(f"it is not TOML: {exc}", int(place.group(1)) if place else None)


_HEADER = re.compile(r"\s*\[\[?\s*([^\]]*?)\s*\]")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^\s.="'#]+))\s*[.=]""")


class Places:
    """On which lines the keys of a file stand, for messages. Read once: a file may have as many mistakes as lines."""

    def __init__(self, content: str) -> None:
        self._content = content
        self._lines: dict[tuple[str, str], int] | None = None

    def line_of(self, section: str, key: str) -> int | None:
        """The line of a key of a section ("" the top); None when it is not plain to see."""
        if self._lines is None:
            self._lines = _lines(self._content)
        return self._lines.get((section, key))


def _lines(content: str) -> dict[tuple[str, str], int]:
    """(section, key) -> the first line on which it stands; a table is a key of what it is in."""
    found: dict[tuple[str, str], int] = {}
    current = ""
    inside = ""  # the quotes of a text of several lines that is open
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
