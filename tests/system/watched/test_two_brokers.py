"""Two real RabbitMQs: messages of other processes go to the one that lives, and triggers consume from both."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aio_pika
import pytest
from support import servers

from coordd.adapters.publishing.amqp_link import REPEATED
from system.lab.cluster import Cluster, Node, cluster_of
from system.lab.processes import until

pytestmark = pytest.mark.production

KEEPER = "import os, sys; open(sys.argv[1], 'a').write(os.environ['COORDD_RUN'] + '\\n')"


class Sent(NamedTuple):
    """A message as a broker has it."""

    ident: str
    again: bool
    body: bytes


class Broker(NamedTuple):
    """A RabbitMQ that the test may kill."""

    server: servers.Rabbit

    @property
    def address(self) -> str:
        return self.server.url.replace("guest:guest@", "")

    def taken(self, name: str, *put: str) -> list[Sent]:
        """Declare the queue, put these texts into it (its id is the text), or take what is there in its order."""
        return asyncio.run(self._taken(name, put))

    async def _taken(self, name: str, put: tuple[str, ...]) -> list[Sent]:
        async with await aio_pika.connect(self.server.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name, durable=True)
            for what in put:
                body = b'{"what": "%b"}' % what.encode()
                message = aio_pika.Message(body, message_id=what, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                await channel.default_exchange.publish(message, name)
            found: list[Sent] = []
            while not put and (taken := await queue.get(no_ack=True, fail=False)) is not None:
                found.append(Sent(str(taken.message_id), bool(taken.headers.get(REPEATED, False)), taken.body))
            return found


@pytest.fixture
def brokers() -> Iterator[tuple[Broker, Broker]]:
    with contextlib.closing(servers.Rabbit()) as one, contextlib.closing(servers.Rabbit(mapper=one.mapper)) as two:
        for server in (one, two):
            server.launch()
        for server in (one, two):
            server.ready()
        made = Broker(one), Broker(two)
        for broker in made:
            broker.taken("ops")
            broker.taken("bare")
            broker.taken("brief")
            broker.taken("orders", "first")
        yield made


def configure(cluster: Cluster, first: Broker, second: Broker, kept: Path) -> None:
    """Two destinations at both brokers, and a job for the orders of each of them."""
    keeper = [sys.executable, "-I", "-S", "-c", KEEPER, str(kept)]
    for node in cluster.nodes:
        node.settings = "".join(
            [
                f'[publish.{name}]\nto = ["{first.address}?queue={name}", "{second.address}?queue={name}"]\n'
                f'attempts = 2\ndelay = "0.2s"\ntimeout = "10s"\n{more}\n'
                for name, more in (("ops", f"fallback = {keeper}"), ("bare", '[publish.local]\nto = "events"'))
            ]
        )
        node.settings += (
            f'[publish.brief]\nto = "{first.address}?queue=brief"\nexpires = "1s"\nattempts = 20\ndelay = "0.5s"\n'
        )
    for name, broker in (("east", first), ("west", second)):
        cluster.job(name, "sleep", 0, overlap="allow", params={"what": ""})
        trigger = (
            f'kind = "amqp"\nurl = "{broker.address}"\nqueue = "orders"\nargs = {{ what = "{{trigger.body.what}}" }}'
        )
        with (cluster.jobs_dir / f"{name}.toml").open("a") as file:
            file.write(f"[[trigger]]\n{trigger}\n")


def runs(cluster: Cluster, job: str, count: int) -> None:
    def ended() -> bool:
        return [row["state"] for row in cluster.rows() if row["job"] == job] == ["success"] * count

    until(ended, why=f"{count} runs of {job}")


def listed(node: Node, name: str) -> dict[str, object]:
    return next(dict(one) for one in node.call("message.list") if one["name"] == name)


def published(node: Node, to: str) -> str:
    said = node.call("publish", to=to, body="x")
    assert said["durable"] == "ledger"
    return str(said["id"])


def first_ones(cluster: Cluster) -> list[str]:
    """Two messages, while all is well: one by its own id, asked for on both nodes, and one from a shell."""
    one, two = cluster.nodes
    said = one.call("publish", to="ops", body={"a": 1}, id="1")
    assert said == {"id": "hook~publish.ops#1", "durable": "ledger"}
    assert two.call("publish", to="ops", body={"a": 1}, id="1")["id"] == said["id"]
    accepted = [said["id"], two.coordctl("publish", "ops", "-", text="from a shell").stdout.strip()]
    cluster.becomes(accepted[-1], "success")
    cluster.becomes(two.call("publish", to="local", body="x")["id"], "success")
    return accepted


def test_what_is_accepted_reaches_the_broker_that_lives_or_is_listed_and_both_are_consumed(
    brokers: tuple[Broker, Broker],
) -> None:
    first, second = brokers
    with cluster_of(2) as cluster:
        configure(cluster, first, second, cluster.path / "kept")
        cluster.start()
        one, two = cluster.nodes
        runs(cluster, "east", 1)
        runs(cluster, "west", 1)

        # A broker is killed, and then a node: all arrive at the other one.
        accepted = first_ones(cluster)
        first.server.kill()
        accepted += [published(node, "ops") for node in (one, two, one, two, one)]
        one.kill_family()
        second.taken("orders", "second")
        cluster.becomes(accepted[-1], "success")
        late = second.taken("ops")
        runs(cluster, "west", 2)
        until(lambda: listed(two, "ops")["waiting"] == 0, why="the node knows it too")
        assert listed(two, "ops")["given_up"] == 0

        # The last broker too, and the node between accepting and publishing.
        second.server.kill()
        given_up, kept = published(two, "bare"), published(two, "ops")
        two.kill_family()
        one.start()
        two.start()
        cluster.becomes(kept, "success")
        assert (cluster.path / "kept").read_text().split() == [kept], "the fallback has it"
        until(lambda: [row for row in one.call("deadletter.list") if row["run"] == given_up], why="a dead letter")
        assert listed(one, "bare")["given_up"] == 1
        assert any(listed(node, "bare")["failing"] for node in cluster.nodes)
        waited = out_of_time(one)

        # Both come back: what waits there is consumed, and what was given up is sent.
        for broker in brokers:
            broker.server.launch()
        for broker in brokers:
            broker.server.ready()
        in_order_and_none_lost(accepted, first.taken("ops"), late)
        for run in (given_up, waited):
            one.call("deadletter.replay", id=run)
            cluster.becomes(run, "success")
        assert {sent.ident for sent in first.taken("bare") + second.taken("bare")} == {given_up}
        assert [sent.ident for sent in first.taken("brief")] == [waited], "a person wants it still"
        first.taken("orders", "second")
        runs(cluster, "east", 2)
        assert one.call("deadletter.list") == []
        checks = {said["check"]: said["text"] for said in two.call("doctor")}
        assert checks["publish local"] == "messages go to events"


def out_of_time(node: Node) -> str:
    """Two messages for a broker that is dead: their time passes, of the second one while it waits for the first. A
    person drops the first; answers the second.
    """
    first, second = published(node, "brief"), published(node, "brief")

    def letters() -> dict[str, dict[str, Any]]:
        return {one["run"]: one for one in node.call("deadletter.list", job="hook~publish.brief")}

    until(lambda: {*letters()} == {first, second}, why="both are dead letters")
    for letter in letters().values():
        assert (letter["kind"], letter["state"], letter["exit_code"]) == ("message", "failure", 75)
        assert letter["reason"] == "exit code 75: error: it has expired: nobody took it within 1 s"
    assert (letters()[second]["attempts"], listed(node, "brief")["given_up"]) == (1, 2)
    node.call("deadletter.discard", id=first, note="nobody needs it")
    assert {*letters()} == {second}
    return second


def in_order_and_none_lost(accepted: list[str], early: list[Sent], late: list[Sent]) -> None:
    """``early``, ``late``: what the two brokers have. A second copy says that it is one."""
    assert [(sent.ident, sent.body) for sent in early[:2]] == [
        *zip(accepted, (b'{"a": 1}', b"from a shell"), strict=False)
    ]
    assert {sent.ident for sent in early + late} == set(accepted)
    for found in (early, late):
        order = [accepted.index(sent.ident) for sent in found if not sent.again]
        assert order == sorted(order)
    for ident in accepted:
        assert [sent.again for sent in early + late if sent.ident == ident].count(False) <= 1
