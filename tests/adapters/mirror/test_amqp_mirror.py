"""The mirror on RabbitMQ: messages as Celery's own, a bounded queue, and nobody who waits for a broker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import celery
import pytest
import trio
from support import servers
from support.servers.rights import rabbit_monitor, rabbit_regex

from coordd.adapters.mirror import amqp_mirror
from coordd.adapters.mirror.amqp_mirror import LENGTH_MAX, AmqpMirror
from coordd.errors import ConfigError

LIMIT_S = 60.0
EXCHANGE = "coordd.prod:mirror"


@pytest.fixture(scope="module")
def broker() -> Iterator[servers.Rabbit]:
    """A node's user and a monitor's have the rights of deploy/acl."""
    with servers.rabbit() as running:
        for user, regex in (("node", rabbit_regex("prod", "n1")), ("monitor", rabbit_monitor("prod"))):
            running.ctl("add_user", user, user)
            running.ctl("set_permissions", user, regex, regex, regex)
        yield running


def as_user(url: str, user: str) -> str:
    return url.replace("guest:guest@", f"{user}:{user}@")


def made(url: str) -> AmqpMirror:
    """A mirror of the node's user."""
    url = as_user(url, "node")
    return AmqpMirror([url], EXCHANGE, "coordd@n1", password=lambda: "", tls=lambda _url: None)


def play(mirror: AmqpMirror, act: Callable[[list[int]], Awaitable[None]]) -> list[int]:
    """Run the mirror while ``act`` runs; the list grows by one with each connection."""
    connections: list[int] = []

    async def main() -> None:
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(mirror.run, lambda: connections.append(1))
                await act(connections)
                nursery.cancel_scope.cancel()

    trio.run(main)
    return connections


async def until(true: Callable[[], object]) -> None:
    while not true():
        await trio.sleep(0.01)


def event(number: int, room: int = 0) -> bytes:
    """An event that Celery's receiver takes."""
    said = {"type": "task-sent", "hostname": "coordd@n1", "clock": number, "timestamp": time.time(), "utcoffset": 0}
    return json.dumps({**said, "uuid": "u", "n": number, "room": "." * room}).encode()


class Monitor:
    """Celery's own receiver of events, as `celery events` uses it."""

    def __init__(self, url: str) -> None:
        app = celery.Celery(broker=as_user(url, "monitor"))
        app.conf.event_exchange = EXCHANGE
        self.seen: list[int] = []
        self.types: list[str] = []
        self._first = app.connection_for_read()
        receiver = app.events.Receiver(self._first, handlers={"*": self._saw})
        self._consumers = receiver.consumer_context()
        self._connection, _, _ = self._consumers.__enter__()

    def _saw(self, said: dict[str, Any]) -> None:
        self.seen.append(said["n"])
        self.types.append(said["type"])

    def drain(self, enough: Callable[[list[int]], bool]) -> list[int]:
        limit = time.monotonic() + LIMIT_S
        while not enough(self.seen):
            assert time.monotonic() < limit
            self._connection.drain_events(timeout=LIMIT_S)
        return self.seen

    def close(self) -> None:
        self._consumers.__exit__(None, None, None)
        self._first.release()


def test_celery_receives_what_is_sent_and_the_last_one_too(broker: servers.Rabbit) -> None:
    monitor = Monitor(broker.url)
    mirror = made(broker.url)

    async def act(connections: list[int]) -> None:
        await until(lambda: connections)
        mirror.put("task.sent", event(1))
        await until(lambda: mirror.statistics()["sent"] == 1)
        mirror.put("worker.offline", event(2))  # and then it ends

    play(mirror, act)

    assert monitor.drain(lambda seen: len(seen) == 2) == [1, 2]
    monitor.close()


def test_without_a_broker_the_newest_wait_and_nobody_else(broker: servers.Rabbit) -> None:
    Monitor(broker.url).close()  # the exchange is there before the mirror: what Celery declares is what we declare
    broker.stop()
    mirror = made(broker.url)
    for number in range(LENGTH_MAX + 500):
        mirror.put("task.sent", event(number))
    assert mirror.statistics()["dropped"] == 500
    assert mirror.statistics()["waiting"] == LENGTH_MAX

    async def act(connections: list[int]) -> None:
        await until(lambda: mirror.error and mirror.error != amqp_mirror.NOT_YET)
        assert "cannot be used" in mirror.error
        assert connections == []
        await trio.to_thread.run_sync(broker.start)
        await until(lambda: mirror.statistics()["sent"] == LENGTH_MAX)
        assert mirror.error == ""

    assert len(play(mirror, act)) == 1


def test_a_broker_that_hangs_delays_nobody_and_is_used_again(broker: servers.Rabbit) -> None:
    mirror = made(broker.url)
    monitor = Monitor(broker.url)

    async def act(connections: list[int]) -> None:
        await until(lambda: connections)
        broker.pause()
        try:
            for number in range(1000):  # 40 MB: more than queue and connection hold
                mirror.put("task.sent", event(number, 40_000))
                await trio.lowlevel.checkpoint()
            await until(lambda: mirror.statistics()["dropped"])
        finally:
            broker.resume()
        mirror.put("task.sent", event(5000))
        seen = await trio.to_thread.run_sync(monitor.drain, lambda seen: bool(seen and seen[-1] == 5000))
        assert seen == sorted(seen), "in order"
        assert len(seen) + mirror.statistics()["dropped"] + mirror.statistics()["lost"] == 1001

    play(mirror, act)
    monitor.close()


class Dying:
    """A connection that is lost: aiormq tells its users so by a cancellation."""

    is_closed = False

    def __init__(self, at: str) -> None:
        self._at = at

    async def _lose(self, at: str) -> Any:
        if self._at == at:
            raise asyncio.CancelledError
        return self

    async def channel(self, **_: Any) -> Any:
        return await self._lose("channel")

    async def declare_exchange(self, *_: Any, **__: Any) -> Any:
        return self

    async def publish(self, *_: Any, **__: Any) -> Any:
        return await self._lose("publish")

    async def close(self) -> None:
        """Nothing."""


@pytest.mark.parametrize("at", ["channel", "publish"])
def test_a_lost_connection_that_looks_like_a_cancellation_ends_nothing(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    async def connect(**_: Any) -> Any:
        tried.append(1)
        return Dying(at)

    monkeypatch.setattr(amqp_mirror, "connect", connect)
    monkeypatch.setattr(amqp_mirror, "PAUSE_FIRST_S", 0.01)
    mirror = made("amqp://127.0.0.1:1/")
    for number in range(9):
        mirror.put("task.sent", event(number))

    async def act(_connections: list[int]) -> None:
        while len(tried) < 3:
            mirror.put("task.sent", event(9))
            await trio.sleep(0.01)

    play(mirror, act)

    assert mirror.statistics()["lost"] == 0 if at == "channel" else mirror.statistics()["lost"] > 0


def test_a_user_without_the_rights_is_told_where_they_are(broker: servers.Rabbit) -> None:
    broker.ctl("add_user", "nobody", "nobody")
    broker.ctl("set_permissions", "nobody", "^$", "^$", "^$")
    mirror = made(as_user(broker.url, "nobody"))

    async def act(_connections: list[int]) -> None:
        await until(lambda: "the rights of deploy/acl/rabbitmq.regex" in mirror.error)

    assert play(mirror, act) == []


def test_a_wrong_address_is_named() -> None:
    with pytest.raises(ConfigError, match="amqp"):
        made("http://x")
    mirror = made("amqp://127.0.0.1:1/")

    async def act(_connections: list[int]) -> None:
        await until(lambda: "RabbitMQ at 127.0.0.1:1 cannot be used" in mirror.error)

    assert play(mirror, act) == []
