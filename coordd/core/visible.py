"""Makes foreign text safe to show: it cannot move a cursor, set a title or reverse letters. Pure.

A job's output, a name in a row and an argument may contain any bytes. On a terminal an escape sequence may rewrite
lines above, set the clipboard or hide what follows; bidirectional controls let ``exe.txt`` look like another name.
"""

from __future__ import annotations

import re

# C0, DEL, C1 (CSI and OSC among them), marks and controls of writing direction, invisible characters that hide a
# difference, separators that some programs treat as line ends, tags, lone surrogates.
_UNSEEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_OBEYED = re.compile(f"[{_UNSEEN}]")
_OBEYED_LINES = re.compile(f"[\t\n{_UNSEEN}]")


def visible(text: str, *, lines: bool = False) -> str:
    """The text with such characters escaped (``\\x1b``, ``\\u202e``); with ``lines``, tab and line feed stay."""
    return (_OBEYED if lines else _OBEYED_LINES).sub(_written, text)


def visible_json(text: str) -> str:
    """A JSON text with such characters as JSON escapes: a reader gets the same values."""
    return _OBEYED.sub(_escaped, text)


def obeyed(text: str) -> bool:
    """True if the text has such a character."""
    return _OBEYED_LINES.search(text) is not None


def _written(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode()


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"
