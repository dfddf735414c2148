"""Sinks over TLS: a server whose authority is not known gets nothing, one whose authority is given gets the outcome."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import pytest
import redis
from support import servers
from support.clusters.wire import Asked, FakeServer
from support.servers.certs import Certificates

from outcomes.test_files import END, sent

# The outcomes that a server has taken.
Taken = Callable[[], list[Any]]


class Collector(FakeServer):
    """It takes whatever is posted."""

    def answer(self, asked: Asked) -> tuple[int, Any]:
        return 200, {}


@contextlib.contextmanager
def https(made: Certificates) -> Iterator[tuple[str, Taken]]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.cert, made.key)
    with Collector(context) as server:
        yield f"{server.url}/outcomes", lambda: [asked.json() for asked in server.asked]


@contextlib.contextmanager
def amqps(made: Certificates) -> Iterator[tuple[str, Taken]]:
    with servers.rabbit(tls=made) as server:

        async def of_queue() -> list[Any]:
            async with await aio_pika.connect(server.url) as connection:
                queue = await (await connection.channel()).declare_queue("outcomes", durable=True)
                message = await queue.get(fail=False)
                return [] if message is None else [json.loads(message.body)]

        asyncio.run(of_queue())
        yield f"{server.tls_url.replace('guest:guest@', '')}?queue=outcomes", lambda: asyncio.run(of_queue())


@contextlib.contextmanager
def rediss(made: Certificates) -> Iterator[tuple[str, Taken]]:
    with servers.redis(tls=made) as server, redis.Redis(host=server.host, port=server.port) as client:
        yield (
            f"{server.tls_url}?stream=outcomes",
            lambda: [json.loads(said[b"outcome"]) for _, said in client.xrange("outcomes")],
        )


@pytest.mark.parametrize("way", [https, amqps, rediss])
def test_a_server_is_believed_by_its_authority_alone(way: Any, tmp_path: Path) -> None:
    for name in ("ours", "other"):
        (tmp_path / name).mkdir()
    made, other = servers.certificates(tmp_path / "ours"), servers.certificates(tmp_path / "other")
    with way(made) as (to, taken):
        for authority in ("", other.ca):
            refused = sent(to, tls_ca=authority)
            assert (refused.returncode, "certificate" in refused.stderr.lower()) == (1, True), refused.stderr
        assert taken() == [], "a server that nobody vouches for got an outcome"

        done = sent(to, tls_ca=made.ca)
        assert done.returncode == 0, done.stderr
        assert taken() == [END]
