"""Sinks on brokers: a queue or an exchange of RabbitMQ, a stream or a hash of Redis. One connection for each call."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qsl

from coordd.adapters.bus.where import of_amqp, of_redis
from coordd.adapters.secrets import password, redis_tls, tls_of
from coordd.config.sections import ClusterConfig
from coordd.errors import UnavailableError

JSON = "application/json"

# KEYS: the hash. ARGV: the run's id, the document, the attempt. A call about an earlier attempt may come late.
_PUT = """
local there = redis.call('HGET', KEYS[1], ARGV[1])
local read, said = pcall(cjson.decode, there or '')
if there and read and type(said) == 'table' and (tonumber(said.attempt) or -1) > tonumber(ARGV[3]) then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
"""

# A stream keeps about as many ends. A reader that comes later than that has the run history.
STREAM_MAX = 100_000


def to_amqp(
    url: str, ident: str, document: str, *, password_file: str, ca: str, kind: str = JSON, until_s: float = 0.0
) -> str:
    """Publish it as a persistent message that the broker confirms; its id is that of the run. ``until_s``: how long the
    broker keeps it (seconds); 0.0: for ever.

    Raises UnavailableError if no queue takes it. The queue or the exchange must be there.
    """
    from aio_pika import DeliveryMode, Message

    message = Message(
        document.encode(),
        content_type=kind,
        content_encoding="utf-8",
        message_id=ident,
        delivery_mode=DeliveryMode.PERSISTENT,
        expiration=until_s or None,
    )
    return asyncio.run(_to_amqp(url, message, password(password_file, ""), ca))


async def _to_amqp(url: str, message: Any, secret: str, ca: str) -> str:
    from aio_pika.exceptions import DeliveryError

    from coordd.adapters.bus.amqp_connect import connect

    to, said = _split(url)
    where = of_amqp(to)
    tls = tls_of(to, ClusterConfig(tls_ca=ca))
    connection = await connect(where=where, password=secret or where.password, tls=tls, name="coordd outcome")
    async with connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        name = said.get("exchange", "")
        exchange = await channel.get_exchange(name) if name else channel.default_exchange
        key = said.get("queue") or said.get("routing_key", "")
        try:
            await exchange.publish(message, key, mandatory=True)
        except DeliveryError as exc:
            there = f"exchange {name!r} with the key {key!r}" if name else f"queue {key!r}"
            raise UnavailableError(f"the broker has no queue for {there}: declare it first") from exc
    return f"published to {name or key}"


def to_redis(url: str, ident: str, document: str, *, password_file: str, ca: str) -> str:
    """Add it to the stream, or put it into the hash under the run's id, unless a later attempt is there."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    to, said = _split(url)
    where = of_redis(to)
    with redis.Redis(
        host=where.host,
        port=where.port,
        db=int(where.space),
        username=where.user or None,
        password=password(password_file, "") or where.password or None,
        retry=Retry(NoBackoff(), 0),  # the run is what is tried again
        **redis_tls(to, ClusterConfig(tls_ca=ca)),
    ) as client:
        if "stream" in said:
            entry = client.xadd(said["stream"], {"id": ident, "outcome": document}, maxlen=STREAM_MAX, approximate=True)
            return f"added to {said['stream']} as {entry!r}"
        attempt = int(json.loads(document)["attempt"])
        if client.eval(_PUT, 1, said["hash"], ident, document, attempt):
            return f"put into {said['hash']}"
        return f"{said['hash']} has a later attempt of {ident}"


def _split(url: str) -> tuple[str, dict[str, str]]:
    """The address as the buses take it, and what is meant there."""
    to, _, query = url.partition("?")
    return to, dict(parse_qsl(query, keep_blank_values=True))
