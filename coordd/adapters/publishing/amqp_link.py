"""One connection to RabbitMQ that publishes a message at a time, and waits until the broker has it."""

from __future__ import annotations

import ssl
from typing import Any

from aio_pika import DeliveryMode, Message
from aio_pika.exceptions import DeliveryError, PublishError

from coordd.adapters.bus.amqp_connect import connect, farewell
from coordd.adapters.bus.where import of_amqp
from coordd.errors import UnavailableError

# In the headers of a message that a broker may have already; a message without it was not sent before.
REPEATED = "x-coordd-repeated"

# A broker that is silent for twice this time (seconds) is gone.
HEARTBEAT_S = 15


class NotTakenError(UnavailableError):
    """The broker answers, and does not take this message; it does not have it."""


class AmqpLink:
    """An open connection with one channel; ``open_link`` makes it."""

    def __init__(self, connection: Any, channel: Any) -> None:
        self._connection = connection
        self._channel = channel
        self._exchanges: dict[str, Any] = {"": channel.default_exchange}

    @property
    def closed(self) -> bool:
        """True if it is of no use any more."""
        return bool(self._connection.is_closed or self._channel.is_closed)

    async def publish(self, message: Message, said: dict[str, str]) -> str:
        """Publish to a queue or an exchange, which must be there; returns what was done, as a sentence.

        Args:
            said: ``queue``, or ``exchange`` and ``routing_key``.

        Raises NotTakenError if no queue takes it, and what aio-pika raises: then the broker may have it.
        """
        name = said.get("exchange", "")
        if name not in self._exchanges:
            self._exchanges[name] = await self._channel.get_exchange(name)
        key = said.get("queue") or said.get("routing_key", "")
        try:
            await self._exchanges[name].publish(message, key, mandatory=True)
        except PublishError as exc:  # it was returned
            there = f"exchange {name!r} with the key {key!r}" if name else f"queue {key!r}"
            raise NotTakenError(f"the broker has no queue for {there}: declare it first") from exc
        except DeliveryError as exc:
            raise NotTakenError(f"the broker refused the message for {name or key}: its queue is full") from exc
        return f"published to {name or key}"

    async def close(self) -> None:
        """Close it, however that goes."""
        await farewell(self._connection)


def message_of(ident: str, body: str, *, kind: str, until_s: float, repeated: bool) -> Message:
    """A persistent message whose id is that of its run."""
    return Message(
        body.encode(),
        content_type=kind,
        content_encoding="utf-8",
        message_id=ident,
        delivery_mode=DeliveryMode.PERSISTENT,
        expiration=until_s or None,
        headers={REPEATED: True} if repeated else None,
    )


async def open_link(url: str, secret: str, tls: ssl.SSLContext | None, name: str) -> AmqpLink:
    """Connect. ``secret``: "" leaves the password of the URL. ``name``: of the connection, for people. Raises what
    aio-pika raises, and ConfigError; leaves nothing open then.
    """
    where = of_amqp(url)
    connection = await connect(
        where=where, password=secret or where.password, tls=tls, name=name, heartbeat_s=HEARTBEAT_S
    )
    try:
        return AmqpLink(connection, await connection.channel(publisher_confirms=True, on_return_raises=True))
    except BaseException:
        await farewell(connection)
        raise
