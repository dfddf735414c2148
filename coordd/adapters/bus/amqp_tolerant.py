"""A connection whose messages may have any properties: a queue has senders in every language.

The library decodes the properties of a message in its task that reads the connection. What it cannot decode (an id that
is not UTF-8, a time in microseconds) ends the connection, and the message comes again first. Here such a header frame
is replaced before the library sees it: by one with a single header, which says why.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from typing import Any

from pamqp.commands import Basic
from pamqp.frame import marshal, unmarshal
from pamqp.header import ContentHeader

from coordd.adapters.bus.amqp_frames import FRAME_BYTES_MAX, FRAME_ROOM, FRAME_TYPES, HEADER
from coordd.core.visible import visible

# The header that says why the properties of a message could not be read.
UNREADABLE = "x-coordd-unreadable"

# The library has a class for these. None and 0: the message says nothing.
MODES = (None, 0, 1, 2)

_frame_head = struct.Struct(">BHI")
_header = struct.Struct(">HHQ")  # class, weight, bytes of the body


def header_bytes(message: Any) -> int:
    """How large the header frame of a message of aio-pika is. Raises what the library does if it cannot encode it."""
    return len(ContentHeader(0, message.body_size, message.properties).marshal())


class Readable:
    """The stream of a connection, with header frames that the library can decode."""

    def __init__(self) -> None:
        self._rest = b""
        self._strange = False  # not AMQP: the library reports it

    def take(self, data: bytes) -> bytes:
        """The whole frames of what has arrived so far."""
        if self._strange:
            return data
        data = self._rest + data
        whole, at = [], 0
        while len(data) - at >= FRAME_ROOM:
            kind, channel, size = _frame_head.unpack_from(data, at)
            if kind not in FRAME_TYPES or size > FRAME_BYTES_MAX:
                self._strange = True
                whole.append(data[at:])
                at = len(data)
                break
            end = at + FRAME_ROOM + size
            if end > len(data):
                break
            frame = data[at:end]
            whole.append(readable(frame, channel) if kind == HEADER else frame)
            at = end
        self._rest = data[at:]
        return b"".join(whole)


def readable(frame: bytes, channel: int) -> bytes:
    """A header frame as it is, or what stands for it."""
    try:
        head = unmarshal(frame)[2]
        assert isinstance(head, ContentHeader)
        said = head.properties
        float(said.expiration or 0)
        if said.delivery_mode not in MODES:
            raise ValueError(f"there is no delivery mode {said.delivery_mode}")
        return frame
    except Exception as exc:  # the library raises of many kinds
        why = visible(f"{type(exc).__name__}: {exc}")[:200]
    if len(frame) < FRAME_ROOM + _header.size:
        return frame  # it says not even how large the body is: the library reports it
    size = _header.unpack_from(frame, FRAME_ROOM - 1)[2]
    return marshal(ContentHeader(0, size, Basic.Properties(headers={UNREADABLE: why})), channel)


class _Tap(asyncio.StreamReaderProtocol):
    def __init__(self, reader: asyncio.StreamReader, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)
        self._stream = Readable()

    def data_received(self, data: bytes) -> None:
        whole = self._stream.take(data)
        if whole:
            super().data_received(whole)


class Tolerant:
    """Makes the socket of such a connection, as aiormq's TransportFactory does."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls

    async def create(self, url: Any, **_: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        tap = _Tap(reader, loop)
        transport, _protocol = await loop.create_connection(lambda: tap, url.host or "", url.port or 0, ssl=self._tls)
        return reader, asyncio.StreamWriter(transport, tap, reader, loop)
