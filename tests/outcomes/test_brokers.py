"""Sinks on a real RabbitMQ and a real Redis."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import pytest
import redis
from aio_pika.abc import AbstractIncomingMessage
from support import servers

from coordd.errors import UnavailableError
from coordd.outcomes import brokers
from outcomes.test_files import END, sent

OPEN: dict[str, Any] = {"password_file": "", "ca": ""}


def secret(tmp_path: Path, text: str) -> str:
    path = tmp_path / "password"
    path.touch(mode=0o600)
    path.write_text(text)
    return str(path)


def test_a_queue_has_the_message_and_an_absent_one_is_a_failure(rabbit_server: servers.Rabbit) -> None:
    url = rabbit_server.vhost("outcomes").replace("guest:guest@", "")
    absent = sent(f"{url}?queue=ends")
    assert (absent.returncode, "the broker has no queue for queue 'ends'" in absent.stderr) == (1, True)

    async def through_a_queue() -> AbstractIncomingMessage | None:
        async with await aio_pika.connect(rabbit_server.url + "outcomes") as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("ends", durable=True)
            await asyncio.to_thread(lambda: brokers.to_amqp(f"{url}?queue=ends", END["id"], json.dumps(END), **OPEN))
            return await queue.get(timeout=30)

    message = asyncio.run(through_a_queue())
    assert message is not None
    assert (message.message_id, json.loads(message.body), message.delivery_mode) == (END["id"], END, 2)


def test_a_stream_and_a_hash(redis_server: servers.Redis, tmp_path: Path) -> None:
    parts = urlsplit(redis_server.url)
    with redis.Redis(host=str(parts.hostname), port=int(parts.port or 0)) as client:
        client.execute_command("ACL", "SETUSER", "sinks", "on", ">word", "~*", "+@all")
        base = f"redis://sinks@{parts.hostname}:{parts.port}/0"
        text = json.dumps(END)
        for way in ("stream=outcomes-s", "hash=outcomes-h"):
            for _ in "12":
                brokers.to_redis(f"{base}?{way}", END["id"], text, password_file=secret(tmp_path, "word"), ca="")
        assert [json.loads(said[b"outcome"]) for _, said in client.xrange("outcomes-s")] == [END, END]
        assert client.hgetall("outcomes-h") == {END["id"].encode(): text.encode()}
        for attempt in (1, 0):  # the call about the first attempt comes again, late
            later = json.dumps({**END, "attempt": attempt})
            password = secret(tmp_path, "word")
            brokers.to_redis(f"{base}?hash=outcomes-h", END["id"], later, password_file=password, ca="")
        assert json.loads(client.hgetall("outcomes-h")[END["id"].encode()])["attempt"] == 1
        client.delete("outcomes-s", "outcomes-h")

        with pytest.raises(redis.exceptions.RedisError):
            brokers.to_redis(f"{base}?hash=h", "x", text, password_file=secret(tmp_path, "wrong"), ca="")
        (tmp_path / "password").chmod(0o644)
        with pytest.raises(UnavailableError, match="password"):
            brokers.to_redis(f"{base}?hash=h", "x", text, password_file=str(tmp_path / "password"), ca="")
