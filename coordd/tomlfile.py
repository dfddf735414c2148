"""TOML files that people write, read with care: size, encoding and kind of file are judged before the content."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from typing import Any, Literal

import msgspec

from coordd.core.values import printable

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
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return problem("expected a regular file")
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


def line_of(content: str, section: str, key: str) -> int | None:
    """The line on which a key of a section ("" the top) stands, for messages; None when it is not plain to see."""
    current = ""
    wanted = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*[.=]""")
    inside = ""  # the quotes of a text of several lines that is open
    for place, line in enumerate(content.split("\n"), 1):
        if not inside:
            header = _HEADER.match(line)
            if header:
                current = header.group(1)
                if (current == f"{section}.{key}") if section else (current == key):
                    return place
            elif current == section and wanted.match(line):
                return place
        for quotes in re.findall(r"\"{3}|'{3}", line):
            inside = quotes if not inside else "" if inside == quotes else inside
    return None
