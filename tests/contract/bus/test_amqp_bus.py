"""RabbitMQ only: brokers that die, refuse, block or close, and the frames that our own code reads."""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
import struct
from collections.abc import Callable
from typing import Any

import aio_pika
import pytest
import trio
from pamqp import commands, header
from pamqp.body import ContentBody
from pamqp.frame import unmarshal
from support import servers
from support.samples import delivery, frames
from support.servers.rights import rabbit_regex

from contract.bus.listeners import DEADLINE_S, receiving, run, talk, until
from coordd.adapters.bus import amqp_frames, amqp_session
from coordd.adapters.bus.amqp_bus import AmqpBus
from coordd.adapters.bus.amqp_frames import HEARTBEAT, Publishing, Tap, own_end
from coordd.adapters.bus.where import of_amqp
from coordd.core.wire.envelope import SEALED_BYTES_MAX
from coordd.errors import ConfigError, UnavailableError

_clusters = itertools.count()


@pytest.fixture
def cluster() -> str:
    return f"amqp-{next(_clusters)}"


@pytest.fixture
def own_server(own_rabbit: servers.Rabbit) -> servers.Rabbit:
    return own_rabbit


def raw(url: str, work: Callable[[Any], Any]) -> Any:
    """Perform an action of another client at the broker. ``work`` gets an open channel."""

    async def main() -> Any:
        async with await aio_pika.connect(url, timeout=20) as connection, connection.channel() as channel:
            return await work(channel)

    return asyncio.run(main())


class TestBrokersThatFail:
    def test_who_has_died_is_told_at_the_next_send(self, rabbit_url: str, cluster: str) -> None:
        async def main() -> None:
            a, b = (AmqpBus([rabbit_url], name, cluster=cluster) for name in ("a.1", "b.2"))
            async with receiving(a) as (heard_a,):
                async with receiving(b):
                    a.send("b.2", b"there")
                    a.send("c.3", b"not there")
                    await until(lambda: heard_a.dead)
                # The broker may accept a first unicast before it notices that b's connection is closed.
                with trio.fail_after(DEADLINE_S):
                    while len(heard_a.dead) < 2:
                        a.send("b.2", b"gone")
                        await trio.sleep(0.2)
                assert heard_a.dead[:2] == ["c.3", "b.2"]

        run(main)

    def test_a_broker_that_closes_the_connection(self, own_server: servers.Rabbit, cluster: str) -> None:
        async def main() -> None:
            a, b = (AmqpBus([own_server.url], name, cluster=cluster) for name in ("a.1", "b.2"))
            errors: list[str] = []
            async with receiving(a, b) as (heard_a, heard_b):
                note = noting(a, errors)
                await trio.to_thread.run_sync(own_server.ctl, "close_all_connections", "an operator's whim")
                await until(lambda: heard_a.ups[-2:] == [False, True])
                note()
                assert any("whim" in error for error in errors)
                await talk(a, heard_b, b"again")

        run(main)

    def test_memory_alarm(self, own_server: servers.Rabbit, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(amqp_session, "CONFIRM_S", 0.5)

        async def main() -> None:
            a, b = (AmqpBus([own_server.url], name, cluster=cluster) for name in ("a.1", "b.2"))
            said: list[bool] = []
            async with receiving(a, b) as (heard_a, heard_b):
                await trio.to_thread.run_sync(own_server.ctl, "set_vm_memory_high_watermark", "absolute", "1MB")
                try:
                    a.publish(b"must arrive", said.append)
                    await until(lambda: a.state == "disconnected")
                    assert "blocks all publishers" in a.error
                    assert heard_a.ups == [True, False]
                    a.publish(b"gossip")
                    assert a.statistics()["dropped"] == 1
                    a.publish(b"must arrive too", said.append)
                    await until(lambda: len(said) == 2)
                    assert said == [False, False]
                finally:
                    await trio.to_thread.run_sync(own_server.ctl, "set_vm_memory_high_watermark", "absolute", "512MB")
                await until(lambda: a.state == "connected")
                assert a.error == ""
                await talk(a, heard_b, b"again")
                assert a.statistics()["connections"] == 1

        run(main)


def noting(bus: AmqpBus, errors: list[str]) -> Callable[[], None]:
    """Record every error sentence of a bus, also one that is soon over. Returns a function that stops the recording."""
    went_down = bus._went_down

    def note(reason: str) -> None:
        errors.append(reason)
        went_down(reason)

    bus._went_down = note  # type: ignore[method-assign]  # replaced for this test

    def stop() -> None:
        bus._went_down = went_down  # type: ignore[method-assign]  # replaced for this test

    return stop


class TestRefusals:
    """Each refusal has a sentence, which ends when the cause is repaired."""

    async def refused(self, bus: AmqpBus, *words: str) -> None:
        await until(lambda: bus.state == "disconnected" and bus.error)
        for word in words:
            assert word in bus.error, bus.error

    def check(self, bus: AmqpBus, mend: Callable[[], object], *words: str) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bus.receive, lambda _data: None, lambda _name: None)
                await self.refused(bus, *words)
                await trio.to_thread.run_sync(mend)
                await until(lambda: bus.state == "connected")
                nursery.cancel_scope.cancel()

        run(main)

    def test_a_wrong_password_which_is_read_anew_at_each_attempt(self, rabbit_url: str, cluster: str) -> None:
        word = ["wrong"]
        bus = AmqpBus([rabbit_url], "a.1", cluster=cluster, password=lambda: word[0])
        self.check(bus, lambda: word.__setitem__(0, "guest"), "refused the user 'guest'", "bus_password_file")
        assert "wrong" not in bus.error + bus.url

    def test_a_password_file_that_cannot_be_read(self, rabbit_url: str, cluster: str) -> None:
        fault: list[Exception] = [UnavailableError("the password file /x cannot be read")]

        def password() -> str:
            if fault:
                raise fault[0]
            return "guest"

        self.check(AmqpBus([rabbit_url], "a.1", cluster=cluster, password=password), fault.clear, "/x cannot be read")

    def test_a_virtual_host_that_is_not_there(self, rabbit_server: servers.Rabbit, cluster: str) -> None:
        def mend() -> None:
            rabbit_server.ctl("add_vhost", cluster)
            rabbit_server.ctl("set_permissions", "-p", cluster, "guest", ".*", ".*", ".*")

        self.check(AmqpBus([rabbit_server.url + cluster], "a.1", cluster=cluster), mend, "no virtual host", cluster)

    def test_an_exchange_of_another_type(self, rabbit_url: str, cluster: str) -> None:
        raw(rabbit_url, lambda channel: channel.declare_exchange(f"coordd.{cluster}", "topic"))
        self.check(
            AmqpBus([rabbit_url], "a.1", cluster=cluster),
            lambda: raw(rabbit_url, lambda channel: channel.exchange_delete(f"coordd.{cluster}")),
            "another type",
            "'fanout'",
            "'topic'",
        )

    def test_a_user_without_rights(self, rabbit_server: servers.Rabbit, cluster: str) -> None:
        rabbit_server.ctl("add_user", cluster, "secret")
        rabbit_server.ctl("set_permissions", cluster, "^$", "^$", "^$")
        url = f"amqp://{cluster}:secret@{servers.HOST}:{rabbit_server.port}/"
        bus = AmqpBus([url], "a.1", cluster=cluster)
        self.check(
            bus,
            lambda: rabbit_server.ctl("set_permissions", cluster, *[rabbit_regex(cluster, "a")] * 3),
            "refuses the user",
            "set_permissions",
            "deploy/acl/rabbitmq.regex",
        )
        assert "secret" not in bus.url

    def test_a_channel_that_the_broker_closes(self, rabbit_url: str, cluster: str) -> None:
        """Somebody deletes our exchange. The next message closes the channel, and the bus declares everything again."""

        async def main() -> None:
            a, b = (AmqpBus([rabbit_url], name, cluster=cluster) for name in ("a.1", "b.2"))
            errors: list[str] = []
            async with receiving(a, b) as (heard_a, heard_b):
                note = noting(a, errors)
                await trio.to_thread.run_sync(
                    raw, rabbit_url, lambda channel: channel.exchange_delete(f"coordd.{cluster}")
                )
                a.publish(b"into the void")
                await until(lambda: heard_a.ups == [True, False, True])
                note()
                assert any("NOT_FOUND" in error for error in errors), errors
                b.publish(b"there again?")  # the exchange's end removed b's own binding too
                await until(lambda: heard_b.ups[-1:] == [True] and b.state == "connected")
                await talk(b, heard_a, b"from b")

        run(main)

    def test_something_that_is_no_broker(self, redis_url: str, cluster: str) -> None:
        port = redis_url.rpartition(":")[2].split("/")[0]
        bus = AmqpBus([f"amqp://{servers.HOST}:{port}/"], "a.1", cluster=cluster)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bus.receive, lambda _data: None, lambda _name: None)
                await self.refused(bus, servers.HOST)
                nursery.cancel_scope.cancel()

        run(main)

    @pytest.mark.parametrize(
        "url", ["http://x/", "amqp://", "amqp://h:port/", "amqp://h/v?heartbeat=3", "amqp://h:70000/", "amqps:///v"]
    )
    def test_a_url_that_cannot_be_used(self, url: str) -> None:
        with pytest.raises(ConfigError, match=r"\[cluster\] bus"):
            AmqpBus([url], "a.1", cluster="x")

    def test_names_that_are_too_long(self) -> None:
        with pytest.raises(ConfigError, match="too long"):
            AmqpBus(["amqp://h/"], "a" * 200 + ".1", cluster="c" * 60)

    def test_what_a_url_says(self) -> None:
        where = of_amqp("amqp://me%40here:p%3A@h/my%2Fhost")
        assert where[1:] == ("h", 5672, "me@here", "p:", "my/host")
        assert of_amqp("amqps://h")[1:] == ("h", 5671, "guest", "guest", "/")


def test_tls_verifies_and_says_so(cluster: str, tmp_path: Any) -> None:
    made = servers.certificates(tmp_path)
    with servers.rabbit(tls=made) as server:

        async def main() -> None:
            # the system's certificate authorities do not know the server
            a = AmqpBus([server.tls_url], "a.1", cluster=cluster)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(a.receive, lambda _data: None, lambda _name: None)
                await until(lambda: a.state == "disconnected" and a.error)
                assert "certificate is not accepted" in a.error
                a.tls = ssl.create_default_context(cafile=made.ca)
                await until(lambda: a.state == "connected")
                nursery.cancel_scope.cancel()

        run(main)


def test_a_large_message_of_a_stranger_is_passed_over(rabbit_url: str, cluster: str) -> None:
    async def main() -> None:
        a, b = (AmqpBus([rabbit_url], name, cluster=cluster) for name in ("a.1", "b.2"))
        async with receiving(a, b) as (_, heard_b):

            async def flood(channel: Any) -> None:
                exchange = await channel.get_exchange(f"coordd.{cluster}")
                for size in (SEALED_BYTES_MAX + 1, 4 * 1024 * 1024, 64 * 1024 * 1024):
                    await exchange.publish(aio_pika.Message(b"x" * size), "stranger")

            await trio.to_thread.run_sync(raw, rabbit_url, flood)
            await talk(a, heard_b, b"still here")
            assert set(heard_b.messages) == {b"still here"}
            assert b.statistics()["rejected"] >= 2  # the broker itself may have dropped the largest
            assert b.statistics()["connections"] == 1

    run(main)


class Told:
    """A listener of a tap. It records what it hears."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.events: list[tuple[Any, ...]] = []

    def delivered(self, data: bytes) -> None:
        self.data.append(data)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **named: self.events.append((name, *args, *named.values()))


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


def tapped(chunks: list[bytes], told: Told, bytes_max: int = 1000) -> bytes:
    """Feed a tap; returns the bytes that it passed on."""

    async def main() -> bytes:
        reader = asyncio.StreamReader()
        tap = Tap(reader, told, own_end("coordd.x", "a.1"), bytes_max)
        for chunk in chunks:
            tap.data_received(chunk)
        reader.feed_eof()
        return await reader.read()

    return asyncio.run(main())


class TestTap:
    STREAM = (
        frames(commands.Channel.OpenOk())
        + delivery(b"one")
        + delivery(b"own", "a.1")
        + delivery(b"to my inbox", "a.1", "coordd.x.inbox")
        + frames(commands.Basic.Ack(3, True), commands.Basic.Nack(4, False), channel=2)
        + delivery(b"x" * 450)
        + delivery(b"y" * 1001)
        + frames(
            commands.Basic.Return(312, "NO_ROUTE", "coordd.x.inbox", "c.3"),
            header.ContentHeader(0, 3, commands.Basic.Properties()),
            ContentBody(b"???"),
        )
        + delivery(b"")
        + HEARTBEAT
        + frames(commands.Connection.Blocked("low on memory"), commands.Connection.Unblocked(), channel=0)
        + frames(commands.Channel.Close(404, "NOT_FOUND", 60, 40))
    )

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 64, 1000, 100_000])
    def test_however_the_stream_is_cut(self, size: int) -> None:
        told = Told()
        rest = tapped([self.STREAM[at : at + size] for at in range(0, len(self.STREAM), size)], told)
        assert told.data == [b"one", b"to my inbox", b"x" * 450, b""]
        assert told.events == [
            ("echoed",),
            ("confirmed", 3, True, True),
            ("confirmed", 4, False, False),
            ("rejected",),
            ("returned", "c.3"),
            ("blocked", "low on memory"),
            ("blocked", ""),
            ("closed", 404, "NOT_FOUND"),
        ]
        passed = frames(commands.Channel.OpenOk()) + HEARTBEAT
        passed += frames(commands.Connection.Blocked("low on memory"), commands.Connection.Unblocked(), channel=0)
        assert rest == passed + frames(commands.Channel.Close(404, "NOT_FOUND", 60, 40))

    def test_what_is_not_amqp_goes_on_as_it_is(self) -> None:
        assert tapped([b"HTTP/1.1 400 Bad", b" Request"], Told()) == b"HTTP/1.1 400 Bad Request"

    @pytest.mark.parametrize(
        "bad",
        [
            frame(2, b"\0\x3c"),
            frame(1, b"\0\x3c\0\x50\0\0"),
            frame(1, b"\0\x3c\0\x78"),
            frame(1, b"\0\x3c\0\x1e\2\xff\xff"),
            frame(1, b"\0\x3c\0\x32\1\x38\3abc"),
            b"\3\0\1\xff\xff\xff\xff" + b"x" * 100,
        ],
        ids=["header", "ack", "nack", "cancel", "return", "endless"],
    )
    @pytest.mark.parametrize("size", [1, 7, 1000])
    def test_a_frame_that_is_not_what_its_head_says_is_for_aiormq(self, bad: bytes, size: int) -> None:
        told, stream = Told(), delivery(b"one") + bad + delivery(b"two")
        rest = tapped([stream[at : at + size] for at in range(0, len(stream), size)], told)
        assert (told.data, rest) == ([b"one"], bad + delivery(b"two"))

    @pytest.mark.parametrize("size", [1, 10, 1000])
    def test_a_method_is_not_looked_for_beyond_its_frame(self, size: int) -> None:
        told, stream = Told(), frame(1, b"\0")[:-1] + b"\x3c" + b"\0\x3c\0" * 20
        rest = tapped([stream[at : at + size] for at in range(0, len(stream), size)], told)
        assert (told.data, told.events, rest[:9]) == ([], [], stream[:9])

    def test_aiormq_hears_a_sign_of_life_though_all_is_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(amqp_frames, "SIGN_OF_LIFE_S", -1.0)
        assert tapped([delivery(b"one"), delivery(b"two")], Told()) == HEARTBEAT * 2
        assert tapped([delivery(b"half")[:20]], Told()) == b"", "nothing has come yet, least of all to a handshake"

    @pytest.mark.parametrize("size", [1, 4088, 4089, 65_536])
    def test_what_we_write_is_amqp(self, size: int) -> None:
        data = bytes(range(256)) * (size // 256 + 1)
        data = data[:size]
        written = b"".join(Publishing(5, 4096, "coordd.x", "b.2", mandatory=True).frames(data))
        body, at, found = b"", 0, []
        while at < len(written):
            consumed, channel, frame = unmarshal(written[at:])
            at += consumed
            assert channel == 5
            found.append(frame)
            if isinstance(frame, ContentBody):
                assert len(frame.value) <= 4096 - 8
                body += frame.value
        assert isinstance(found[0], commands.Basic.Publish)
        assert (found[0].exchange, found[0].routing_key, found[0].mandatory) == ("coordd.x", "b.2", True)
        assert isinstance(found[1], header.ContentHeader)
        assert found[1].body_size == size
        assert body == data


def test_what_is_not_confirmed_in_time_is_its_owners_again(
    own_server: servers.Rabbit, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp_session, "CONFIRM_S", 0.2)

    async def main() -> None:
        a = AmqpBus([own_server.url], "a.1", cluster=cluster, heartbeat_s=1)
        said: list[bool] = []
        async with receiving(a):
            own_server.pause()
            try:
                a.publish(b"hanging", said.append)
                await until(lambda: said)
            finally:
                own_server.resume()
            assert said == [False]
            a.publish(b"flows again", said.append)
            await until(lambda: len(said) == 2)
        assert len(said) == 2

    run(main)


def test_a_broker_that_hangs_is_given_up(own_server: servers.Rabbit, cluster: str) -> None:
    async def main() -> None:
        a = AmqpBus([own_server.url], "a.1", cluster=cluster, heartbeat_s=1)
        async with receiving(a) as (heard_a,):
            own_server.pause()
            try:
                await until(lambda: a.state == "disconnected")
                assert "has sent nothing for 2 s" in a.error
            finally:
                own_server.resume()
            await until(lambda: a.state == "connected")
            assert heard_a.ups == [True, False, True]

    run(main)


def test_a_node_that_has_become_deaf_notices(rabbit_url: str, cluster: str) -> None:
    """An operator has deleted the exchange and made it again. Every connection works, and no queue is bound."""

    async def exchange_anew(channel: Any) -> None:
        await channel.exchange_delete(f"coordd.{cluster}")
        await channel.declare_exchange(f"coordd.{cluster}", "fanout", durable=True)

    async def main() -> None:
        a, b = (AmqpBus([rabbit_url], name, cluster=cluster, heartbeat_s=1) for name in ("a.1", "b.2"))
        async with receiving(a, b) as (heard_a, heard_b):
            await talk(a, heard_b, b"before")
            await trio.to_thread.run_sync(raw, rabbit_url, exchange_anew)
            a.publish(b"into the void")
            await until(lambda: heard_a.ups == [True, False, True])
            assert heard_b.ups == [True], "it has said nothing yet that could come back"
            await talk(b, heard_a, b"deaf, not dumb")
            await until(lambda: heard_b.ups == [True, False, True])
            await talk(a, heard_b, b"after")

    run(main)


def test_a_broker_of_a_cluster_that_dies(cluster: str) -> None:
    """Our queue is on our broker. The queue dies with that broker, and is created again on another broker."""
    with servers.rabbit_cluster() as brokers:

        async def main() -> None:
            urls = brokers.urls
            a = AmqpBus(urls[:1], "a.1", cluster=cluster)
            b = AmqpBus(urls[1:2], "b.2", cluster=cluster)
            roaming = AmqpBus(urls, "r.3", cluster=cluster, rng=random.Random(1))
            async with receiving(a, b, roaming) as (heard_a, heard_b, heard_roaming):
                await talk(a, heard_b, b"across")
                await talk(roaming, heard_a, b"from everywhere")
                used = await trio.to_thread.run_sync(broker_of, brokers, "coordd r.3")
                used.kill()
                await until(lambda: heard_roaming.ups == [True, False, True])
                others = [listener for url, listener in zip(urls, (heard_a, heard_b), strict=False) if url != used.url]
                assert others
                for listener in others:
                    await talk(roaming, listener, b"from another broker")

        run(main)


def broker_of(brokers: servers.RabbitCluster, connection: str) -> servers.Rabbit:
    """The broker node that a client is connected to."""
    listed = brokers.nodes[0].ctl("list_connections", "pid", "client_properties")
    line = next(line for line in listed.splitlines() if connection in line)
    return next(node for node in brokers.nodes if node.name in line)
