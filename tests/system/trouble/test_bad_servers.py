"""Brokers and Redis servers refuse, block, lie or hang, and strangers send messages on the bus: jobs go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import pytest
from support import servers
from support.servers.rights import rabbit_regex

from coordd.config import keyring
from coordd.core.wire import codec
from coordd.core.wire.envelope import SEALED_BYTES_MAX, Envelopes
from coordd.core.wire.events import AnyEvent, ControlCancel, ControlRevoke, Packet, TaskSucceeded, WorkerHeartbeat
from system.lab.cluster import Cluster, Node, cluster_of
from system.lab.processes import exists, until
from system.lab.secured import TIMING, beats, bus_is, connected, ledger_says, never_twice, trigger

pytestmark = pytest.mark.production

MEGABYTE = 2**20


def at_the_broker(url: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
    """Do ``work`` as another client of the broker; ``work`` gets an open channel. Returns its result."""

    async def main() -> Any:
        async with await aio_pika.connect(url, timeout=20) as connection, connection.channel() as channel:
            return await work(channel)

    return asyncio.run(main())


def succeed(cluster: Cluster, ident: str) -> None:
    """Trigger one run on each node, and wait until each of them has succeeded."""
    for run in [trigger(node, "short", f"{ident}-{node.name}") for node in cluster.nodes]:
        cluster.becomes(run, "success")


# ---- the broker


def test_a_broker_that_refuses_is_named_and_mended_without_a_restart() -> None:
    with cluster_of(3, backend="production", **TIMING) as cluster:
        cluster.job("short", "sleep", 0, overlap="allow")
        rabbit, name = cluster.production.rabbit, cluster.path.name
        typed = rabbit.vhost(f"{name}-type")
        missing = f"{rabbit.url}{name}-missing"
        rabbit.ctl("add_user", name, name)
        powerless = f"amqp://{name}:{name}@{servers.HOST}:{rabbit.port}/{name}-type"
        rabbit.ctl("set_permissions", "-p", f"{name}-type", name, "^$", "^$", "^$")
        exchange = f"coordd.{name}"
        at_the_broker(typed, lambda channel: channel.declare_exchange(exchange, aio_pika.ExchangeType.TOPIC))
        for node, url in zip(cluster.nodes, (typed, missing, powerless), strict=True):
            node.changes["bus"] = url
            node.launch()
        for node in cluster.nodes:
            node.ready()
        bus_is(cluster.nodes[0], "disconnected", "exchange with our name but another type", "delete it")
        bus_is(cluster.nodes[1], "disconnected", "no virtual host", "add_vhost")
        bus_is(cluster.nodes[2], "disconnected", "a right", "set_permissions")
        for node in cluster.nodes:
            assert [c["state"] for c in node.call("doctor") if c["check"] == "bus"] == ["fail"]
        succeed(cluster, "without")
        at_the_broker(typed, lambda channel: channel.exchange_delete(exchange))
        rabbit.vhost(f"{name}-missing")
        rabbit.ctl("set_permissions", "-p", f"{name}-type", name, *[rabbit_regex(name)] * 3)
        for node in cluster.nodes:
            bus_is(node, "connected")
        until(lambda: cluster.nodes[0].status()["members"]["alive"] == 2, why="the two in one virtual host meet")
        succeed(cluster, "with")
        never_twice(cluster)


def test_what_the_broker_takes_away_is_made_anew() -> None:
    with cluster_of(2, backend="production", **TIMING) as cluster:
        cluster.job("short", "sleep", 0, overlap="allow")
        cluster.job("long", "until", cluster.go("go"))
        rabbit, name = cluster.production.rabbit, cluster.path.name
        url = rabbit.vhost(name)
        for node in cluster.nodes:
            node.changes["bus"] = url
        cluster.start()
        run = trigger(cluster.nodes[0], "long", "1")
        pid = cluster.started(run).pid
        for harm in (
            ("close_all_connections", "--vhost", name, "a whim"),
            (
                "eval",
                f'[rabbit_amqqueue:delete(Q, false, false, <<"test">>) || Q <- rabbit_amqqueue:list(<<"{name}">>)].',
            ),
        ):
            before = [node.status()["bus"]["connections"] for node in cluster.nodes]
            rabbit.ctl(*harm)
            until(
                lambda before=before: all(  # type: ignore[misc]  # bound in this turn of the loop
                    n.status()["bus"]["connections"] > b for n, b in zip(cluster.nodes, before, strict=True)
                ),
                why=f"everything is declared again after {harm}",
            )
            connected(cluster)
            succeed(cluster, harm[0])
        assert exists(pid)
        cluster.go("go").touch()
        assert cluster.becomes(run, "success")["attempt"] == 0
        never_twice(cluster)


def test_a_memory_alarm_stops_the_gossip_and_no_job() -> None:
    with cluster_of(2, backend="production", **TIMING) as cluster:
        cluster.job("short", "sleep", 0, overlap="allow")
        cluster.start()
        rabbit = cluster.production.rabbit
        rabbit.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
        try:
            for node in cluster.nodes:
                bus_is(node, "disconnected", "blocks all publishers", "free memory")
            succeed(cluster, "blocked")
            until(lambda: all(node.status()["backlog"]["waiting"] > 0 for node in cluster.nodes), why="it is kept")
        finally:
            rabbit.ctl("set_vm_memory_high_watermark", "absolute", "512MB")
        connected(cluster)
        until(lambda: all(node.status()["backlog"]["waiting"] == 0 for node in cluster.nodes), why="it has left")
        succeed(cluster, "free")
        never_twice(cluster)


class Stranger:
    """A client with access to the broker, which receives and sends on a cluster's exchange."""

    def __init__(self, cluster: Cluster, url: str) -> None:
        self.url = url
        self.exchange = f"coordd.{cluster.path.name}"
        self.queue = f"stranger.{cluster.path.name}"

    def listen(self) -> None:
        async def work(channel: Any) -> None:
            queue = await channel.declare_queue(self.queue)
            await queue.bind(self.exchange)

        at_the_broker(self.url, work)

    def heard(self) -> list[bytes]:
        """All messages since ``listen``."""

        async def work(channel: Any) -> list[bytes]:
            queue = await channel.get_queue(self.queue)
            said = []
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                said.append(message.body)
            return said

        return list(at_the_broker(self.url, work))

    def say(self, *messages: bytes) -> None:
        async def work(channel: Any) -> None:
            exchange = await channel.get_exchange(self.exchange)
            for body in messages:
                await exchange.publish(aio_pika.Message(body), "stranger")

        at_the_broker(self.url, work)


def counted(node: Node, where: str, key: str, least: int) -> None:
    until(lambda: node.status()[where].get(key, 0) >= least, why=f"{node.name} counts {least} {key}")


BOMBS = [b"\x91" * 60_000, b"\xdf\xff\xff\xff\xff" * 1000, b"\xdd\xff\xff\xff\xff", b"\xc1" * 50, b"\x90" * 60_000]


def goes_mad(cluster: Cluster, stranger: Stranger, victim: str, token: int) -> None:
    """Send with a valid key: decoder bombs in envelopes, an absurd clock, false news of other nodes' runs."""
    envelopes = Envelopes(keyring.load(str(cluster.production.keyring), {}), cluster.path.name, "mad.1")
    seq = 0

    def mad(*events: AnyEvent) -> bytes:
        nonlocal seq
        seq += len(events)
        return envelopes.seal(
            codec.encode(Packet(1, cluster.path.name, "mad", 1, "1-0000000000000000", seq, 0, list(events)))
        )

    stranger.say(
        *[envelopes.seal(bomb) for bomb in BOMBS],
        mad(*[WorkerHeartbeat(clock=2**63, timestamp=1e300)]),
        mad(ControlCancel(run="long#nobody", reason="mad"), ControlRevoke(run=victim)),
        mad(TaskSucceeded(uuid="x", run=victim, attempt=0, token=token + 1, clock=1, timestamp=1.0)),
    )
    for node in cluster.nodes:
        counted(node, "counts", "malformed", len(BOMBS) - 1)
        assert node.status()["clock"] < 2**40


def test_strangers_on_the_bus_are_counted_and_nothing_else() -> None:
    with cluster_of(2, backend="production", **TIMING) as cluster:
        cluster.job("short", "sleep", 0, overlap="allow")
        cluster.job("long", "until", cluster.go("go"), overlap="allow")
        rabbit = cluster.production.rabbit
        cluster.start()
        stranger = Stranger(cluster, rabbit.url)
        stranger.listen()
        victim, cancelled = (trigger(cluster.nodes[0], "long", ident) for ident in ("victim", "cancelled"))
        pid = cluster.started(victim).pid
        cluster.started(cancelled)
        cluster.nodes[0].call("run.cancel", id=cancelled)
        cluster.becomes(cancelled, "revoked", "failure")
        succeed(cluster, "recorded")
        recorded = stranger.heard()
        assert len(recorded) > 10

        # Messages without a key: too large, garbage, decoder bombs, forgeries.
        forged = [body[:-1] + bytes([body[-1] ^ 1]) for body in recorded[:20]]
        stranger.say(b"x" * (64 * MEGABYTE), b"x" * (SEALED_BYTES_MAX + 1), *BOMBS, *forged)
        for node in cluster.nodes:
            counted(node, "bus", "rejected", 1)
            counted(node, "bus", "refused_not_sealed", 3)
            counted(node, "bus", "refused_bad_mac", len(forged))

        # Recorded messages, sent again and again: their seals are valid.
        stranger.say(*recorded, *reversed(recorded))
        for node in cluster.nodes:
            counted(node, "counts", "refused", len(recorded) // 2)

        row = cluster.row(victim)
        goes_mad(cluster, stranger, victim, row["token"])
        connected_again = [node.status()["bus"]["connections"] for node in cluster.nodes]
        succeed(cluster, "after")
        assert [node.status()["bus"]["connections"] for node in cluster.nodes] == connected_again == [1, 1]
        assert exists(pid)
        assert cluster.row(victim)["state"] == "started"
        assert (cluster.row(victim)["token"], cluster.row(victim)["nonce"]) == (row["token"], row["nonce"])
        cluster.go("go").touch()
        assert cluster.becomes(victim, "success")["attempt"] == 0
        never_twice(cluster)


# ---- Redis


def test_a_redis_that_cannot_hold_a_ledger_is_named_and_nothing_runs_twice() -> None:
    with cluster_of(2, backend="production", **TIMING) as cluster:
        cluster.job("short", "sleep", 0, overlap="allow")
        cluster.job("held", "until", cluster.go("go"), on_lost="hold")
        redis = cluster.production.redis
        first = cluster.start().nodes[0]
        for node in cluster.nodes:
            node.ledger_is("connected")
        run = trigger(first, "held", "1")
        pid = cluster.started(run).pid

        def configure(key: str, value: str) -> None:
            assert redis.cli("CONFIG", "SET", key, value) == "OK"

        def through(ident: str, words: tuple[str, ...], harm: Callable[[], object], mend: Callable[[], object]) -> None:
            """Harm Redis, trigger a run, see that the node names the cause, mend Redis, see that the run runs once."""
            harm()
            asked = first.call("run.trigger", job="short", id=ident)
            assert asked["durable"] == "node"
            ledger_says(first, *words)  # a full Redis still answers reads: the other node may not notice
            said = first.why(asked["id"])
            assert all(word in said for word in words), said
            assert not cluster.starts(asked["id"])
            mend()
            for node in cluster.nodes:
                node.ledger_is("connected")
            cluster.becomes(asked["id"], "success")
            assert len(cluster.starts(asked["id"])) == 1

        configure("maxmemory-policy", "allkeys-lru")
        warned = [c for c in first.call("doctor") if "maxmemory-policy is allkeys-lru" in c["text"]]
        assert "warn" in [c["state"] for c in warned]
        configure("maxmemory-policy", "noeviction")

        through("full", ("memory is full",), lambda: configure("maxmemory", "1"), lambda: configure("maxmemory", "0"))
        through(
            "slow",
            ("no answer in time",),
            lambda: redis.cli("CLIENT", "PAUSE", "600000", "WRITE"),
            lambda: redis.cli("CLIENT", "UNPAUSE"),
        )

        nobody = str(servers.free_port())

        def mend() -> None:
            redis.cli("REPLICAOF", "NO", "ONE")
            for node in cluster.nodes:
                node.ledger_is("recovering")  # the ledger may have lost something
            assert "went back or was replaced" in first.why("short")
            cluster.production.ledger().accept_epoch()  # a person knows that nothing is lost

        through("replica", ("replica",), lambda: redis.cli("REPLICAOF", servers.HOST, nobody), mend)
        beats(cluster, run)
        assert exists(pid)
        cluster.go("go").touch()
        assert cluster.becomes(run, "success")["attempt"] == 0
        never_twice(cluster)


def test_a_running_job_outlives_a_full_redis_and_its_success_is_recorded_there() -> None:
    """Redis is full for longer than a lease. Without renewals the job would end: its policy is to be relaunched."""
    with cluster_of(2, backend="production", **TIMING) as cluster:
        cluster.job("short", "sleep", 0, overlap="allow")
        for job in ("renewed", "cancelled"):
            cluster.job(job, "until", cluster.go(job))
        redis = cluster.production.redis
        first = cluster.start().nodes[0]
        for node in cluster.nodes:
            node.ledger_is("connected")
        run, other = trigger(first, "renewed", "1"), trigger(first, "cancelled", "1")
        pid, other_pid = cluster.started(run).pid, cluster.started(other).pid
        beats(cluster, run, 1)

        assert redis.cli("CONFIG", "SET", "maxmemory", "1") == "OK"
        waits = first.call("run.trigger", job="short", id="waits")["id"]
        ledger_says(first, "memory is full", "runs that are under way go on")
        beats(cluster, run, 2 * round(TIMING["lease"] / TIMING["renew"]))
        assert exists(pid)
        assert exists(other_pid)
        first.call("run.cancel", id=other)
        cluster.becomes(other, "revoked")
        cluster.go("renewed").touch()
        assert cluster.becomes(run, "success")["attempt"] == 0
        assert not cluster.starts(waits)

        assert redis.cli("CONFIG", "SET", "maxmemory", "0") == "OK"
        cluster.becomes(waits, "success")
        assert [len(cluster.starts(each)) for each in (run, other, waits)] == [1, 1, 1]
        never_twice(cluster)
