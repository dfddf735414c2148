"""The Redis bus only: servers that die, hang or refuse."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import trio
from support import servers
from support.servers.rights import redis_rules

from contract.bus.listeners import receiving, run, talk, until
from coordd.adapters.bus import redis_bus
from coordd.adapters.bus.redis_bus import RedisBus
from coordd.adapters.bus.where import of_redis
from coordd.core.wire.envelope import SEALED_BYTES_MAX
from coordd.errors import ConfigError

_clusters = itertools.count()


@pytest.fixture
def cluster() -> str:
    return f"redis-{next(_clusters)}"


@pytest.fixture
def own_server(own_redis: servers.Redis) -> servers.Redis:
    return own_redis


def test_a_server_that_hangs_is_given_up(
    own_server: servers.Redis, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_bus, "CONFIRM_S", 0.2)

    async def main() -> None:
        a = RedisBus([own_server.url], "a.1", cluster=cluster, heartbeat_s=1)
        said: list[bool] = []
        async with receiving(a) as (heard_a,):
            own_server.pause()
            try:
                a.publish(b"hanging", said.append)
                await until(lambda: said == [False])
                await until(lambda: a.state == "disconnected")
                assert "has sent nothing for 2 s" in a.error
            finally:
                own_server.resume()
            await until(lambda: a.state == "connected")
            assert heard_a.ups == [True, False, True]
        assert said == [False]

    run(main)


def refused(bus: RedisBus, mend: Callable[[], object], *words: str) -> None:
    """The bus says what is wrong, and connects when the cause is repaired."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bus.receive, lambda _data: None, lambda _name: None)
            await until(lambda: bus.state == "disconnected" and bus.error)
            for word in words:
                assert word in bus.error, bus.error
            mend()
            await until(lambda: bus.state == "connected")
            nursery.cancel_scope.cancel()

    run(main)


def test_a_wrong_password_which_is_read_anew_at_each_attempt(own_server: servers.Redis, cluster: str) -> None:
    own_server.cli("CONFIG", "SET", "requirepass", "right")
    word = ["wrong"]
    bus = RedisBus([own_server.url], "a.1", cluster=cluster, password=lambda: word[0])
    refused(bus, lambda: word.__setitem__(0, "right"), "refused the password", "bus_password_file")


def test_no_password_where_one_is_needed(own_server: servers.Redis, cluster: str) -> None:
    own_server.cli("CONFIG", "SET", "requirepass", "right")
    word = [""]
    bus = RedisBus([own_server.url], "a.1", cluster=cluster, password=lambda: word[0])
    refused(bus, lambda: word.__setitem__(0, "right"), "refused the password")


def test_a_user_without_rights(own_server: servers.Redis, cluster: str) -> None:
    own_server.cli("ACL", "SETUSER", "me", "on", ">secret", "+ping", "+client", "+select")
    bus = RedisBus([f"redis://me:secret@{servers.HOST}:{own_server.port}/0"], "a.1", cluster=cluster)
    words = ("refuses a right", "ACL SETUSER me", "deploy/acl/redis.rules")
    refused(bus, lambda: own_server.cli("ACL", "SETUSER", "me", *redis_rules(cluster)), *words)
    assert "secret" not in bus.url + bus.error


def test_a_database_that_is_not_there(own_server: servers.Redis, cluster: str) -> None:
    bus = RedisBus([f"redis://{servers.HOST}:{own_server.port}/99"], "a.1", cluster=cluster)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bus.receive, lambda _data: None, lambda _name: None)
            await until(lambda: bus.error)
            assert "no database 99" in bus.error
            nursery.cancel_scope.cancel()

    run(main)


def test_a_large_or_broken_message_of_a_stranger_is_passed_over(own_server: servers.Redis, cluster: str) -> None:
    async def main() -> None:
        a, b = (RedisBus([own_server.url], name, cluster=cluster) for name in ("a.1", "b.2"))
        async with receiving(a, b) as (_, heard_b):
            channel = f"coordd:{{{cluster}}}:all"
            large = f"return redis.call('PUBLISH', KEYS[1], string.rep('a', {SEALED_BYTES_MAX + 200}))"
            own_server.cli("EVAL", large, "1", channel)
            own_server.cli("PUBLISH", channel, "")
            own_server.cli("PUBLISH", channel, "z")
            await talk(a, heard_b, b"still here")
            assert set(heard_b.messages) == {b"still here"}
            assert b.statistics()["rejected"] == 1
            assert b.statistics()["connections"] == 1

    run(main)


@pytest.mark.parametrize("url", ["http://x/", "redis://", "redis://h:port/", "redis://h/name", "redis://h/0?db=3"])
def test_a_url_that_cannot_be_used(url: str) -> None:
    with pytest.raises(ConfigError, match=r"\[cluster\] bus"):
        RedisBus([url], "a.1", cluster="x")


def test_what_a_url_says() -> None:
    assert of_redis("redis://me:p%3A@h/3")[1:] == ("h", 6379, "me", "p:", "3")
    assert of_redis("rediss://:only@h:7000")[1:] == ("h", 7000, "", "only", "0")
