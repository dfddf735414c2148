"""One line of a journal: a JSON object whose last member is the checksum of everything before it.

    {"type":"task-started","clock":7,...,"crc":"89abcdef"}

JSON alone is not enough: after a crash, a partial line may be joined to the next one, and readers that accept
``{..}{..}`` as its first object silently lose the second. With the checksum, the joined line is invalid as a whole, is
kept aside and counted. CRC-32 finds accidents, not forgery.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, NoReturn

# The end of every line: this, 8 lower-case hexadecimal digits, then TAIL_END.
TAIL_START = b',"crc":"'
TAIL_END = b'"}'
TAIL_LENGTH = len(TAIL_START) + 8 + len(TAIL_END)


def encode_line(record: dict[str, Any]) -> bytes:
    """One record as one line, newline included.

    Raises ValueError for NaN and infinity, which JSON does not have.
    """
    assert record, "an empty record says nothing"
    assert "crc" not in record, "crc is the line's own member"
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate (a file name that was not UTF-8) has no bytes; written as \udcXX it is a valid JSON escape.
    body = text[:-1].encode("utf-8", "backslashreplace")
    return b"%b%b%08x%b\n" % (body, TAIL_START, zlib.crc32(body), TAIL_END)


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The record of one line (with or without its newline), without the checksum.

    None if the line is partial, altered, joined to another, or not one JSON object with a value.
    """
    line = line.removesuffix(b"\n")
    body, tail = line[:-TAIL_LENGTH], line[-TAIL_LENGTH:]
    if tail != b"%b%08x%b" % (TAIL_START, zlib.crc32(body), TAIL_END):
        return None
    try:
        record = json.loads(body + b"}", parse_constant=_refuse)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    return record if isinstance(record, dict) and record else None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
