"""Reads Java properties, as spark-submit reads its own."""

from __future__ import annotations

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def parse(text: str) -> dict[str, str]:
    """The settings of a properties file; of two lines for one setting the later counts. Values are stripped, as
    spark-submit does.
    """
    settings: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _halves(line)
        if key:
            settings[_unescaped(key)] = _unescaped(value).strip()
    return settings


def _logical_lines(text: str) -> list[str]:
    """Lines without comments and blank ones; a line that ends in a backslash goes on in the next."""
    lines: list[str] = []
    pending = ""
    for physical in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = physical.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        pending += line
        if (len(pending) - len(pending.rstrip("\\"))) % 2:
            pending = pending[:-1]
            continue
        lines.append(pending)
        pending = ""
    return [*lines, pending] if pending else lines


def _halves(line: str) -> tuple[str, str]:
    """The key, and the value behind the first =, : or blank that is not escaped."""
    at = 0
    while at < len(line) and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return line[:at], rest


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    read, at = "", 0
    while at < len(text):
        if text[at] != "\\" or at + 1 >= len(text):
            read += text[at] if text[at] != "\\" else ""
            at += 1
        elif text[at + 1] == "u" and len(text) >= at + 6:
            try:
                read += chr(int(text[at + 2 : at + 6], 16))
            except ValueError:
                read += text[at + 1 : at + 6]
            at += 6
        else:
            read += _ESCAPES.get(text[at + 1], text[at + 1])
            at += 2
    return read
