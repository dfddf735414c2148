"""A queue of RabbitMQ: nothing is lost before its acknowledgement, and bad messages are put aside for good."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aio_pika
import msgpack
import pytest
import trio
from support import servers

from coordd.adapters.triggers import amqp_queue as module
from coordd.adapters.triggers.amqp_queue import AmqpQueue
from coordd.adapters.triggers.queues import MessageQueues
from coordd.config.sections import Config
from coordd.core.jobs.trigger import Trigger
from coordd.core.triggers.messages import Batch
from coordd.errors import UnavailableError

LIMIT_S = 90.0
PACK = "application/x-msgpack"


VHOST = "triggers"


@pytest.fixture(scope="module")
def vhost_url(rabbit_server: servers.Rabbit) -> Iterator[str]:
    """A virtual host of these tests."""
    rabbit_server.ctl("add_vhost", VHOST)
    rabbit_server.ctl("set_permissions", "-p", VHOST, "guest", ".*", ".*", ".*")
    yield rabbit_server.url.rstrip("/") + f"/{VHOST}"
    rabbit_server.ctl("delete_vhost", VHOST)


@pytest.fixture
def url(vhost_url: str) -> str:
    asyncio.run(told(vhost_url, []))
    return vhost_url


async def told(url: str, messages: list[tuple[bytes, dict[str, Any]]], *, purge: bool = True) -> None:
    """Declare an empty queue, and send messages to it."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        if purge:
            for name in ("orders", "orders.dead"):
                await channel.queue_delete(name)
        await channel.declare_queue("orders", durable=True)
        for body, more in messages:
            await channel.default_exchange.publish(aio_pika.Message(body, **more), "orders")


def send(url: str, *messages: tuple[bytes, dict[str, Any]]) -> None:
    asyncio.run(told(url, list(messages), purge=False))


def numbered(*numbers: int) -> list[tuple[bytes, dict[str, Any]]]:
    return [(b'{"what": %d}' % number, {"message_id": f"m{number}"}) for number in numbers]


def with_queue(url: str, act: Callable[[AmqpQueue], Awaitable[Any]], **more: Any) -> Any:
    """What a function says that gets an open queue, as a node has it."""
    trigger = Trigger(kind="amqp", name="q", url=url, queue="orders", **more)

    async def main() -> Any:
        with trio.fail_after(LIMIT_S):
            queues = MessageQueues(lambda: Config().cluster)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(queues.run)
                queue: Any = queues.open("load", trigger)
                try:
                    said = await act(queue)
                except UnavailableError as exc:
                    said = exc
                await queue.close()
                nursery.cancel_scope.cancel()
        if isinstance(said, UnavailableError):
            raise said
        return said

    return trio.run(main)


def idents(batch: Batch) -> list[str]:
    return [one.ident for one in batch.messages]


def test_messages_come_again_until_they_are_acknowledged(url: str) -> None:
    send(url, *numbered(0, 1, 2), (msgpack.packb({"what": "é"}), {"message_id": "packed", "content_type": PACK}))

    async def first(queue: AmqpQueue) -> None:
        assert (await queue.read(0)).behind == 4
        some = await queue.read(2)
        assert (idents(some), some.behind, dict(some.messages[1].fields)) == (["m0", "m1"], 4, {"what": 1})
        assert idents(await queue.read(2)) == ["m0", "m1"]
        await queue.acknowledge([some.messages[0].place])
        assert (idents(await queue.read(1)), (await queue.read(0)).behind) == (["m1"], 3)

    async def second(queue: AmqpQueue) -> None:
        found = await queue.read(10)
        assert (idents(found), dict(found.messages[-1].fields)) == (["m1", "m2", "packed"], {"what": "é"})
        await queue.acknowledge([one.place for one in found.messages])
        assert await queue.read(10) == Batch([], 0)

    with_queue(url, first)
    with_queue(url, second)
    with_queue(url, lambda queue: queue.read(1))


def test_a_bad_message_is_put_aside_with_its_reason_and_is_not_delivered_again(url: str) -> None:
    large = b"x" * 10_000_000
    send(url, (b"{", {"message_id": "bad"}), (large, {"message_id": "large"}), *numbered(3))

    async def act(queue: AmqpQueue) -> Batch:
        found = await queue.read(10)
        assert [one.problem[:22] for one in found.messages] == ["expected JSON: Expecti", "expected a body of at ", ""]
        dead = [(one.place, one.problem) for one in found.messages if one.problem]
        await queue.put_aside(dead)
        await queue.put_aside([(dead[0][0], "again")])  # it is gone: nothing happens
        return await queue.read(10)

    left = with_queue(url, act)
    assert (idents(left), left.behind, left.dead) == (["m3"], 1, 2)
    assert [(one.ident, one.reason[:13]) for one in left.dead_last] == [
        ("bad", "expected JSON"),
        ("large", "expected a bo"),
    ]
    assert all(one.at > 1e9 for one in left.dead_last)
    again = with_queue(url, lambda queue: queue.read(10))
    assert (idents(again), again.dead, again.dead_last) == (["m3"], 2, left.dead_last)


def test_a_queue_of_dead_messages_that_is_absent_is_not_asked_for_at_each_look(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker writes an error into its log each time."""
    asked: list[str] = []
    declare = aio_pika.Channel.declare_queue

    async def counted(channel: Any, name: str, **more: Any) -> Any:
        asked.append(name)
        return await declare(channel, name, **more)

    monkeypatch.setattr(aio_pika.Channel, "declare_queue", counted)
    send(url, (b"{", {"message_id": "bad"}), *numbered(1))

    async def act(queue: AmqpQueue) -> tuple[int, list[int]]:
        asked.clear()
        found = [await queue.read(2) for _ in range(5)][-1]
        before = asked.count("orders.dead")
        await queue.put_aside([(found.messages[0].place, "bad")])
        return before, [found.dead, (await queue.read(2)).dead]

    async def later(queue: AmqpQueue) -> list[int]:
        monkeypatch.setattr(module, "ABSENT_S", 0.0)
        before = (await queue.read(0)).dead
        await trio.to_thread.run_sync(lambda: asyncio.run(put_there(url)))
        return [before, (await queue.read(0)).dead]

    assert with_queue(url, act) == (1, [0, 1])
    asyncio.run(told(url, []))
    assert with_queue(url, later) == [0, 1], "another node has put one aside"


async def put_there(url: str) -> None:
    """As another node does."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.declare_queue("orders.dead", durable=True)
        await channel.default_exchange.publish(aio_pika.Message(b"x"), "orders.dead")


def test_dead_messages_go_back_into_their_queue_or_away_one_by_one(url: str) -> None:
    bad = [(b"{%d" % number, {"message_id": f"bad{number}", "headers": {"of": "ours"}}) for number in range(3)]
    send(url, *bad)

    async def act(queue: AmqpQueue) -> list[Any]:
        assert not await queue.take_back("nothing was put aside", again=True)
        found = await queue.read(10)
        await queue.put_aside([(one.place, one.problem) for one in found.messages])
        shown = {one.ident: one.place for one in (await queue.read(0)).dead_last}
        assert not await queue.take_back("0" * 20, again=True)
        assert await queue.take_back(shown["bad1"], again=True)
        assert await queue.take_back(shown["bad2"], again=False)
        assert not await queue.take_back(shown["bad2"], again=False)
        left = await queue.read(10)
        return [idents(left), [one.ident for one in left.dead_last]]

    assert with_queue(url, act) == [["bad1"], ["bad0"]]
    assert asyncio.run(headers_of(url)) == {"of": "ours"}


async def headers_of(url: str) -> dict[str, Any]:
    """Of the first message of the queue."""
    async with await aio_pika.connect(url) as connection:
        queue = await (await connection.channel()).declare_queue("orders", passive=True)
        message = await queue.get(no_ack=True)
        assert message is not None
        return dict(message.headers)


def test_a_copy_that_the_broker_returns_is_not_kept_and_the_message_stays(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of dead messages has vanished since it was counted."""
    send(url, (b"{", {"message_id": "bad"}))

    async def there(_self: AmqpQueue) -> int:
        return 0

    async def act(queue: AmqpQueue) -> None:
        with monkeypatch.context() as vanished:
            vanished.setattr(AmqpQueue, "_count_dead", there)
            found = await queue.read(10)
            with pytest.raises(UnavailableError, match="returned a copy: no queue takes it"):
                await queue.put_aside([(one.place, one.problem) for one in found.messages])

    with_queue(url, act)
    assert idents(with_queue(url, lambda queue: queue.read(10))) == ["bad"]


def test_what_is_held_is_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 2500)
    send(url, *[(b'{"what": "%b"}' % (b"x" * 1000), {"message_id": str(number)}) for number in range(9)])
    found = with_queue(url, lambda queue: queue.read(200))
    assert (len(found.messages), found.behind) == (3, 9)


def test_a_broker_that_refuses_or_lacks_the_queue_is_named_without_the_password(
    url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(told(url, []))
    with pytest.raises(UnavailableError, match="there is no queue nowhere in the virtual host triggers: declare it"):
        with_queue(url, lambda queue: _renamed(queue).read(1))
    secret = tmp_path / "password"
    secret.write_text("wr0ng\n")
    secret.chmod(0o600)
    with pytest.raises(UnavailableError, match="RabbitMQ at ") as caught:
        with_queue(url, lambda queue: queue.read(1), password_file=str(secret))
    assert "wr0ng" not in str(caught.value)
    monkeypatch.setattr(module, "TIMEOUT_S", 5.0)
    with pytest.raises(UnavailableError, match="RabbitMQ at "):
        with_queue(f"amqp://127.0.0.1:{servers.free_port()}", lambda queue: queue.read(1))


def test_a_connection_that_could_not_be_opened_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it makes a loop in the thread in which it is collected."""
    gc.collect()  # those of the tests before
    closed: list[bool] = []
    monkeypatch.setattr(aio_pika.Connection, "__del__", lambda self: closed.append(self.is_closed))
    with pytest.raises(UnavailableError, match="RabbitMQ at "):
        with_queue(f"amqp://127.0.0.1:{servers.free_port()}", lambda queue: queue.read(1))
    gc.collect()
    assert closed == [True]


def _renamed(queue: AmqpQueue) -> AmqpQueue:
    queue._queue_name = "nowhere"
    return queue


def test_a_connection_that_is_cut_gives_the_messages_back_and_the_next_call_connects_again(
    url: str, rabbit_server: servers.Rabbit
) -> None:
    send(url, *numbered(0, 1))

    async def act(queue: AmqpQueue) -> list[str]:
        held = await queue.read(2)
        await trio.to_thread.run_sync(rabbit_server.ctl, "close_all_connections", "--vhost", VHOST, "test")
        for _ in range(20):
            try:
                await queue.acknowledge([one.place for one in held.messages])
                found = await queue.read(2)
            except UnavailableError:
                continue
            return idents(found)
        raise AssertionError("it does not connect again")

    assert with_queue(url, act) == ["m0", "m1"]


def test_a_queue_that_was_never_read_needs_no_thread(url: str) -> None:
    async def act(_queue: AmqpQueue) -> None:
        return None

    with_queue(url, act)
