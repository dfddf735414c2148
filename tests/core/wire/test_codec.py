"""The wire: other readers understand our packets, and no bytes from others raise an unexpected error."""

from __future__ import annotations

import contextlib
from typing import Any, get_args

import msgpack
import msgspec
import pytest
from hypothesis import given, strategies as st

from coordd.core.wire.codec import decode, encode, encode_event
from coordd.core.wire.events import (
    MESSAGE_BYTES_MAX,
    PROTOCOL_MAJOR,
    Action,
    AnyEvent,
    Candidacy,
    Packet,
    TaskStarted,
    WorkerElect,
    WorkerHeartbeat,
    event_type,
    flatten,
)
from coordd.errors import RemoteProtocolError

ELECT = WorkerElect(
    clock=7,
    timestamp=1.5,
    id="sales#1/0",
    topic="spark",
    candidacy=Candidacy(0, 7, "edge.1"),
    view=("edge.1", "edge.2"),
    action=Action("sales", "sales#1", digest="d"),
)


def packet(*said: AnyEvent) -> Packet:
    return Packet(PROTOCOL_MAJOR, "default", "edge", 1, "1-aa", 3, 0, list(said))


def raw(**changes: Any) -> dict[str, Any]:
    """A packet as another program would write it."""
    head = {"v": PROTOCOL_MAJOR, "cluster": "default", "hostname": "edge", "pid": 1, "incarnation": "1-aa"}
    return {**head, "seq": 3, "utcoffset": 0, "events": [], **changes}


def test_what_is_packed_is_unpacked() -> None:
    said = packet(ELECT, WorkerHeartbeat(clock=8, active=2), TaskStarted(uuid="u", run="sales#1", token=2**52))
    assert decode(encode(said)) == (said, 0)
    assert said.sender == "edge.1"


def test_another_reader_finds_celerys_words() -> None:
    said = msgpack.unpackb(encode(packet(ELECT)))
    assert (said["v"], said["hostname"], said["pid"], said["seq"]) == (1, "edge", 1, 3)
    [event] = said["events"]
    assert (event["type"], event["clock"], event["timestamp"]) == ("worker-elect", 7, 1.5)
    assert (event["topic"], event["candidacy"], event["view"]) == (
        "spark",
        [0, 7, "edge.1", "", ""],
        ["edge.1", "edge.2"],
    )
    assert event["action"] == {"job": "sales", "run": "sales#1", "digest": "d"}
    assert msgpack.unpackb(encode_event(ELECT)) == event


def test_another_writer_is_understood() -> None:
    data = msgpack.packb(raw(events=[{"type": "worker-heartbeat", "clock": 4, "active": 1, "loadavg": [1, 2, 3]}]))
    said, dropped = decode(data)
    assert (said.events, dropped) == ([WorkerHeartbeat(clock=4, active=1, loadavg=(1.0, 2.0, 3.0))], 0)


def test_unknown_fields_are_ignored_and_unknown_types_counted_and_dropped() -> None:
    data = msgpack.packb(
        raw(
            later={"a": [1]},
            events=[
                {"type": "worker-heartbeat", "clock": 4, "later": 1},
                {"type": "worker-of-tomorrow", "clock": 5},
                {"clock": 6},
                {"type": "worker-heartbeat", "clock": "seven"},
                {"type": "worker-offline", "clock": 8},
                None,
            ],
        )
    )
    said, dropped = decode(data)
    assert ([event.clock for event in said.events], dropped) == ([4, 8], 4)


@pytest.mark.parametrize("version", [0, PROTOCOL_MAJOR + 1, 99])
@pytest.mark.parametrize("whole", [True, False])
def test_another_major_is_refused_by_name_whatever_else_it_says(version: int, whole: bool) -> None:
    data = msgpack.packb(raw(v=version) if whole else {"v": version, "quite": "another"})
    with pytest.raises(RemoteProtocolError, match=f"protocol {version}; this node speaks {PROTOCOL_MAJOR}"):
        decode(data)


def nested(depth: int, kind: bytes) -> bytes:
    return kind * depth + b"\xc0"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"not a packet",
        msgpack.packb(None),
        msgpack.packb([1, 2]),
        msgpack.packb({}),
        msgpack.packb(raw(pid="one")),
        msgpack.packb(raw(events={})),
        msgpack.packb(raw(events=[])) + b"\x00",
        msgpack.packb(raw(seq=2**63), use_bin_type=True)[:-20],
        msgpack.packb(raw(cluster=b"\xff")),
        msgpack.packb({"v": "1"}),
        nested(60_000, b"\x91"),
        nested(20_000, b"\x81\xa1v"),
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc1",
    ],
    ids=range(18),
)
def test_bytes_that_are_no_packet_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="not a packet"):
        decode(data)


@pytest.mark.parametrize("kind", [b"\x91", b"\x81\xa1v"])
def test_nesting_without_end_in_a_field_that_nobody_knows_is_refused(kind: bytes) -> None:
    deep = msgpack.packb("later") + nested(20_000, kind)
    head = msgpack.packb(raw())
    assert head[:1] == b"\x88"
    with pytest.raises(RemoteProtocolError, match="not a packet"):
        decode(b"\x89" + head[1:] + deep)
    event = b"\x82" + msgpack.packb("type") + msgpack.packb("worker-heartbeat") + deep
    assert head[-1:] == b"\x90"
    with pytest.raises(RemoteProtocolError, match="not a packet"):
        decode(head[:-1] + b"\x91" + event)


def test_a_message_that_is_too_large_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(RemoteProtocolError, match=f"at most {MESSAGE_BYTES_MAX}"):
        decode(b"\xc1" * (MESSAGE_BYTES_MAX + 1))
    said = packet(TaskStarted(uuid="", result="x" * (MESSAGE_BYTES_MAX - 200)))
    assert decode(encode(said)) == (said, 0)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_refused(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode(data)


@given(st.data())
def test_a_packet_that_was_tampered_with_is_read_or_refused(data: st.DataObject) -> None:
    good = bytearray(encode(packet(ELECT, WorkerHeartbeat(clock=8))))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        said, dropped = decode(bytes(good[: data.draw(st.integers(0, len(good)))]))
    except RemoteProtocolError:
        return
    assert said.v == PROTOCOL_MAJOR
    assert 0 <= len(said.events) + dropped <= 2


def test_every_event_type_has_its_own_word_and_comes_back() -> None:
    kinds: tuple[Any, ...] = get_args(AnyEvent)
    assert len({str(kind.__struct_config__.tag) for kind in kinds}) == len(kinds)
    known: dict[str, Any] = {word: word[0] for word in ("id", "topic", "uuid", "run", "what", "subject")}
    known["candidacy"] = Candidacy(0, 1, "n")
    for kind in kinds:
        event = kind(clock=3, **{f.name: known[f.name] for f in msgspec.structs.fields(kind) if f.required})
        assert decode(encode(packet(event))) == (packet(event), 0)
        assert msgpack.unpackb(encode_event(event))["type"] == event_type(event)


def test_a_flat_event_has_the_fields_of_the_schema() -> None:
    record = flatten(ELECT, hostname="edge", pid=1, incarnation="1-aa", seq=3, utcoffset=0)
    assert list(record)[:8] == ["type", "hostname", "pid", "incarnation", "seq", "utcoffset", "clock", "timestamp"]
    assert (record["type"], record["clock"], record["id"]) == ("worker-elect", 7, "sales#1/0")
    assert record["action"] == {"job": "sales", "run": "sales#1", "digest": "d"}
    assert "digest" not in record
