"""The connections to a set of brokers, on two real RabbitMQs: bounded, kept, and led over to the other broker."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aio_pika
import pytest
import trio
from support import servers

from coordd.adapters import secrets
from coordd.adapters.publishing import amqp_pool
from coordd.adapters.publishing.amqp_link import REPEATED
from coordd.adapters.publishing.amqp_pool import CONNECTIONS_MAX, REFUSED, TIMED_OUT, AmqpPool
from coordd.config.hooks.delivery import Delivered, Delivery
from coordd.config.sections import ClusterConfig

LIMIT_S = 240.0
QUEUE = "letters"


class Broker(NamedTuple):
    """A RabbitMQ, and the address of a virtual host of these tests there."""

    server: servers.Rabbit
    url: str


Two = tuple[Broker, Broker]


@pytest.fixture(scope="module")
def brokers(rabbit_server: servers.Rabbit) -> Iterator[Two]:
    """One that these tests may stop, and the broker of all tests."""
    with servers.rabbit() as own:
        yield Broker(own, own.url), Broker(rabbit_server, rabbit_server.vhost("letters"))
    rabbit_server.ctl("delete_vhost", "letters")


@pytest.fixture
def two(brokers: Two) -> Two:
    """Both have the queue, and it is empty."""
    for one in brokers:
        asyncio.run(taken(one.url, purge=True))
    return brokers


async def taken(url: str, *, purge: bool = False) -> list[tuple[str, bool]]:
    """The messages of the queue in their order: id, and whether the headers say that it is sent once more."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        if purge:
            await channel.queue_delete(QUEUE)
        queue = await channel.declare_queue(QUEUE, durable=True)
        found: list[tuple[str, bool]] = []
        while (message := await queue.get(no_ack=True, fail=False)) is not None:
            found.append((str(message.message_id), bool(message.headers.get(REPEATED, False))))
        return found


def letter(number: int, *to: Broker, queue: str = QUEUE, **more: Any) -> Delivery:
    said = {"timeout_s": 20.0, **more}
    addresses = tuple([f"{one.url}?queue={queue}" for one in to])
    return Delivery(addresses, f"m{number}", f"body {number}", "text/plain", **said)


def encrypted(url: str, authority: str) -> ssl.SSLContext | None:
    return secrets.tls_of(url, ClusterConfig(tls_ca=authority))


def with_pool(act: Callable[[AmqpPool], Awaitable[Any]]) -> Any:
    """What a function says that gets the connections, as a node has them."""

    async def main() -> Any:
        with trio.fail_after(LIMIT_S):
            pool = AmqpPool("coordd test", password=lambda _path: "", tls=encrypted)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pool.run)
                said = await act(pool)
                nursery.cancel_scope.cancel()
        return said

    return trio.run(main)


async def at_once(pool: AmqpPool, letters: list[Delivery]) -> list[Delivered]:
    found: list[Delivered] = []

    async def one(delivery: Delivery) -> None:
        found.append(await pool.publish(delivery))

    async with trio.open_nursery() as nursery:
        for delivery in letters:
            nursery.start_soon(one, delivery)
    return found


def connections(pool: AmqpPool, *to: Broker) -> tuple[int, dict[str, str]]:
    return pool.state(letter(0, *to).to, "", "")


def test_destinations_share_a_bounded_number_of_connections_that_are_kept(two: Two) -> None:
    own, other = two

    async def act(pool: AmqpPool) -> None:
        said = await at_once(pool, [letter(number, own, other) for number in range(30)])
        assert [one.code for one in said] == [0] * 30
        assert connections(pool, own, other) == (CONNECTIONS_MAX, {})
        for number in range(30, 40):  # one after the other: over connections that are there
            assert (await pool.publish(letter(number, own, other))).code == 0
        # What the broker itself counts.
        seen = await trio.to_thread.run_sync(own.server.ctl, "list_connections", "client_properties")
        assert seen.count("coordd test") == CONNECTIONS_MAX
        missing = await pool.publish(letter(99, own, other, queue="nowhere"))
        assert (missing.code, missing.repeated) == (REFUSED, False), "no broker has it"
        assert all("no queue for queue 'nowhere': declare it first" in one for one in missing.said)
        assert connections(pool, own, other) == (CONNECTIONS_MAX, {}), "a broker that answers is a good one"

    with_pool(act)
    found = asyncio.run(taken(own.url))
    assert {name for name, _ in found} == {f"m{number}" for number in range(40)}
    assert found[30:] == [(f"m{number}", False) for number in range(30, 40)], "in order"
    assert asyncio.run(taken(other.url)) == []


def test_a_broker_that_is_killed_or_hangs_loses_nothing_and_is_used_again(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = two
    monkeypatch.setattr(amqp_pool, "REST_FIRST_S", 0.2)
    monkeypatch.setattr(amqp_pool, "REST_MAX_S", 0.2)
    sent = 0

    async def act(pool: AmqpPool) -> None:
        async def send(**more: Any) -> Delivered:
            nonlocal sent
            said = await pool.publish(letter(sent, own, other, **more))
            assert said.code == 0, said
            sent += 1
            return said

        await send()
        await trio.to_thread.run_sync(own.server.kill)
        for _ in range(3):
            await send()
        assert list(connections(pool, own, other)[1]) == [f"RabbitMQ at 127.0.0.1:{own.server.port}"]
        await trio.to_thread.run_sync(own.server.start)
        while f":{own.server.port}/" not in (await send()).said[-1]:
            await trio.sleep(0.1)
        own.server.pause()
        try:
            late = await send(timeout_s=2.0)
            assert (late.repeated, "took nothing within 1 s" in late.said[0]) == (True, True)
            alone = await pool.publish(letter(999, own, queue="nowhere", timeout_s=0.5))
            assert (alone.code, alone.repeated) == (TIMED_OUT, False), "it was never sent"
        finally:
            own.server.resume()

    with_pool(act)
    there = asyncio.run(taken(own.url)), asyncio.run(taken(other.url))
    names = [name for found in there for name, _ in found]
    assert set(names) == {f"m{number}" for number in range(sent)}, "none is lost"
    twice = {name for name in names if names.count(name) > 1}
    assert twice <= {f"m{sent - 1}"}, "only the one without an answer may be at both"
    for name in twice:
        assert sorted(again for found in there for one, again in found if one == name) == [False, True]
    for found in there:
        numbers = [int(name[1:]) for name, _ in found]
        assert numbers == sorted(numbers)


def test_a_broker_with_tls_is_believed_by_its_authority_alone(tmp_path: Path) -> None:
    for name in ("ours", "other"):
        (tmp_path / name).mkdir()
    made, other = servers.certificates(tmp_path / "ours"), servers.certificates(tmp_path / "other")
    with servers.rabbit(tls=made) as server:
        asyncio.run(taken(server.url, purge=True))
        broker = Broker(server, server.tls_url)

        async def act(pool: AmqpPool) -> None:
            for number, authority in enumerate(("", other.ca)):
                refused = await pool.publish(letter(number, broker, tls_ca=authority))
                assert refused.code in (TIMED_OUT, REFUSED), refused
                assert all("certificate" in one.lower() for one in refused.said), refused
            assert (await pool.publish(letter(2, broker, tls_ca=made.ca))).code == 0

        with_pool(act)
        assert asyncio.run(taken(server.url)) == [("m2", False)]
