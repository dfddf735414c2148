"""coordctl wire under the rights of deploy/acl: a user that hears the whole cluster, and can say nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import aio_pika
import pytest
import redis
from aiormq.exceptions import ChannelAccessRefused
from support import servers
from support.servers.rights import rabbit_wire, redis_rules

from coordd.cli.wire.reading import EVERYBODY, Raw
from coordd.cli.wire.taps import AmqpTap, RedisTap, Tap
from coordd.config.sections import ClusterConfig
from coordd.errors import UnavailableError

NAME = "c-wire"
LIMIT_S = 20.0


def cluster(tmp_path: Path, url: str) -> ClusterConfig:
    password = tmp_path / "wire.password"
    password.write_text("looks\n")
    password.chmod(0o600)
    return ClusterConfig(name=NAME, bus=url, bus_password_file=str(password))


def heard(tap: Tap, say: Callable[[], object], to: str) -> Raw:
    """The first message on that channel; ``say`` is called until there is one."""
    for _ in range(int(LIMIT_S / 0.2)):
        say()
        raw = tap.read(0.2)
        if raw is not None and raw.channel == to:
            return raw
    raise AssertionError(f"nothing was heard on {to}")


def at_rabbit(url: str, exchange: str, kind: aio_pika.ExchangeType, key: str) -> None:
    """Declare the exchange as a node does, and publish a message there."""

    async def main() -> None:
        async with await aio_pika.connect(url, timeout=LIMIT_S) as connection, connection.channel() as channel:
            made = await channel.declare_exchange(exchange, kind, durable=True)
            await made.publish(aio_pika.Message(b"said"), key, mandatory=False)

    asyncio.run(main())


def test_on_rabbitmq_it_hears_broadcasts_and_inboxes(rabbit_server: servers.Rabbit, tmp_path: Path) -> None:
    rabbit_server.ctl("add_user", "wire", "looks")
    rabbit_server.ctl("set_permissions", "wire", *rabbit_wire(NAME))
    url = f"amqp://wire@{servers.HOST}:{rabbit_server.port}/"
    fanout, direct = aio_pika.ExchangeType.FANOUT, aio_pika.ExchangeType.DIRECT
    at_rabbit(rabbit_server.url, f"coordd.{NAME}", fanout, "n1.42")
    at_rabbit(rabbit_server.url, f"coordd.{NAME}.inbox", direct, "n1.42")
    tap = AmqpTap(cluster(tmp_path, url), url)
    try:
        assert heard(tap, lambda: at_rabbit(rabbit_server.url, f"coordd.{NAME}", fanout, "n1.42"), EVERYBODY).data
        inbox = heard(tap, lambda: at_rabbit(rabbit_server.url, f"coordd.{NAME}.inbox", direct, "n1.42"), "n1.42")
        assert inbox.data == b"said"
        spoken = f"amqp://wire:looks@{servers.HOST}:{rabbit_server.port}/"
        with pytest.raises(ChannelAccessRefused):
            at_rabbit(spoken, f"coordd.{NAME}", fanout, "n1.42")
    finally:
        tap.close()


def test_on_redis_it_hears_broadcasts_and_inboxes(redis_server: servers.Redis, tmp_path: Path) -> None:
    assert redis_server.cli("ACL", "SETUSER", "wire", "on", *redis_rules(NAME, "redis-wire"), ">looks") == "OK"
    url = redis_server.url.replace("://", "://wire@")
    tap = RedisTap(cluster(tmp_path, url), url)
    try:
        for channel, to in ((f"coordd:{{{NAME}}}:all", EVERYBODY), (f"coordd:{{{NAME}}}:inbox:n1.42", "n1.42")):
            raw = heard(tap, partial(redis_server.cli, "PUBLISH", channel, "\x05n1.42said"), to)
            assert raw.data == b"said"
        with redis.Redis(host=redis_server.host, port=redis_server.port, username="wire", password="looks") as client:  # noqa: S106  # of a server of this test
            for word in ("PUBLISH coordd:{c-wire}:all x", "GET {coordd:c-wire}:x", "SUBSCRIBE coordd:{other}:all"):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*word.split())
    finally:
        tap.close()


def test_without_the_rights_it_says_which_user_has_them(rabbit_server: servers.Rabbit, tmp_path: Path) -> None:
    rabbit_server.ctl("add_user", "wire-none", "looks")
    rabbit_server.ctl("set_permissions", "wire-none", "^$", "^$", "^$")
    at_rabbit(rabbit_server.url, f"coordd.{NAME}", aio_pika.ExchangeType.FANOUT, "")
    url = f"amqp://wire-none@{servers.HOST}:{rabbit_server.port}/"
    with pytest.raises(UnavailableError, match=r"needs the rights of .*rabbitmq-wire\.regex"):
        AmqpTap(cluster(tmp_path, url), url)


def test_on_redis_too(redis_server: servers.Redis, tmp_path: Path) -> None:
    assert redis_server.cli("ACL", "SETUSER", "wire-none", "on", "+ping", "+select", ">looks") == "OK"
    url = redis_server.url.replace("://", "://wire-none@")
    with pytest.raises(UnavailableError, match=r"needs the rights of .*redis-wire\.rules"):
        RedisTap(cluster(tmp_path, url), url)
