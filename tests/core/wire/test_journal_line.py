"""The line format: a written line can be read back, and other lines are refused."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given, settings, strategies as st

from coordd.core.wire.journal_line import decode_line, encode_line

RECORDS = st.dictionaries(
    st.text(max_size=8).filter(lambda name: name != "crc"),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
    min_size=1,
    max_size=5,
)


@settings(deadline=None)  # a busy machine must not fail the test
@given(RECORDS)
def test_what_is_written_is_read(record: dict[str, object]) -> None:
    line = encode_line(record)
    assert decode_line(line) == decode_line(line[:-1]) == record
    assert line.count(b"\n") == 1


def test_the_format_is_plain_json_with_the_checksum_last() -> None:
    line = encode_line({"type": "task-sent", "args": "Grüße", "clock": 1})
    body = '{"type":"task-sent","args":"Grüße","clock":1'.encode()
    assert line == body + b',"crc":"%08x"}\n' % zlib.crc32(body)
    assert list(json.loads(line)) == ["type", "args", "clock", "crc"]


@settings(deadline=None)  # a busy machine must not fail the test
@given(RECORDS, st.data())
def test_a_torn_line_is_refused(record: dict[str, object], data: st.DataObject) -> None:
    line = encode_line(record)[:-1]
    cut = data.draw(st.integers(0, len(line) - 1))
    assert decode_line(line[:cut]) is None


@settings(deadline=None)  # a busy machine must not fail the test
@given(RECORDS, RECORDS, st.data())
def test_glued_lines_are_refused(one: dict[str, object], other: dict[str, object], data: st.DataObject) -> None:
    first, second = encode_line(one)[:-1], encode_line(other)[:-1]
    cut = data.draw(st.integers(1, len(first)))
    assert decode_line(first[:cut] + second) is None


@settings(deadline=None)  # a busy machine must not fail the test
@given(RECORDS, st.data())
def test_one_changed_byte_is_found(record: dict[str, object], data: st.DataObject) -> None:
    line = bytearray(encode_line(record)[:-1])
    at = data.draw(st.integers(0, len(line) - 1))
    line[at] ^= data.draw(st.integers(1, 255))
    assert decode_line(bytes(line)) is None


def sealed(body: bytes) -> bytes:
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}",
        b'{"a":1}\n',
        sealed(b""),
        sealed(b"[1"),
        sealed(b'{"a":NaN'),
        sealed(b'{"a":"\xff"'),
        sealed(b'{"a":' + b"[" * 100_000),
    ],
)
def test_what_is_not_a_sealed_object_is_refused(line: bytes) -> None:
    assert decode_line(line) is None


def test_a_name_that_is_not_utf8_survives() -> None:
    record = {"path": b"/data/\xff".decode("utf-8", "surrogateescape")}
    assert decode_line(encode_line(record)) == record


def test_numbers_that_json_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode_line({"a": float("nan")})


def test_a_line_that_says_nothing_is_none() -> None:
    body = b"{"
    assert decode_line(b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))) is None
