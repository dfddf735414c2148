"""Keytabs (format 2) and ticket caches (formats 3 and 4): whose keys and tickets they have.

The formats are those of MIT Kerberos, "Keytab file format" and "Credential cache file format".
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from coordd.errors import UnavailableError

# Both are a few kB. A larger file is something else.
BYTES_MAX = 4 * 1024 * 1024

# Bounds against a damaged file: components of a name, items of a list.
COMPONENTS_MAX = 32
ITEMS_MAX = 1000


class Ticket(NamedTuple):
    """``ends_at`` in Unix seconds; ``granting``: it is the one with which others are fetched."""

    client: str
    server: str
    ends_at: float
    granting: bool


class _Bytes:
    """Reads numbers and texts, high byte first."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, kind: str) -> int:
        value: int = struct.unpack_from(f">{kind}", self.data, self.at)[0]
        self.at += struct.calcsize(kind)
        return value

    def take(self, length: int) -> bytes:
        if length < 0 or self.at + length > len(self.data):
            raise ValueError("it ends too early")
        self.at += length
        return self.data[self.at - length : self.at]

    def left(self) -> int:
        return len(self.data) - self.at


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(BYTES_MAX)


def principals(path: str) -> list[str]:
    """The principals with a key in a keytab, in order. Raises UnavailableError, OSError."""
    source = _Bytes(_read(path))
    found: dict[str, None] = {}
    try:
        if source.take(2) != b"\x05\x02":
            raise ValueError("it does not begin like a keytab")
        while source.left() >= 4:
            size = source.number("i")
            entry = _Bytes(source.take(abs(size)))
            if size > 0:
                found[_keytab_name(entry)] = None
    except (ValueError, struct.error) as exc:
        raise UnavailableError(f"{path} is not a keytab: {exc}") from exc
    return list(found)


def _keytab_name(entry: _Bytes) -> str:
    count = entry.number("H")
    if count > COMPONENTS_MAX:
        raise ValueError("a name has too many parts")
    realm, *parts = [entry.take(entry.number("H")).decode(errors="replace") for _ in range(count + 1)]
    return f"{'/'.join(parts)}@{realm}"


def tickets(path: str) -> list[Ticket]:
    """The tickets in a cache. Raises UnavailableError, OSError."""
    source = _Bytes(_read(path))
    found: list[Ticket] = []
    try:
        version = source.take(2)
        if version not in (b"\x05\x03", b"\x05\x04"):
            raise ValueError("it does not begin like a ticket cache of format 3 or 4")
        if version == b"\x05\x04":
            source.take(source.number("H"))
        _cache_name(source)
        while source.left() and len(found) < ITEMS_MAX:
            found.append(_ticket(source, version == b"\x05\x03"))
    except (ValueError, struct.error) as exc:
        raise UnavailableError(f"{path} is not a ticket cache: {exc}") from exc
    return found


def _cache_name(source: _Bytes) -> str:
    source.number("I")  # its type
    count = source.number("I")
    if count > COMPONENTS_MAX:
        raise ValueError("a name has too many parts")
    realm, *parts = [source.take(source.number("I")).decode(errors="replace") for _ in range(count + 1)]
    return f"{'/'.join(parts)}@{realm}"


def _ticket(source: _Bytes, twice: bool) -> Ticket:
    client, server = _cache_name(source), _cache_name(source)
    source.take(4 if twice else 2)  # the key's type, which format 3 has twice
    source.take(source.number("I"))
    source.take(8)  # when it was asked for, and from when it counts
    ends_at = source.number("I")
    source.take(4 + 1 + 4)  # until when it can be renewed, whether it is encrypted in another's key, its flags
    for _ in range(2):  # addresses, authorisation
        items = source.number("I")
        if items > ITEMS_MAX:
            raise ValueError("a list is too long")
        for _ in range(items):
            source.take(2)
            source.take(source.number("I"))
    for _ in range(2):  # the ticket, and a second one
        source.take(source.number("I"))
    return Ticket(client, server, float(ends_at), server.startswith("krbtgt/"))
