"""The Redis bus only: servers that die, hang or refuse."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from functools import partial

import pytest
import trio
import trio.testing
from support import servers
from support.servers.rights import redis_rules

from contract.bus.listeners import receiving, run, talk, until
from coordd.adapters.bus import redis_bus
from coordd.adapters.bus.redis_bus import RedisBus
from coordd.adapters.bus.where import of_redis
from coordd.adapters.ledger.resp import NOT_YET, Replies
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


class FakeRedis:
    """A server that says what it is, and that nobody listens at any inbox."""

    def __init__(self, *, role: str = "master", info: str = "cluster_enabled:0", refuses: str = "") -> None:
        self.role, self.info, self.refuses = role, info, refuses
        self.published = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        asked, subscribed = Replies(), False
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in stream:
                asked.feed(bytes(data))
                while (command := asked.next()) is not NOT_YET:
                    word, *arguments = (part.decode(errors="replace") for part in command)
                    subscribed = subscribed or word == "SUBSCRIBE"
                    await stream.send_all(self._answer(word, arguments, subscribed=subscribed))

    def _answer(self, word: str, arguments: list[str], *, subscribed: bool) -> bytes:
        if word == self.refuses:
            return f"-ERR unknown command '{word}', with args beginning with: {arguments}\r\n".encode()
        if word == "ROLE":
            return f"*1\r\n${len(self.role)}\r\n{self.role}\r\n".encode()
        if word == "INFO":
            return f"${len(self.info)}\r\n{self.info}\r\n".encode()
        if word == "SUBSCRIBE":
            return b"".join(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n" for _ in arguments)
        if word == "PUBLISH":
            self.published += 1
            return b":0\r\n"
        return b"*2\r\n$4\r\npong\r\n$0\r\n\r\n" if word == "PING" and subscribed else b"+OK\r\n"


async def heard_dead(*fakes: FakeRedis, password: str = "") -> tuple[list[str], RedisBus]:
    """Which names a bus holds for dead to whom it has sent a message; with one server that is a primary at least."""
    async with trio.open_nursery() as nursery:
        urls = []
        for fake in fakes:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, fake.serve, [listener])
            urls.append(f"redis://127.0.0.1:{listener.socket.getsockname()[1]}/0")
        bus = RedisBus(urls, "a.1", cluster="c", rng=random.Random(1), password=lambda: password)
        dead: list[str] = []
        arrived: list[bool] = []
        nursery.start_soon(bus.receive, lambda _data: None, dead.append)
        await until(lambda: bus.state != "starting" and (bus.error or bus.state == "connected"))
        if any(fake.role == "master" and not fake.refuses for fake in fakes):
            await until(lambda: bus.state == "connected")
            bus.send("b.2", b"anybody there?")
            bus.publish(b"after it", arrived.append)
            await until(lambda: arrived)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return dead, bus


@pytest.mark.parametrize(
    ("fakes", "dead"),
    [
        ([FakeRedis()], ["b.2"]),
        ([FakeRedis(), FakeRedis()], []),
        ([FakeRedis(info="cluster_enabled:1")], []),
        ([FakeRedis(info="")], []),
    ],
    ids=["one", "several", "cluster", "unknown"],
)
def test_an_inbox_without_a_listener_proves_something_only_where_all_are_at_one_server(
    fakes: list[FakeRedis], dead: list[str]
) -> None:
    assert run(lambda: heard_dead(*fakes))[0] == dead


def test_a_replica_is_refused_and_the_primary_is_used() -> None:
    replica, primary = FakeRedis(role="slave"), FakeRedis()
    _, bus = run(lambda: heard_dead(replica))
    assert "is a replica" in bus.error
    for fakes in ([replica, primary], [primary, replica]):
        run(partial(heard_dead, *fakes))
    assert (replica.published, primary.published) == (0, 4)


WORD = "hunter2"


def test_what_a_server_quotes_shows_no_password() -> None:
    _, bus = run(lambda: heard_dead(FakeRedis(refuses="AUTH"), password=WORD))
    assert "AUTH" in bus.error
    assert WORD not in bus.error
