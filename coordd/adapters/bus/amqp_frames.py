"""The fast lane beside aiormq: messages are read from and written to its connection as bare AMQP frames.

aiormq makes three reads, a queue, a task and a dozen objects per message; at twelve nodes that is most of an election's
time. aiormq accepts a custom transport. Here deliveries, returns and confirmations are taken out of the stream, and
everything else is passed on: aiormq still handles handshake, heartbeats, declarations and their errors. The socket is
asyncio's (``Tap``) or trio's (amqp_lane.py).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from pamqp import commands, header
from pamqp.exceptions import PAMQPException
from pamqp.frame import marshal, unmarshal

METHOD, HEADER, BODY = 1, 2, 3
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
FRAME_END = b"\xce"
FRAME_TYPES = frozenset((METHOD, HEADER, BODY, 8))

# The bytes around a frame's payload.
FRAME_ROOM = 8

# A broker's frames have at most 128 KiB by default. A frame that claims to be larger is invalid: waiting for the rest
# would be useless.
FRAME_BYTES_MAX = 16 * 2**20

# Class and method ids of frames that do not go to aiormq, or are observed on their way to it.
DELIVER = struct.pack(">HH", 60, 60)
RETURN = struct.pack(">HH", 60, 50)
ACK = struct.pack(">HH", 60, 80)
NACK = struct.pack(">HH", 60, 120)
CANCEL = struct.pack(">HH", 60, 30)
CHANNEL_CLOSE = struct.pack(">HH", 20, 40)
CONNECTION_CLOSE = struct.pack(">HH", 10, 50)
BLOCKED = struct.pack(">HH", 10, 60)
UNBLOCKED = struct.pack(">HH", 10, 61)

# aiormq must read something now and then, or it believes that the connection hangs.
SIGN_OF_LIFE_S = 1.0

# The reason for people when nothing else is known.
CLOSED_BY_BROKER = "the broker closed the connection"

_frame_head = struct.Struct(">BHI")
_body_size = struct.Struct(">Q")
_tag = struct.Struct(">QB")


class _MalformedError(Exception):
    """Not a frame, or its content contradicts its head."""


class Tapped(Protocol):
    """The events of the tap. A method must not raise."""

    def delivered(self, data: bytes) -> None: ...
    def echoed(self) -> None: ...
    def rejected(self) -> None: ...
    def returned(self, routing_key: str) -> None: ...
    def confirmed(self, tag: int, multiple: bool, taken: bool) -> None: ...
    def blocked(self, reason: str) -> None: ...
    def closed(self, code: int, text: str) -> None: ...
    def lost(self, reason: str) -> None: ...
    def paused(self, on: bool) -> None: ...


class Frames:
    """The stream of a connection: takes our frames out, whatever reads the socket.

    Content arrives on the consumer's channel only, so one message at a time is assembled. ``own_end`` is the end of the
    Deliver frame of our own broadcasts. ``clock``: seconds, monotonic.
    """

    def __init__(self, told: Tapped, own_end: bytes, bytes_max: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.heard_at = clock()
        self._told = told
        self._own_end = own_end
        self._bytes_max = bytes_max
        self._rest = b""
        self._strange = False  # not AMQP: aiormq reports it
        self._signed_at = self.heard_at
        # The message that is being assembled.
        self._finish: Callable[[bytes], None] | None = None  # None: it is skipped
        self._missing = 0
        self._parts: list[bytes] = []
        self._methods: dict[bytes, Callable[[bytes], bool]] = {
            DELIVER: self._on_deliver,
            RETURN: self._on_return,
            ACK: self._on_ack,
            NACK: self._on_nack,
            CANCEL: self._on_close,
            CHANNEL_CLOSE: self._on_close,
            CONNECTION_CLOSE: self._on_close,
            BLOCKED: self._on_blocked,
            UNBLOCKED: self._on_unblocked,
        }

    def take(self, data: bytes) -> bytes:
        """Take our frames out of what has arrived. Returns the other frames, unchanged: they are for aiormq."""
        self.heard_at = self._clock()
        if self._strange:
            return data
        if self._rest:
            data = self._rest + data
        passed, at, passing_from = [], 0, 0
        end_of_data = len(data)
        while end_of_data - at >= FRAME_ROOM:
            kind, _channel, size = _frame_head.unpack_from(data, at)
            end = at + FRAME_ROOM + size
            try:
                if kind not in FRAME_TYPES or size > FRAME_BYTES_MAX:
                    raise _MalformedError
                if end > end_of_data:
                    break
                ours = self._take(kind, data, at + FRAME_ROOM - 1, end - 1)
            except _MalformedError:
                self._strange = True
                at = end_of_data
                break
            if ours:
                if passing_from < at:
                    passed.append(data[passing_from:at])
                passing_from = end
            at = end
        if passing_from < at:
            passed.append(data[passing_from:at])
        self._rest = data[at:]
        if passed:
            self._signed_at = self.heard_at
            return b"".join(passed)
        if at and self.heard_at - self._signed_at > SIGN_OF_LIFE_S:
            self._signed_at = self.heard_at
            return HEARTBEAT
        return b""

    # ---- frames; a handler returns True if the frame was ours

    def _take(self, kind: int, data: bytes, start: int, end: int) -> bool:
        if kind == BODY:
            self._on_body(data[start:end] if self._finish is not None else b"", end - start)
            return True
        if kind == HEADER:
            self._on_header(_unpacked(_body_size, data[start:end])[0])
            return True
        if kind == METHOD:
            payload = data[start:end]
            on_method = self._methods.get(payload[:4])
            return on_method is not None and on_method(payload)
        return False

    def _on_deliver(self, payload: bytes) -> bool:
        if payload.endswith(self._own_end):
            self._finish = None
            self._told.echoed()
        else:
            self._finish = self._told.delivered
        return True

    def _on_return(self, payload: bytes) -> bool:
        frame = _method(payload)
        assert isinstance(frame, commands.Basic.Return)
        name = frame.routing_key or ""
        self._finish = lambda _data: self._told.returned(name)
        return True

    def _on_header(self, size: int) -> None:
        if size > self._bytes_max and self._finish is not None:
            self._told.rejected()
            self._finish = None  # its body, however large, is skipped as it arrives
        self._missing = size
        if not size:
            self._whole()

    def _on_body(self, part: bytes, length: int) -> None:
        self._missing -= length
        if part:
            self._parts.append(part)
        if self._missing <= 0:
            self._whole()

    def _whole(self) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            parts = self._parts
            finish(parts[0] if len(parts) == 1 else b"".join(parts))
        self._parts = []

    def _on_ack(self, payload: bytes) -> bool:
        tag, bits = _unpacked(_tag, payload)
        self._told.confirmed(tag, bool(bits & 1), taken=True)
        return True

    def _on_nack(self, payload: bytes) -> bool:
        tag, bits = _unpacked(_tag, payload)
        self._told.confirmed(tag, bool(bits & 1), taken=False)
        return True

    def _on_close(self, payload: bytes) -> bool:
        frame = _method(payload)
        if isinstance(frame, (commands.Connection.Close, commands.Channel.Close)):
            self._told.closed(frame.reply_code or 0, frame.reply_text or "")
        else:
            self._told.closed(0, "our queue was deleted")
        return False

    def _on_blocked(self, payload: bytes) -> bool:
        frame = _method(payload)
        assert isinstance(frame, commands.Connection.Blocked)
        self._told.blocked(frame.reason or "no reason given")
        return False

    def _on_unblocked(self, _payload: bytes) -> bool:
        self._told.blocked("")
        return False


class Tap(asyncio.StreamReaderProtocol):
    """Between the socket and aiormq's stream reader, in the asyncio thread."""

    def __init__(self, reader: asyncio.StreamReader, told: Tapped, own_end: bytes, bytes_max: int) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(reader, loop=loop)
        self.transport: asyncio.Transport | None = None
        self.frames = Frames(told, own_end, bytes_max, loop.time)
        self._told = told

    # ---- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport: messages are written to it directly."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transports are not subclasses of it
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the reason."""
        super().connection_lost(exc)
        self._told.lost(str(exc) if exc else CLOSED_BY_BROKER)

    def pause_writing(self) -> None:
        """The broker accepts no data at the moment."""
        super().pause_writing()
        self._told.paused(True)

    def resume_writing(self) -> None:
        """The broker accepts data again."""
        super().resume_writing()
        self._told.paused(False)

    def data_received(self, data: bytes) -> None:
        """Take our frames out, and pass the other frames on unchanged."""
        passed = self.frames.take(data)
        if passed:
            super().data_received(passed)


class Publishing:
    """Publish frames, built once per destination: only sizes and body differ between messages."""

    def __init__(self, channel: int, frame_bytes_max: int, exchange: str, routing_key: str, *, mandatory: bool) -> None:
        self._channel = channel
        self._part_max = frame_bytes_max - FRAME_ROOM
        method = marshal(
            commands.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory), channel
        )
        head = marshal(header.ContentHeader(0, 0, commands.Basic.Properties(delivery_mode=1)), channel)
        size_at = FRAME_ROOM - 1 + 4  # after the frame's head, the class and the weight
        self._before = method + head[:size_at]
        self._after = head[size_at + _body_size.size :]

    def frames(self, data: bytes) -> Sequence[bytes]:
        """The frames of one message. They must be written without another frame of the same channel in between."""
        size = len(data)
        start = (self._before, _body_size.pack(size), self._after)
        if size <= self._part_max:
            return (*start, _frame_head.pack(BODY, self._channel, size), data, FRAME_END)
        parts = list(start)
        for at in range(0, size, self._part_max):
            part = data[at : at + self._part_max]
            parts += (_frame_head.pack(BODY, self._channel, len(part)), part, FRAME_END)
        return parts


def own_end(exchange: str, routing_key: str) -> bytes:
    """The end of the Deliver frame of a message that used this exchange and this key."""
    return b"".join([bytes([len(word)]) + word for word in (exchange.encode(), routing_key.encode())])


def _method(payload: bytes) -> object:
    try:
        return unmarshal(_frame_head.pack(METHOD, 0, len(payload)) + payload + FRAME_END)[2]
    except (PAMQPException, ValueError) as exc:
        raise _MalformedError(str(exc)) from exc


def _unpacked(fields: struct.Struct, payload: bytes) -> tuple[int, ...]:
    """The payload of a method or header, without its first four bytes."""
    try:
        return fields.unpack_from(payload, 4)
    except struct.error as exc:
        raise _MalformedError(str(exc)) from exc
