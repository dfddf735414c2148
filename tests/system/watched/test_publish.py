"""`publish` on real daemons: each message arrives at a real RabbitMQ, also if its node dies or the queue is late."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import aio_pika
import pytest

from system.lab.cluster import Cluster, cluster_of
from system.lab.processes import LIMIT_S, ROOT, until

pytestmark = pytest.mark.production


class Queue:
    """A queue of the broker, and what has arrived there."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name
        self.arrived: dict[str, bytes] = {}  # by id

    async def _look(self) -> None:
        async with await aio_pika.connect(self._url) as connection:
            queue = await (await connection.channel()).declare_queue(self._name, durable=True)
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                self.arrived[str(message.message_id)] = message.body

    def look(self) -> dict[str, bytes]:
        """Declare it, and take what is there."""
        asyncio.run(self._look())
        return self.arrived


def letters(cluster: Cluster) -> list[dict[str, Any]]:
    return [one for one in cluster.nodes[1].call("deadletter.list") if one["kind"] == "message"]


def test_a_message_arrives_although_its_node_dies_and_what_is_given_up_is_replayed() -> None:
    with cluster_of(2, backend="production") as cluster:
        rabbit, name = cluster.production.rabbit.url, f"ops-{cluster.path.name}"
        queue, there = Queue(rabbit, name), f"{rabbit.replace('guest:guest@', '')}?queue={name}"
        for node in cluster.nodes:
            node.settings = (
                f'[publish.ops]\nto = ["amqp://127.0.0.1:1/?queue=q", "{there}"]\nattempts = 2\ndelay = "0.2s"\n'
                '[publish.local]\nto = "events"\n'
            )
        cluster.start()
        one, two = cluster.nodes

        said = one.call("publish", to="ops", body={"a": 1}, id="1")
        assert said == {"id": "hook~publish.ops#1", "durable": "ledger"}
        until(lambda: letters(cluster), why="the broker has no such queue: a dead letter")
        assert queue.look() == {}
        two.call("deadletter.replay", id=letters(cluster)[0]["id"])
        until(queue.look, why="the queue is there now")
        assert queue.arrived == {said["id"]: b'{"a": 1}'}
        assert two.call("publish", to="ops", body={"a": 1}, id="1")["id"] == said["id"]

        program = "from coordd.cli.coordctl import main; main()"
        client = [sys.executable, "-c", program, "publish", "ops", "-", "--socket", str(one.socket)]
        done = subprocess.run(
            client, input="from a shell", cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        one.kill_family()
        ident = done.stdout.strip()
        assert ident.startswith("hook~publish.ops#"), done.stderr
        until(lambda: ident in queue.look(), why="the other node sends it")
        assert queue.arrived[ident] == b"from a shell"
        assert len(queue.arrived) == 2
        cluster.becomes(two.call("publish", to="local", body="x")["id"], "success")
        assert letters(cluster) == []
        checks = {one["check"]: one["text"] for one in two.call("doctor")}
        assert checks["publish local"] == "messages go to events"
