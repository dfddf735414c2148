"""Messages of a real Redis and a real RabbitMQ start runs, each one once, also if the nodes that poll are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aio_pika
import pytest
from redis import Redis

from system.lab.cluster import CallError, Cluster, cluster_of
from system.lab.processes import until

MESSAGES = 12
QUEUE = "triggers-orders"


class Senders:
    """A client of Redis and one of RabbitMQ."""

    def __init__(self, redis_url: str, rabbit_url: str) -> None:
        self.redis = Redis.from_url(redis_url)
        self._rabbit_url = rabbit_url
        asyncio.run(self._publish([]))

    def send(self, first: int, last: int) -> None:
        """The same numbers to both; and to both something that can start nothing."""
        for number in range(first, last):
            self.redis.xadd("orders", {"what": str(number)})
        self.redis.xadd("orders", {"nothing": "useful"})
        numbers = [(b'{"what": %d}' % number, f"m{number}") for number in range(first, last)]
        asyncio.run(self._publish([*numbers, (b"not JSON", f"bad{first}")]))

    async def _publish(self, messages: list[tuple[bytes, str]]) -> None:
        async with await aio_pika.connect(self._rabbit_url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(QUEUE, durable=True)
            for body, ident in messages:
                await channel.default_exchange.publish(aio_pika.Message(body, message_id=ident), QUEUE)

    async def left(self) -> int:
        """Messages of the queue that nobody has acknowledged, without those that a node holds."""
        async with await aio_pika.connect(self._rabbit_url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(QUEUE, passive=True)
            return int(queue.declaration_result.message_count or 0)


@contextlib.contextmanager
def senders(redis_url: str, rabbit_url: str) -> Iterator[Senders]:
    made = Senders(redis_url, rabbit_url)
    yield made
    made.redis.close()


def args_of(cluster: Cluster, job: str) -> Counter[str]:
    """How many runs of the job have ended well with each argument."""
    rows = [row for row in cluster.rows() if row["job"] == job and row["state"] == "success"]
    return Counter(json.loads(row["args"])["what"] for row in rows)


def add_job(cluster: Cluster, name: str, trigger: str) -> None:
    cluster.job(name, "sleep", 0.1, overlap="allow", params={"what": ""})
    with (cluster.jobs_dir / f"{name}.toml").open("a") as file:
        file.write(f'[[trigger]]\n{trigger}\nargs = {{ what = "{{trigger.body.what}}" }}\n')


def shown(cluster: Cluster, job: str) -> dict[str, Any]:
    node = next(one for one in cluster.nodes if one.up)
    return dict(node.call("trigger.show", job=job))


def settled(cluster: Cluster, job: str, messages: int, dead: int) -> dict[str, Any]:
    """Wait until each message is one run, the bad ones are shown, and all are acknowledged. Returns what is shown."""
    expected = {str(number): 1 for number in range(messages)}
    until(lambda: args_of(cluster, job) == expected, why=f"the messages of {job} are taken")

    def look() -> dict[str, Any]:
        seen = shown(cluster, job)
        return seen if (seen["dead"], seen["waiting"]) == (dead, 0) and seen["poller"] else {}

    return until(look, why=f"all of {job} are acknowledged, and {dead} bad ones are shown")


def letters(cluster: Cluster) -> list[str]:
    """The ids of dead messages, as a node tells that may not poll them."""
    node = next(one for one in cluster.nodes if one.up)
    found = [one for one in node.call("deadletter.list") if one["id"].startswith("trigger:")]
    assert {one["kind"] for one in found} <= {"message"}
    return sorted(one["id"] for one in found)


def take_back_the_dead(cluster: Cluster) -> None:
    """There are two of each job: replay one, which dies again, and discard all."""
    node = next(one for one in cluster.nodes if one.up)
    until(lambda: len(letters(cluster)) == 4, why="they are dead letters")
    checks = {one["check"]: one for node in cluster.nodes if node.up for one in node.call("doctor")}
    assert checks["dead messages of entry/redis"]["state"] == "warn"
    entry, message = letters(cluster)[0], letters(cluster)[-1]
    assert "expected JSON" in node.call("deadletter.show", id=message)["reason"]
    assert node.call("deadletter.replay", id=message)["state"] == "waiting"
    until(lambda: len(letters(cluster)) == 4, why="it is put aside again")
    assert node.call("deadletter.replay", id=entry)["state"] == "waiting"
    until(lambda: entry not in letters(cluster) and len(letters(cluster)) == 4, why="it dies again, with another id")
    for one in letters(cluster):
        assert node.call("deadletter.discard", id=one, note="a test")["discarded"]
    until(lambda: letters(cluster) == [], why="nothing is left")
    with pytest.raises(CallError, match="is not a dead letter"):
        node.call("deadletter.discard", id=message, note="a test")


def test_each_message_is_one_run_in_production_also_if_the_poller_dies() -> None:
    with cluster_of(3, backend="production") as cluster:
        redis_url, rabbit_url = (cluster.backend.settings()[name] for name in ("ledger", "bus"))
        secret = cluster.path / "password"
        secret.write_text("guest\n")
        secret.chmod(0o600)
        add_job(cluster, "entry", f'kind = "redis"\nurl = "{redis_url}"\nstream = "orders"')
        named = rabbit_url.replace(":guest@", "@")
        add_job(cluster, "message", f'kind = "amqp"\nurl = "{named}"\nqueue = "{QUEUE}"\npassword_file = "{secret}"')
        jobs = ("entry", "message")
        with senders(redis_url, rabbit_url) as sender:
            sender.send(0, MESSAGES)
            cluster.start()
            seen = [settled(cluster, job, MESSAGES, 1) for job in jobs]
            assert "{trigger.body.what}" in seen[0]["dead_last"][0]["reason"]
            assert "expected JSON" in seen[1]["dead_last"][0]["reason"]

            for poller in {one["poller"] for one in seen}:
                cluster.node(poller).kill()
            sender.send(MESSAGES, 2 * MESSAGES)
            for job in jobs:
                settled(cluster, job, 2 * MESSAGES, 2)
            assert asyncio.run(sender.left()) == 0
            take_back_the_dead(cluster)
            assert asyncio.run(sender.left()) == 0
        rows = Counter(row["job"] for row in cluster.rows())
        assert rows == {"entry": 2 * MESSAGES, "message": 2 * MESSAGES}
