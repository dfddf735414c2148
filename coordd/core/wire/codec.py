"""Bytes to packets and back: the one module that packs. Sizes are bounded before anything is parsed.

An event with a value out of its bounds (events.py) is dropped and counted, like one of an unknown type.
"""

from __future__ import annotations

import msgspec

from coordd.core.wire.events import MESSAGE_BYTES_MAX, PROTOCOL_MAJOR, AnyEvent, Count, Event, Name, Offset, Packet
from coordd.errors import RemoteProtocolError

# A newer peer may send a packet full of unknown events, but real events have some size. More than this are an attack:
# looking at each takes microseconds, and a message can contain 65,000 of one byte.
UNREADABLE_MAX = 2000

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Packet)
_event_decoder = msgspec.msgpack.Decoder(AnyEvent)


class _Loose(msgspec.Struct):
    """A packet whose events are not decoded yet."""

    v: int
    cluster: Name
    hostname: Name
    pid: Count
    incarnation: Name
    seq: Count
    utcoffset: Offset
    events: list[msgspec.Raw]


class _Version(msgspec.Struct):
    v: int


_loose_decoder = msgspec.msgpack.Decoder(_Loose)
_version_decoder = msgspec.msgpack.Decoder(_Version)


def encode(packet: Packet) -> bytes:
    """Encode a packet; the caller keeps it under MESSAGE_BYTES_MAX."""
    return _encoder.encode(packet)


def encode_event(event: Event) -> bytes:
    """Encode one event, to know its size."""
    return _encoder.encode(event)


def decode(data: bytes) -> tuple[Packet, int]:
    """Unpack a message; returns the packet and how many of its events were of an unknown type (dropped).

    Raises:
        RemoteProtocolError: it is too large, not a packet, or of another protocol major.
    """
    if len(data) > MESSAGE_BYTES_MAX:
        raise RemoteProtocolError(f"a message of {len(data)} bytes; at most {MESSAGE_BYTES_MAX} are accepted")
    try:
        packet = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError):
        return _decode_loosely(data)
    if packet.v != PROTOCOL_MAJOR:
        raise RemoteProtocolError(f"protocol {packet.v}; this node speaks {PROTOCOL_MAJOR}")
    return packet, 0


def _decode_loosely(data: bytes) -> tuple[Packet, int]:
    """Keep the known events: a newer peer may send others."""
    try:
        version = _version_decoder.decode(data)
        if version.v != PROTOCOL_MAJOR:
            raise RemoteProtocolError(f"protocol {version.v}; this node speaks {PROTOCOL_MAJOR}")
        loose = _loose_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError) as exc:
        raise RemoteProtocolError(f"not a packet: {exc}") from exc
    events: list[AnyEvent] = []
    dropped = 0
    for raw in loose.events:
        try:
            events.append(_event_decoder.decode(raw))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError):
            dropped += 1
            if dropped > UNREADABLE_MAX:
                raise RemoteProtocolError(
                    f"not a packet: more than {UNREADABLE_MAX} events that cannot be read"
                ) from None
    return (
        Packet(
            loose.v, loose.cluster, loose.hostname, loose.pid, loose.incarnation, loose.seq, loose.utcoffset, events
        ),
        dropped,
    )
