"""The document in a message: JSON, or msgpack by the msgpack package, whose Unpacker is bounded here."""

from __future__ import annotations

from typing import Any

import msgpack

from coordd.core.triggers.bodies import BODY_BYTES_MAX, FIELDS_MAX, fields_of, read_json

JSON = ("", "application/json", "text/json", "text/plain")
MSGPACK = ("application/x-msgpack", "application/msgpack", "application/vnd.msgpack")

# Items of a list or a map below the top.
ITEMS_MAX = 10_000


def read(body: bytes, content_type: str, content_encoding: str) -> dict[str, Any]:
    """The fields. Raises ValueError with what was expected."""
    if len(body) > BODY_BYTES_MAX:
        raise ValueError(f"expected a body of at most {BODY_BYTES_MAX} bytes, found {len(body)}")
    if content_encoding.lower() not in ("", "utf-8", "utf8", "binary", "identity"):
        raise ValueError(f'expected a body without compression, found content_encoding "{content_encoding:.40}"')
    kind = content_type.partition(";")[0].strip().lower()
    if kind in JSON:
        return read_json(body)
    if kind in MSGPACK:
        return read_msgpack(body)
    raise ValueError(f'expected content_type application/json or application/x-msgpack, found "{content_type:.60}"')


def read_msgpack(body: bytes) -> dict[str, Any]:
    """The fields of a map. Raises ValueError."""
    unpacker = msgpack.Unpacker(
        raw=False,
        strict_map_key=True,
        timestamp=0,
        max_buffer_size=BODY_BYTES_MAX,
        max_str_len=BODY_BYTES_MAX,
        max_bin_len=BODY_BYTES_MAX,
        max_ext_len=0,
        max_array_len=ITEMS_MAX,
        max_map_len=max(FIELDS_MAX, ITEMS_MAX),
    )
    try:
        unpacker.feed(body)
        document = unpacker.unpack()
    except msgpack.OutOfData:
        raise ValueError("expected a whole msgpack document, found the beginning of one") from None
    except (ValueError, RecursionError, OverflowError, TypeError) as exc:
        raise ValueError(f"expected msgpack: {str(exc) or type(exc).__name__:.100}") from exc
    if unpacker.tell() != len(body):
        raise ValueError("expected one msgpack document, found more bytes behind it")
    return fields_of(document)
