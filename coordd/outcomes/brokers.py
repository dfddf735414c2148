"""Sinks on brokers: a queue or an exchange of RabbitMQ, a stream or a hash of Redis. One connection for each call."""

from __future__ import annotations

import asyncio
import json

from coordd.adapters.bus.where import of_redis, split
from coordd.adapters.secrets import password, redis_tls, tls_of
from coordd.config.sections import ClusterConfig

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
    url: str,
    ident: str,
    document: str,
    *,
    password_file: str,
    ca: str,
    kind: str = JSON,
    until_s: float = 0.0,
    repeated: bool = False,
) -> str:
    """Publish it as a persistent message that the broker confirms; its id is that of the run. ``until_s``: how long the
    broker keeps it (seconds); 0.0: for ever. ``repeated``: a broker may have it already, which its headers say.

    Raises UnavailableError if no queue takes it. The queue or the exchange must be there.
    """
    secret = password(password_file, "")
    return asyncio.run(_to_amqp(url, ident, document, kind, until_s, repeated, secret, ca))


async def _to_amqp(
    url: str, ident: str, document: str, kind: str, until_s: float, repeated: bool, secret: str, ca: str
) -> str:
    from coordd.adapters.publishing.amqp_link import message_of, open_link

    to, where = split(url)
    link = await open_link(to, secret, tls_of(to, ClusterConfig(tls_ca=ca)), "coordd outcome")
    try:
        return await link.publish(message_of(ident, document, kind=kind, until_s=until_s, repeated=repeated), where)
    finally:
        await link.close()


def to_redis(url: str, ident: str, document: str, *, password_file: str, ca: str) -> str:
    """Add it to the stream, or put it into the hash under the run's id, unless a later attempt is there."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    to, said = split(url)
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
