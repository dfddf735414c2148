"""Documents of messages: JSON and msgpack, bounded."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from coordd.adapters.triggers.documents import read
from coordd.core.triggers.bodies import BODY_BYTES_MAX, FIELDS_MAX

PACK = "application/x-msgpack"


@pytest.mark.parametrize("document", [{}, {"what": "é", "n": 1, "deep": {"list": [1, {"a": None}]}}])
def test_both_forms_of_a_document_say_the_same(document: dict[str, Any]) -> None:
    assert read(json.dumps(document).encode(), "application/json; charset=utf-8", "utf-8") == document
    assert read(json.dumps(document).encode(), "", "") == document
    assert read(msgpack.packb(document), PACK, "binary") == document


def nested(depth: int) -> bytes:
    return b"\x81\xa1a" * depth + b"\xc0"


BAD: list[tuple[str, bytes, str, str]] = [
    ("a large body", b"x" * (BODY_BYTES_MAX + 1), PACK, "expected a body of at most 65536 bytes"),
    ("a list", msgpack.packb([1]), PACK, "expected an object with fields, found list"),
    ("half a document", msgpack.packb({"a": "xyz"})[:-1], PACK, "found the beginning of one"),
    ("nothing", b"", PACK, "found the beginning of one"),
    ("two documents", msgpack.packb({"a": 1}) * 2, PACK, "found more bytes behind it"),
    ("a length that nothing follows", b"\xdf\xff\xff\xff\xff", PACK, "expected msgpack"),
    ("a text that claims 4 GiB", b"\x81\xa1a\xdb\xff\xff\xff\xff", PACK, "expected "),
    ("an extension", msgpack.packb({"a": msgpack.ExtType(5, b"x")}), PACK, "expected msgpack"),
    ("a name that is a number", msgpack.packb({1: 2}), PACK, "expected msgpack"),
    ("depth", nested(5000), PACK, "expected"),
    ("not UTF-8", b"\x81\xa1a\xa1\xff", PACK, "expected msgpack"),
    ("an unknown byte", b"\xc1", PACK, "expected msgpack"),
    ("many fields", msgpack.packb({str(number): 1 for number in range(FIELDS_MAX + 1)}), PACK, "at most 200 fields"),
    ("JSON that is not JSON", b"{", "application/json", "expected JSON"),
    ("another type", b"{}", "application/xml", "expected content_type application/json or application/x-msgpack"),
]


@pytest.mark.parametrize(("body", "kind", "said"), [one[1:] for one in BAD], ids=[one[0] for one in BAD])
def test_a_bad_document_is_refused_with_what_was_expected(body: bytes, kind: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(body, kind, "")


def test_a_compressed_body_is_refused() -> None:
    with pytest.raises(ValueError, match='content_encoding "gzip"'):
        read(b"{}", "application/json", "gzip")
