"""Envelopes: who does not hold a key of the cluster cannot make a node read a single byte of its message.

    offset  bytes  what
    0       3      CD1
    3       1      algorithm: 1 = HMAC-SHA256
    4       8      key id, ASCII, filled up with NUL
    12      32     MAC
    44      …      payload: a packet

The MAC covers the first twelve bytes, the cluster's name, the channel and the payload. The channel is ``all``, or
the full_hostname of the one that is addressed: so a message cannot be carried into another cluster or into another
node's inbox. What was said to all may be put into one inbox, where it says what that node was told anyway.

A packet of the full MESSAGE_BYTES_MAX can be sealed: what carries envelopes takes messages of SEALED_BYTES_MAX.
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

# The channel of what is said to everybody. No full_hostname is like it: each ends with a dot and a pid.
ALL = "all"

# A key as long as the MAC is as strong as the MAC; a shorter one is a password, and could be guessed.
SECRET_BYTES_MIN = 32
SECRET_BYTES_MAX = 1024

# A rotation needs two keys at a time; what was retired is kept for people to see.
KEYS_MAX = 16

KEY_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{KEY_ID_BYTES}}}", re.ASCII)
KEY_ID_RULE = f"1 to {KEY_ID_BYTES} of the characters A-Z a-z 0-9 . _ -"

# The life of a key: it is accepted everywhere before it signs anywhere, and retired after it signs nowhere.
ACCEPT = "accept"
SIGN = "sign"
RETIRED = "retired"
KEY_STATES = (ACCEPT, SIGN, RETIRED)

# Sealing states of other nodes' inboxes that are kept; only replies to a hello go there.
INBOXES_MAX = 256

# Why a message was refused: the words of the counters, with what people read.
REFUSALS = {
    "too_short": "it is shorter than an envelope",
    "too_large": f"it is larger than {SEALED_BYTES_MAX} bytes",
    "not_sealed": "it is no envelope: does its sender run with unsigned = true?",
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
    made: str = ""  # when, ISO 8601, for people

    def __repr__(self) -> str:
        return f"Key({self.id!r}, {self.state!r})"  # a traceback must not tell the secret


class Keyring(NamedTuple):
    """The keys of a cluster, oldest first; exactly one of them signs."""

    keys: tuple[Key, ...]

    @property
    def signing(self) -> Key:
        return next(key for key in self.keys if key.state == SIGN)


class _State:
    """HMAC-SHA256 (RFC 2104) of a key with what stands before every payload taken in already.

    Copies of bare hashes: half the price of copies of the hmac module's objects.
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
        """The payload of an envelope that a holder of a key has sealed for everybody or for us.

        Raises:
            EnvelopeError: it is anything else; nothing of the payload was looked at.
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
        # NUL is in no name, so no two pairs of cluster and channel read alike.
        assert "\0" not in self._cluster + channel, "a name with NUL"
        return _State(key.secret, b"%b%b\0%b\0" % (_start(key), self._cluster.encode(), channel.encode()))


def _start(key: Key) -> bytes:
    """What stands before the MAC."""
    return MAGIC + bytes([HMAC_SHA256]) + key.id.encode().ljust(KEY_ID_BYTES, b"\0")


def _shown(key_id: bytes) -> str:
    """A key id of a stranger, for the log."""
    text = key_id.rstrip(b"\0").decode("ascii", "replace")
    return f"key id {text}" if KEY_ID.fullmatch(text) else f"key id 0x{key_id.hex()}"
