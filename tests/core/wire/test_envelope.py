"""Envelopes: a message that is sealed with a key of the cluster is opened unchanged. No other message is opened."""

from __future__ import annotations

import hashlib
import hmac
import tracemalloc

import msgpack
import pytest
from hypothesis import given, strategies as st
from support.small_cluster import EPOCH, MONO, SETTINGS

from coordd.core.clock import CLOCK_JUMP_MAX
from coordd.core.node.node import Node
from coordd.core.ready import Now
from coordd.core.wire import codec, envelope
from coordd.core.wire.envelope import (
    ALL,
    HEADER_BYTES,
    MAC_AT,
    SEALED_BYTES_MAX,
    EnvelopeError,
    Envelopes,
    Key,
    Keyring,
)
from coordd.core.wire.events import MESSAGE_BYTES_MAX, PROTOCOL_MAJOR, Packet, WorkerHeartbeat
from coordd.errors import LocalProtocolError, RemoteProtocolError

OLD = Key("k-old", "accept", b"o" * 32)
NOW = Key("k-now", "sign", b"n" * 32)
GONE = Key("k-gone", "retired", b"")
RING = Keyring((GONE, OLD, NOW))

A = Envelopes(RING, "prod", "a.1")
B = Envelopes(RING, "prod", "b.2")


def refused(by: Envelopes, data: bytes) -> str:
    with pytest.raises(EnvelopeError) as caught:
        by.open(data)
    assert isinstance(caught.value, RemoteProtocolError)
    return caught.value.kind


@given(st.binary(min_size=1, max_size=300))
def test_what_is_sealed_is_opened(payload: bytes) -> None:
    assert B.open(A.seal(payload)) == payload
    assert B.open(A.seal(payload, "b.2")) == payload


@pytest.mark.parametrize("secret", [b"n" * 32, b"x" * 64, b"y" * 65, b"z" * 1024], ids=len)
def test_the_mac_is_hmac_sha256_over_everything_else(secret: bytes) -> None:
    """Another program can compute the MAC: it is HMAC of RFC 2104, as in the standard library."""
    ring = Keyring((Key("k-now", "sign", secret),))
    start = b"CD1\x01k-now\0\0\0"
    for channel in (ALL, "b.2"):
        said = hmac.digest(secret, start + b"prod\0" + channel.encode() + b"\0" + b"payload", "sha256")
        assert Envelopes(ring, "prod", "a.1").seal(b"payload", channel) == start + said + b"payload"
    assert len(start) == MAC_AT
    assert len(start) + hashlib.sha256().digest_size == HEADER_BYTES


def test_the_largest_packet_can_be_sealed_and_nothing_larger_or_empty() -> None:
    largest = b"x" * MESSAGE_BYTES_MAX
    assert len(A.seal(largest)) == SEALED_BYTES_MAX == MESSAGE_BYTES_MAX + HEADER_BYTES
    assert B.open(A.seal(largest)) == largest
    for payload in (b"", largest + b"x"):
        with pytest.raises(LocalProtocolError, match=f"1 to {MESSAGE_BYTES_MAX}"):
            A.seal(payload)


def test_no_bit_can_be_changed() -> None:
    for sealed in (A.seal(b"payload"), A.seal(b"payload", "b.2")):
        for place in range(len(sealed) * 8):
            changed = bytearray(sealed)
            changed[place // 8] ^= 1 << place % 8
            refused(B, bytes(changed))


@given(st.data())
def test_nothing_that_was_tampered_with_is_opened(data: st.DataObject) -> None:
    sealed = A.seal(data.draw(st.binary(min_size=1, max_size=100)))
    changed = bytearray(sealed)
    for _ in range(data.draw(st.integers(0, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(changed[: data.draw(st.integers(0, len(changed)))]) + data.draw(st.binary(max_size=4))
    if cut != sealed:
        refused(B, cut)


@given(st.binary(max_size=200))
def test_no_bytes_of_strangers_are_opened(data: bytes) -> None:
    refused(B, data)
    refused(B, A.seal(b"payload")[:MAC_AT] + data)


def test_the_reason_is_told() -> None:
    sealed = A.seal(b"payload")
    assert refused(B, b"") == "too_short"
    assert refused(B, sealed[:HEADER_BYTES]) == "too_short"
    assert refused(B, b"\x00" * (SEALED_BYTES_MAX + 1)) == "too_large"
    assert refused(B, b"\x00" * (64 * 1024 * 1024)) == "too_large"
    assert refused(B, codec.encode(packet(1)) + b" " * HEADER_BYTES) == "not_sealed"
    assert refused(B, sealed[:3] + b"\x02" + sealed[4:]) == "unknown_algorithm"
    assert refused(B, sealed[:-1] + b"?") == "bad_mac"
    stranger = Envelopes(Keyring((Key("k-else", "sign", b"n" * 32),)), "prod", "c.3")
    assert refused(B, stranger.seal(b"payload")) == "unknown_key"
    same_id = Envelopes(Keyring((Key("k-now", "sign", b"?" * 32),)), "prod", "c.3")
    assert refused(B, same_id.seal(b"payload")) == "bad_mac"
    late = Envelopes(Keyring((Key("k-gone", "sign", b"g" * 32),)), "prod", "c.3")
    assert refused(B, late.seal(b"payload")) == "retired_key"
    assert set(envelope.REFUSALS) == {
        "too_short",
        "too_large",
        "not_sealed",
        "unknown_algorithm",
        "unknown_key",
        "retired_key",
        "bad_mac",
    }


def test_no_sentence_repeats_what_a_stranger_wrote() -> None:
    sealed = A.seal(b"payload")
    with pytest.raises(EnvelopeError, match=r"no key of that id in the keyring .key id 0x1b5b33316d000000"):
        B.open(sealed[:4] + b"\x1b[31m\0\0\0" + sealed[MAC_AT:])


def test_a_message_stays_in_its_cluster() -> None:
    elsewhere = Envelopes(RING, "test", "b.2")
    assert refused(elsewhere, A.seal(b"payload")) == "bad_mac"
    assert refused(elsewhere, A.seal(b"payload", "b.2")) == "bad_mac"


def test_a_letter_is_opened_by_nobody_else() -> None:
    assert refused(A, A.seal(b"payload", "b.2")) == "bad_mac"
    assert refused(Envelopes(RING, "prod", "b.22"), A.seal(b"payload", "b.2")) == "bad_mac"


def test_names_cannot_be_shifted_between_cluster_and_channel() -> None:
    one = Envelopes(RING, "prod", "a.1").seal(b"payload", "x.b.2")
    assert refused(Envelopes(RING, "prod.x", "b.2"), one) == "bad_mac"


def test_every_key_but_the_retired_is_accepted_and_one_signs() -> None:
    older = Envelopes(Keyring((OLD._replace(state="sign"), NOW._replace(state="accept"))), "prod", "a.1")
    assert B.open(older.seal(b"payload")) == b"payload"
    assert older.open(B.seal(b"payload")) == b"payload"
    assert B.seal(b"payload")[4:MAC_AT] == b"k-now\0\0\0"
    after = Envelopes(Keyring((OLD._replace(state="retired", secret=b""), NOW)), "prod", "a.1")
    assert refused(after, older.seal(b"payload")) == "retired_key"


def test_inboxes_are_forgotten_beyond_a_bound() -> None:
    many = Envelopes(RING, "prod", "a.1")
    first = many.seal(b"payload", "n0.1")
    for number in range(envelope.INBOXES_MAX + 5):
        many.seal(b"payload", f"n{number}.1")
    assert len(many._to_one) == envelope.INBOXES_MAX
    assert many.seal(b"payload", "n0.1") == first


def test_a_key_does_not_show_its_secret() -> None:
    assert "nnn" not in repr(NOW) + repr(RING) + str(RING)


# ---- messages of a faulty node that has the key


def packet(clock: int) -> Packet:
    return Packet(PROTOCOL_MAJOR, SETTINGS.cluster, "mad", 7, "1-aa", 0, 0, [WorkerHeartbeat(clock=clock)])


def as_many(head: bytes, unit: bytes, tail: bytes = b"") -> bytes:
    return head + unit * ((MESSAGE_BYTES_MAX - len(head) - len(tail)) // len(unit)) + tail


def events_of(size: int, unit: bytes = b"") -> bytes:
    """A packet with that number of events, or the beginning of such a packet."""
    said = {"v": 1, "cluster": "prod", "hostname": "m", "pid": 1, "incarnation": "1-a", "seq": 0, "utcoffset": 0}
    head: bytes = msgpack.packb(said)
    return b"\x88" + head[1:] + b"\xa6events" + b"\xdd" + size.to_bytes(4, "big") + unit * (size if unit else 0)


@pytest.mark.parametrize(
    "payload",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        as_many(b"", b"\x91", b"\xc0"),
        as_many(b"", b"\x81\xa1v"),
        as_many(events_of(2**32 - 1), b"\xc0"),
        as_many(events_of(2**32 - 1), b"\x80"),
        as_many(events_of(2**32 - 1), b"\x91"),
        as_many(b"\xdf\x00\x00\x80\x00", b"\xa0\xc0"),
        events_of(65_000, b"\xc0"),
        events_of(65_000, b"\x80"),
        events_of(32_000, b"\x91\xc0"),
    ],
    ids=range(12),
)
def test_a_bomb_behind_a_good_mac_is_refused_without_much_memory(payload: bytes) -> None:
    opened = B.open(A.seal(payload))
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            codec.decode(opened)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 1024 * 1024


def test_a_newer_peer_may_fill_a_packet_with_what_we_do_not_know() -> None:
    unknown = msgpack.packb({"type": "worker-of-tomorrow", "clock": 5})
    said, dropped = codec.decode(events_of(1900, unknown))
    assert (said.hostname, said.events, dropped) == ("m", [], 1900)


@pytest.mark.parametrize("clock", [2**63, 2**63 - 1, 2**64 - 1, CLOCK_JUMP_MAX + 2, -1])
def test_an_absurd_clock_is_counted_and_changes_no_order(clock: int) -> None:
    node = Node(hostname="edge", pid=1, incarnation="1-bb", settings=SETTINGS, clock_mark=0, rng=lambda: 0.5)  # type: ignore[arg-type]  # all that is asked of a random source here
    said, dropped = codec.decode(B.open(A.seal(codec.encode(packet(clock)))))
    assert dropped == 0
    node.receive(said, Now(MONO, EPOCH))
    assert node.ctx.clock.jumps_refused == 1
    assert node.ctx.clock.value < 10
    node.receive(codec.decode(codec.encode(packet(5)))[0], Now(MONO, EPOCH))
    assert node.ctx.clock.value == 6


def test_a_clock_that_fits_into_no_integer_is_no_event() -> None:
    data = msgpack.packb(
        {
            "v": 1,
            "cluster": "c",
            "hostname": "m",
            "pid": 1,
            "incarnation": "1",
            "seq": 0,
            "utcoffset": 0,
            "events": [{"type": "worker-heartbeat", "clock": 1e300}],
        }
    )
    assert codec.decode(data)[1] == 1
