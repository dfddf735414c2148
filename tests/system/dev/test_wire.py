"""coordctl wire beside real nodes: it verifies and decodes all that they say, names a stranger, and disturbs nobody."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aio_pika
import pytest
import redis
from support import servers

from coordd.cli.wire.reading import Reader
from coordd.cli.wire.taps import RedisTap
from coordd.config.sections import ClusterConfig
from coordd.config.settings import load
from coordd.core.wire import codec
from coordd.core.wire.envelope import SIGN, Envelopes, Key, Keyring
from coordd.core.wire.events import Packet, WorkerBeat
from coordd.errors import UnavailableError
from system.dev.running import Dev, dev
from system.lab.processes import LIMIT_S, ROOT, until


class Wire:
    """`coordctl wire` in the background; ``said`` holds its messages."""

    def __init__(self, cluster: Dev, *args: str) -> None:
        config = str(cluster.place / "n1" / "coordd.toml")
        start = [sys.executable, "-c", "from coordd.cli.coordctl import main; main()"]
        self.process = subprocess.Popen(
            [*start, "wire", "-o", "jsonl", "--config", config, *args],
            cwd=ROOT,
            env={key: value for key, value in os.environ.items() if not key.startswith("COORDD_")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            self._take(self.process.stdout)

    def _take(self, lines: Iterable[str]) -> None:
        self.said.extend(json.loads(line) for line in lines)

    def types(self) -> set[str]:
        return {event["type"] for said in list(self.said) for event in (said["packet"] or {}).get("events", ())}

    def end(self, number: int = 0) -> tuple[int, str]:
        """Returns the exit code and what it said on stderr. ``number``: a signal to send first."""
        self.process.send_signal(number)
        assert self.process.stderr is not None
        with self.process.stderr:
            errors = self.process.stderr.read()
        code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code, errors


def forge(place: Path) -> None:
    """Publish a message that was sealed with a key of our own."""
    config = load(str(place / "n1" / "coordd.toml"), {}).cluster
    bus = config.bus.removeprefix("amqps://").removesuffix("/")
    user, _, address = bus.partition("@")
    password = (place / "bus.password").read_text().strip()
    forged = Envelopes(Keyring((Key("evil", SIGN, b"e" * 32),)), "dev", "x.1").seal(b"\x80")

    async def publish() -> None:
        connection = await aio_pika.connect(
            host=address.partition(":")[0],
            port=int(address.partition(":")[2]),
            login=user,
            password=password,
            ssl=True,
            ssl_context=ssl.create_default_context(cafile=config.tls_ca),
        )
        async with connection:
            exchange = await (await connection.channel()).get_exchange("coordd.dev")
            await exchange.publish(aio_pika.Message(forged), "evil.1")

    asyncio.run(publish())


def test_on_rabbitmq_everything_that_nodes_say_is_verified_and_a_stranger_is_named(place: Path) -> None:
    with dev(place, "--bus", "amqp", "--nodes", "2") as cluster:
        cluster.ready()
        wire = Wire(cluster, "--follow")
        until(lambda: len({said["packet"]["hostname"] for said in list(wire.said)}) == 2, why="both nodes are heard")
        run = cluster.call("n1", "run.trigger", job="long", id="x")["id"]
        until(lambda: cluster.row("n2", run)["state"] == "started", why="the run starts")
        cluster.call("n1", "why", id=run)  # asks the other node, through its inbox
        wanted = {"worker-heartbeat", "worker-elect", "task-received", "task-started", "peer-ask", "peer-answer"}
        until(lambda: wanted <= wire.types(), why=f"it hears {wanted}")
        forge(place)
        until(lambda: not all(said["verified"] for said in list(wire.said)), why="it hears the stranger")
        assert cluster.call("n2", "status")["members"]["alive"] == 2
        code, errors = wire.end(signal.SIGINT)

        assert code == 1, errors
        strangers = [said for said in wire.said if not said["verified"]]
        assert [(said["key"], said["why"], said["packet"]) for said in strangers] == [
            ("evil", "no key of that id in the keyring", None)
        ]
        assert "1 no key of that id in the keyring" in errors
        assert any(said["channel"] != "all" and said["verified"] for said in wire.said), "messages to one node"
        assert not [said["notes"] for said in wire.said if said["notes"]]


def test_on_a_unix_bus_it_listens_as_one_more_socket_and_nobody_minds(place: Path) -> None:
    with dev(place, "--nodes", "2") as cluster:
        cluster.ready()
        wire = Wire(cluster, "--count", "6", "--for", "60")
        code, errors = wire.end()

        assert code == 0, errors
        assert len(wire.said) == 6
        assert {said["packet"]["hostname"] for said in wire.said} == {"n1", "n2"}
        assert [path.name for path in (place / "bus").iterdir() if path.name.startswith("wire")] == []
        assert cluster.call("n1", "status")["members"] == {"alive": 2, "suspect": 0, "lost": 0}


@pytest.fixture(scope="module")
def server() -> Any:
    with servers.redis(requirepass="pw") as running:
        yield running


def test_on_redis_it_hears_everybody_and_the_inboxes_of_those_it_heard(server: servers.Redis, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("pw\n")
    password.chmod(0o600)
    cluster = ClusterConfig(name="prod", bus=server.url, bus_password_file=str(password))
    ring = Keyring((Key("ours", SIGN, b"o" * 32),))
    seals = Envelopes(ring, "prod", "n1.42")
    client = redis.Redis(host=server.host, port=server.port, password="pw")  # noqa: S106  # of a server of this test
    tap, reader = RedisTap(cluster, server.url), Reader("prod", ring)

    def said(channel: str, to: str, seq: int) -> dict[str, Any]:
        payload = codec.encode(Packet(1, "prod", "n1", 42, "1-a", seq, 0, [WorkerBeat(clock=1)]))
        client.publish(channel, b"\x05n1.42" + seals.seal(payload, to))
        raw = until(lambda: tap.read(1.0))
        assert raw is not None
        return reader.read(raw)

    try:
        assert said("coordd:{prod}:all", "all", 1)["verified"] is True
        until(lambda: client.pubsub_numsub("coordd:{prod}:inbox:n1.42")[0][1] == 1, why="its inbox is heard too")
        private = said("coordd:{prod}:inbox:n1.42", "n1.42", 2)
        assert (private["channel"], private["verified"]) == ("n1.42", True)
        assert private["packet"]["events"] == [{"type": "worker-beat", "clock": 1}]
    finally:
        tap.close()
        client.close()


def test_a_wrong_password_is_named(server: servers.Redis) -> None:
    with pytest.raises(UnavailableError, match=r"Redis at 127.0.0.1.*cannot be used: .*[Aa]uth"):
        RedisTap(ClusterConfig(name="prod", bus=server.url), server.url)
