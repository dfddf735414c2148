"""Envelopes: a sender without a key of the cluster cannot make a node read a single byte of its message.

    offset  bytes  what
    0       3      CD1
    3       1      algorithm: 1 = HMAC-SHA256
    4       8      key id, ASCII, filled up with NUL
    12      32     MAC
    44      …      payload: a packet

The MAC covers the first twelve bytes, the cluster's name, the channel and the payload. The channel is ``all``, or the
full_hostname of the receiver: so a message cannot be replayed in another cluster or in another node's inbox. A
broadcast may be put into an inbox, but that node received it anyway.

A packet of MESSAGE_BYTES_MAX can be sealed; a bus of envelopes accepts messages of SEALED_BYTES_MAX.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import NamedTuple

from coordd.core.wire.events import MESSAGE_BYTES_MAX
from coordd.errors import LocalProtocolError, RemoteProtocolError

MAGIC = b"CD1"
HMAC_SHA256 = 1
KEY_ID_BYTES = 8
MAC_BYTES = 32
MAC_AT = len(MAGIC) + 1 + KEY_ID_BYTES
HEADER_BYTES = MAC_AT + MAC_BYTES
SEALED_BYTES_MAX = HEADER_BYTES + MESSAGE_BYTES_MAX

# The channel of broadcasts. It differs from every full_hostname: each ends with a dot and a pid.
ALL = "all"

# A key as long as the MAC is as strong as the MAC; a shorter one is a password, and could be guessed.
SECRET_BYTES_MIN = 32
SECRET_BYTES_MAX = 1024

# A rotation needs two active keys; retired ones are kept for people.
KEYS_MAX = 16

KEY_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{KEY_ID_BYTES}}}", re.ASCII)
KEY_ID_RULE = f"1 to {KEY_ID_BYTES} of the characters A-Z a-z 0-9 . _ -"

# The life of a key: every node accepts it before any node signs with it, and no node signs with it when it is retired.
ACCEPT = "accept"
SIGN = "sign"
RETIRED = "retired"
KEY_STATES = (ACCEPT, SIGN, RETIRED)

# Maximum number of cached sealing states for other nodes' inboxes; only replies to a hello go there.
INBOXES_MAX = 256

# Why a message was refused: the words of the counters, and sentences for people.
REFUSALS = {
    "too_short": "it is shorter than an envelope",
    "too_large": f"it is larger than {SEALED_BYTES_MAX} bytes",
    "not_sealed": "it is not an envelope: does its sender run with unsigned = true?",
    "unknown_algorithm": "it is sealed by an algorithm that this version does not know",
    "unknown_key": "no key of that id in the keyring",
    "retired_key": "it is sealed with a key that is retired here",
    "bad_mac": "its MAC is wrong: forged, damaged, or sealed for another cluster or channel",
}


class EnvelopeError(RemoteProtocolError):
    """A message was refused unread. ``kind`` is a key of REFUSALS."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(REFUSALS[kind] + (f" ({detail})" if detail else ""))
        self.kind = kind


class Key(NamedTuple):
    """One key of a keyring. A retired one has no secret."""

    id: str
    state: str
    secret: bytes
    made: str = ""  # creation time, ISO 8601, for people

    def __repr__(self) -> str:
        return f"Key({self.id!r}, {self.state!r})"  # a traceback must not contain the secret


class Keyring(NamedTuple):
    """The keys of a cluster, oldest first; exactly one of them signs."""

    keys: tuple[Key, ...]

    @property
    def signing(self) -> Key:
        return next(key for key in self.keys if key.state == SIGN)


class _State:
    """HMAC-SHA256 (RFC 2104) of a key, prepared with the bytes before every payload.

    It copies plain hashes, which is twice as fast as copying objects of the hmac module.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes, before: bytes) -> None:
        block = (hashlib.sha256(secret).digest() if len(secret) > 64 else secret).ljust(64, b"\0")
        self._inner = hashlib.sha256(bytes([byte ^ 0x36 for byte in block]) + before)
        self._outer = hashlib.sha256(bytes([byte ^ 0x5C for byte in block]))

    def mac(self, payload: bytes) -> bytes:
        inner = self._inner.copy()
        inner.update(payload)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()


class Envelopes:
    """Seals and opens for one node of one cluster."""

    def __init__(self, keyring: Keyring, cluster: str, inbox: str) -> None:
        """``inbox`` is the node's own full_hostname, ``cluster`` the name of the cluster."""
        self._cluster = cluster
        self._signing = keyring.signing
        self._start = _start(self._signing)
        self._to_all = self._state(self._signing, ALL)
        self._to_one: dict[str, _State] = {}
        accepted = [key for key in keyring.keys if key.state != RETIRED]
        self._from = {_start(key)[4:]: (self._state(key, ALL), self._state(key, inbox)) for key in accepted}
        self._retired = {_start(key)[4:] for key in keyring.keys if key.state == RETIRED}

    def seal(self, payload: bytes, channel: str = ALL) -> bytes:
        """The envelope of a packet for everybody, or for one full_hostname.

        Raises LocalProtocolError when the payload is empty or over MESSAGE_BYTES_MAX.
        """
        if not 0 < len(payload) <= MESSAGE_BYTES_MAX:
            raise LocalProtocolError(f"a message of {len(payload)} bytes; 1 to {MESSAGE_BYTES_MAX} can be sealed")
        state = self._to_all if channel == ALL else self._inbox(channel)
        return self._start + state.mac(payload) + payload

    def open(self, data: bytes) -> bytes:
        """The payload of an envelope that was sealed with a valid key, for everybody or for us.

        Raises:
            EnvelopeError: it is invalid; the payload was not read.
        """
        size = len(data)
        if size > SEALED_BYTES_MAX:
            raise EnvelopeError("too_large", f"{size} bytes")
        if size <= HEADER_BYTES:
            raise EnvelopeError("too_short", f"{size} bytes")
        if data[:3] != MAGIC:
            raise EnvelopeError("not_sealed")
        if data[3] != HMAC_SHA256:
            raise EnvelopeError("unknown_algorithm", str(data[3]))
        states = self._from.get(data[4:MAC_AT])
        if states is None:
            kind = "retired_key" if data[4:MAC_AT] in self._retired else "unknown_key"
            raise EnvelopeError(kind, _shown(data[4:MAC_AT]))
        said = data[MAC_AT:HEADER_BYTES]
        payload = data[HEADER_BYTES:]
        to_all, to_us = states
        if hmac.compare_digest(to_all.mac(payload), said) or hmac.compare_digest(to_us.mac(payload), said):
            return payload
        raise EnvelopeError("bad_mac", _shown(data[4:MAC_AT]))

    def _inbox(self, name: str) -> _State:
        state = self._to_one.get(name)
        if state is None:
            if len(self._to_one) >= INBOXES_MAX:
                del self._to_one[next(iter(self._to_one))]
            state = self._to_one[name] = self._state(self._signing, name)
        return state

    def _state(self, key: Key, channel: str) -> _State:
        # NUL is in no name, so each pair of cluster and channel gives different bytes.
        assert "\0" not in self._cluster + channel, "a name with NUL"
        return _State(key.secret, b"%b%b\0%b\0" % (_start(key), self._cluster.encode(), channel.encode()))


def _start(key: Key) -> bytes:
    """The bytes before the MAC."""
    return MAGIC + bytes([HMAC_SHA256]) + key.id.encode().ljust(KEY_ID_BYTES, b"\0")


def _shown(key_id: bytes) -> str:
    """The key id of an unknown sender, for the log."""
    text = key_id.rstrip(b"\0").decode("ascii", "replace")
    return f"key id {text}" if KEY_ID.fullmatch(text) else f"key id 0x{key_id.hex()}"
