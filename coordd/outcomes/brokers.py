"""Sinks on brokers: a queue or an exchange of RabbitMQ, a stream or a hash of Redis. One connection for each call."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from coordd.adapters.secrets import password, tls_context
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
    from aio_pika import connect
    from aio_pika.exceptions import DeliveryError

    parts, said = urlsplit(url), dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    context = tls_context(ca) if parts.scheme == "amqps" else None
    connection = await connect(
        host=str(parts.hostname),
        port=parts.port or (5671 if context else 5672),
        login=unquote(parts.username or "guest"),
        password=secret or ("" if parts.username else "guest"),
        virtualhost=unquote(parts.path.removeprefix("/")) or "/",
        ssl=context is not None,
        ssl_context=context,
    )
    async with connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        name = said.get("exchange", "")
        exchange = await channel.get_exchange(name) if name else channel.default_exchange
        key = said.get("queue") or said.get("routing_key", "")
        try:
            await exchange.publish(message, key, mandatory=True)
        except DeliveryError as exc:
            where = f"exchange {name!r} with the key {key!r}" if name else f"queue {key!r}"
            raise UnavailableError(f"the broker has no queue for {where}: declare it first") from exc
    return f"published to {name or key}"


def to_redis(url: str, ident: str, document: str, *, password_file: str, ca: str) -> str:
    """Add it to the stream, or put it into the hash under the run's id, unless a later attempt is there."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    parts, said = urlsplit(url), dict(parse_qsl(urlsplit(url).query))
    secret = password(password_file, "")
    encrypted: dict[str, Any] = {}
    if parts.scheme == "rediss":
        encrypted = {"ssl": True, "ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
        if ca:
            encrypted["ssl_ca_certs"] = ca
    with redis.Redis(
        host=str(parts.hostname),
        port=parts.port or 6379,
        db=int(parts.path.removeprefix("/") or 0),
        username=unquote(parts.username) if parts.username else None,
        password=secret or None,
        retry=Retry(NoBackoff(), 0),  # the run is what is tried again
        **encrypted,
    ) as client:
        if "stream" in said:
            entry = client.xadd(said["stream"], {"id": ident, "outcome": document}, maxlen=STREAM_MAX, approximate=True)
            return f"added to {said['stream']} as {entry!r}"
        attempt = int(json.loads(document)["attempt"])
        if client.eval(_PUT, 1, said["hash"], ident, document, attempt):
            return f"put into {said['hash']}"
        return f"{said['hash']} has a later attempt of {ident}"
