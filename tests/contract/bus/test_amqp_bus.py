"""RabbitMQ only: brokers that die, refuse, block or close, and the frames that our own code reads."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import ssl
from collections.abc import Callable
from typing import Any

import aio_pika
import pytest
import trio
from support import servers
from support.servers.rights import rabbit_regex

from contract.bus.listeners import DEADLINE_S, Hung, receiving, run, talk, until
from coordd.adapters.bus import amqp_session
from coordd.adapters.bus.aio import Crossing
from coordd.adapters.bus.amqp_bus import AmqpBus
from coordd.adapters.bus.where import of_amqp
from coordd.core.wire.envelope import SEALED_BYTES_MAX
from coordd.errors import ConfigError, UnavailableError

_clusters = itertools.count()


@pytest.fixture
def cluster() -> str:
    return f"amqp-{next(_clusters)}"


@pytest.fixture(params=[True, False], ids=["lane", "thread"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bus of the test reads its socket in trio's thread, or in asyncio's."""
    monkeypatch.setitem(globals(), "AmqpBus", functools.partial(AmqpBus, lane=request.param))


both_ways = pytest.mark.usefixtures("way")


@pytest.fixture
def own_server(own_rabbit: servers.Rabbit) -> servers.Rabbit:
    return own_rabbit


def raw(url: str, work: Callable[[Any], Any]) -> Any:
    """Perform an action of another client at the broker. ``work`` gets an open channel."""

    async def main() -> Any:
        async with await aio_pika.connect(url, timeout=20) as connection, connection.channel() as channel:
            return await work(channel)

    return asyncio.run(main())


@both_ways
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


@both_ways
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


@both_ways
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


@both_ways
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


@both_ways
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


@both_ways
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


@both_ways
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


@pytest.mark.parametrize("lane", [True, False])
def test_gossip_crosses_a_thread_only_without_a_lane(
    rabbit_url: str, cluster: str, lane: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    crossed: list[object] = []
    for name in ("put", "put_newest"):
        whole = getattr(Crossing, name)

        def put(crossing: Crossing[Any], item: Any, size: int = 0, whole: Callable[..., Any] = whole) -> Any:
            crossed.append(item if isinstance(item, bytes) else item.data)
            return whole(crossing, item, size)

        monkeypatch.setattr(Crossing, name, put)

    async def main() -> None:
        a, b = (AmqpBus([rabbit_url], name, cluster=cluster, lane=lane) for name in ("a.1", "b.2"))
        said: list[bool] = []
        async with receiving(a, b) as (heard_a, heard_b):
            a.publish(b"to all")
            b.send("a.1", b"to one")
            await until(lambda: heard_a.messages and heard_b.messages)
            a.publish(b"must arrive", said.append)
            await until(lambda: said and b"must arrive" in heard_b.messages)
            assert (heard_a.messages, said) == ([b"to one"], [True])
        counted = [[bus.statistics()[key] for key in ("sent", "delivered", "dropped")] for bus in (a, b)]
        assert counted == [[2, 1, 0], [1, 2, 0]]

    run(main)
    messages = {b"to all", b"to one", b"must arrive"}
    assert messages & set(crossed) == ({b"must arrive"} if lane else messages)


def test_a_core_that_hangs_on_a_lane_holds_nothing_and_hears_again(rabbit_url: str, cluster: str) -> None:
    """The broker keeps the newest messages of a node that does not read; nobody calls that broker silent."""
    a, b = (
        AmqpBus([rabbit_url], "a.1", cluster=cluster),
        AmqpBus([rabbit_url], "hung.2", cluster=cluster, heartbeat_s=1),
    )
    hung = Hung(b)
    reasons: list[str] = []
    noting(b, reasons)

    async def main() -> None:
        async with receiving(a), trio.open_nursery() as nursery:
            nursery.start_soon(hung.run)
            try:
                await until(lambda: b.state == "connected")
                while not hung.caught.is_set():
                    a.publish(b"first")
                    await trio.sleep(0.01)
                for n in range(1000):
                    a.publish(b"%d" % n * 1000)
                    await trio.sleep(0.003)  # longer than two heartbeats in all
                assert b.statistics()["waiting"] == 0
            finally:
                hung.go_on.set()
            while b"last" not in hung.heard:
                a.publish(b"last")
                await trio.sleep(0.05)
        assert not [reason for reason in reasons if "sent nothing" in reason]

    run(main)


@both_ways
def test_messages_of_every_size_leave_in_order(rabbit_url: str, cluster: str) -> None:
    messages = [bytes([number]) * size for number, size in enumerate([1, 60_000, 2, 4096, 65_536, 3] * 20)]

    async def main() -> None:
        a, b = (AmqpBus([rabbit_url], name, cluster=cluster) for name in ("a.1", "b.2"))
        async with receiving(a, b) as (_, heard_b):
            for data in messages:
                a.publish(data)
            await until(lambda: len(heard_b.messages) == len(messages))
            assert heard_b.messages == messages

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


NO_HOSTS = ("mq..example.com", "m" * 64, "mq-ü_1", ".mq", "<broker>", "{{host}}")


@both_ways
class TestHostsThatCannotBeAsked:
    @pytest.mark.parametrize("host", NO_HOSTS)
    def test_such_a_host_is_a_reason_and_no_end(self, cluster: str, host: str) -> None:
        async def main() -> None:
            bus = AmqpBus([f"amqp://{host}:5672"], "a.1", cluster=cluster, rng=random.Random(1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bus.receive, lambda _data: None, lambda _name: None)
                await until(lambda: bus.error)
                assert bus.state == "disconnected"
                assert host in bus.error
                nursery.cancel_scope.cancel()

        run(main)

    @pytest.mark.parametrize("host", NO_HOSTS)
    def test_the_others_are_asked(self, cluster: str, host: str) -> None:
        async def main() -> None:
            asked: list[None] = []

            async def close(_stream: trio.SocketStream) -> None:
                asked.append(None)

            async with trio.open_nursery() as nursery:
                (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                nursery.start_soon(trio.serve_listeners, close, [listener])
                port = listener.socket.getsockname()[1]
                bus = AmqpBus([f"amqp://{host}:5672", f"amqp://127.0.0.1:{port}"], "a.1", cluster=cluster)
                nursery.start_soon(bus.receive, lambda _data: None, lambda _name: None)
                await until(lambda: len(asked) > 1)
                nursery.cancel_scope.cancel()

        run(main)

    @pytest.mark.parametrize("raised", [RuntimeError("no such luck"), asyncio.CancelledError()])
    def test_whatever_the_library_raises_is_a_reason(
        self, cluster: str, raised: BaseException, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried: list[None] = []

        async def fail(*_: object) -> None:
            tried.append(None)
            raise raised

        monkeypatch.setattr("coordd.adapters.bus.amqp_bus.AmqpBus._open", fail)

        async def main() -> None:
            bus = AmqpBus(["amqp://mq"], "a.1", cluster=cluster)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bus.receive, lambda _data: None, lambda _name: None)
                await until(lambda: len(tried) > 1)
                assert "RabbitMQ at mq:5672" in bus.error
                nursery.cancel_scope.cancel()

        run(main)
