"""One message of the bus, verified and decoded as docs/protocol.md (section 3) says, without the daemon's code."""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgpack

from coordd.core.wire.envelope import REFUSALS, RETIRED, Keyring

# The form of an envelope and of a packet (docs/protocol.md, section 3).
MAGIC = b"CD1"
ALGORITHM = 1
KEY_AT, MAC_AT, PACKET_AT = 4, 12, 44
PACKET_BYTES_MAX = 65_536
MAJOR = 1
EVERYBODY = "all"

# Nodes refuse what acts when it is older (seconds; their tolerance is as long again).
ACTS_S = 30.0
ACTING = ("worker-elect", "worker-elect-ack", "control-")

# The packets that are remembered, to notice a repeated one.
REMEMBERED = 8192

# Real packets nest four levels deep.
DEPTH_MAX = 16

# The bytes of an unread message that are shown.
HEAD_BYTES = 16


class Raw(NamedTuple):
    """A message as it was heard. ``at``: Unix seconds. ``channel``: `all`, or the full_hostname of an inbox."""

    at: float
    channel: str
    data: bytes


class Reader:
    """Reads the messages of one cluster."""

    def __init__(self, cluster: str, keyring: Keyring | None) -> None:
        """``keyring``: None for a bus without envelopes."""
        self._cluster = cluster
        self._keys = None if keyring is None else {key.id.encode().ljust(8, b"\0"): key for key in keyring.keys}
        self._seen: OrderedDict[tuple[Any, ...], None] = OrderedDict()

    def read(self, raw: Raw) -> dict[str, Any]:
        """One message for people and programs.

        `verified` is true, false, or null on a bus without envelopes; `why` says what is wrong with a message that is
        not decoded; `notes` say why nodes may refuse one that is.
        """
        said: dict[str, Any] = {
            "at": datetime.fromtimestamp(raw.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "channel": raw.channel,
            "size": len(raw.data),
            "key": "",
            "verified": None,
            "why": "",
            "notes": [],
            "packet": None,
        }
        payload: bytes | None = raw.data
        if self._keys is not None:
            payload = self._opened(raw, said)
        elif raw.data[: len(MAGIC)] == MAGIC:
            said["why"] = "it is an envelope, and this cluster is configured without: does its sender have a keyring?"
            payload = None
        if payload is not None:
            self._decode(payload, raw.at, said)
        if said["packet"] is None:
            said["head"] = raw.data[:HEAD_BYTES].hex()
        return said

    def _opened(self, raw: Raw, said: dict[str, Any]) -> bytes | None:
        """The packet, if its envelope is valid. Not a byte of it is read before that."""
        data, keys = raw.data, self._keys or {}
        said["verified"] = False
        key_id = data[KEY_AT:MAC_AT]
        key = keys.get(key_id)
        word = ""
        if len(data) > PACKET_AT + PACKET_BYTES_MAX:
            word = "too_large"
        elif data[: len(MAGIC)] != MAGIC:
            word = "not_sealed"
        elif len(data) <= PACKET_AT:
            word = "too_short"
        elif data[3] != ALGORITHM:
            word = "unknown_algorithm"
        else:
            said["key"] = key_id.rstrip(b"\0").decode("ascii", "backslashreplace")
            if key is None:
                word = "unknown_key"
            elif key.state == RETIRED:
                word = "retired_key"
            elif not any(
                hmac.compare_digest(self._mac(key.secret, data, channel), data[MAC_AT:PACKET_AT])
                for channel in dict.fromkeys((raw.channel or EVERYBODY, EVERYBODY))
            ):
                word = "bad_mac"
        if word:
            said["why"] = REFUSALS[word]
            return None
        said["verified"] = True
        return data[PACKET_AT:]

    def _mac(self, secret: bytes, data: bytes, channel: str) -> bytes:
        bound = b"%b%b\0%b\0%b" % (data[:MAC_AT], self._cluster.encode(), channel.encode(), data[PACKET_AT:])
        return hmac.new(secret, bound, hashlib.sha256).digest()

    def _decode(self, payload: bytes, at: float, said: dict[str, Any]) -> None:
        if len(payload) > PACKET_BYTES_MAX:
            said["why"] = f"{len(payload)} bytes; a packet has at most {PACKET_BYTES_MAX}"
            return
        try:
            packet = _plain(msgpack.unpackb(payload, raw=False, strict_map_key=True, timestamp=0))
        except (ValueError, RecursionError, OverflowError, TypeError) as exc:  # msgpack's own errors are ValueErrors
            said["why"] = f"not msgpack: {type(exc).__name__}: {exc}"[:200]
            return
        events = packet.get("events") if isinstance(packet, dict) else None
        if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
            said["why"] = f"not a packet: expected a map with events, found {packet!r:.80}"
            return
        said["packet"] = packet
        self._judge(packet, at, said["notes"])

    def _judge(self, packet: dict[str, Any], at: float, notes: list[str]) -> None:
        if packet.get("v") != MAJOR:
            notes.append(f"protocol {packet.get('v')!r}: nodes of this version speak {MAJOR}, and refuse it")
        if packet.get("cluster") != self._cluster:
            notes.append(f"of the cluster {packet.get('cluster')!r:.80}: nodes of {self._cluster} drop it")
        name = tuple(repr(packet.get(key)) for key in ("hostname", "pid", "incarnation", "seq"))
        if name in self._seen:
            notes.append(f"repeated: seq {packet.get('seq')!r:.20} of this sender was heard before")
        self._seen[name] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        for event in packet["events"]:
            stamped = event.get("timestamp")
            acts = str(event.get("type", "")).startswith(ACTING)
            if acts and isinstance(stamped, int | float) and abs(at - stamped) > 2 * ACTS_S:
                notes.append(f"{event['type']} was stamped {at - stamped:.0f} s before: nodes refuse it")


def _plain(value: Any, depth: int = DEPTH_MAX) -> Any:
    """What JSON can hold. Raises ValueError for deeper nesting than any packet has."""
    if depth == 0:
        raise ValueError(f"nested more than {DEPTH_MAX} levels deep")
    if isinstance(value, dict):
        return {str(key): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth - 1) for item in value]
    if isinstance(value, float) and value - value != 0:
        return repr(value)  # JSON has no NaN and no infinity
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value)[:200]
