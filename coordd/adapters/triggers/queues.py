"""Which queue, stream or database a trigger names, and with which login."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence

from coordd.adapters import secrets
from coordd.adapters.bus.aio import OnDemand
from coordd.config.sections import ClusterConfig
from coordd.core.jobs.trigger import REDIS, Trigger
from coordd.ports import MessageQueue


class MessageQueues:
    """Opens the queues and the streams of triggers."""

    def __init__(self, cluster: Callable[[], ClusterConfig]) -> None:
        """``cluster``: [cluster] of the configuration that is in force: authorities and certificates."""
        self._cluster = cluster
        self._aio = OnDemand("triggers")

    async def run(self) -> None:
        """Serve for ever. The thread of asyncio begins with the first call of an AMQP queue."""
        await self._aio.run()

    def program(self, trigger: Trigger, rows_max: int) -> tuple[Sequence[str], bytes]:
        """What asks a database: its argv, and what it reads, the password too."""
        asked = {
            "url": trigger.url,
            "query": trigger.query,
            "password": _password(trigger),
            "timeout_s": trigger.timeout_s,
            "rows_max": rows_max,
        }
        argv = (sys.executable, "-I", "-m", "coordd.adapters.triggers.sql_program")
        return argv, json.dumps(asked).encode()

    def open(self, job: str, trigger: Trigger) -> MessageQueue:
        """It connects when it is read."""
        # A node without such triggers loads neither library.
        if trigger.kind == REDIS:
            from coordd.adapters.triggers.redis_stream import RedisStream

            return RedisStream(
                trigger.url,
                trigger.stream,
                f"coordd:{self._cluster().name}:{job}:{trigger.name}",
                password=lambda: _password(trigger),
                tls=lambda: secrets.redis_tls(trigger.url, self._cluster()),
            )
        from coordd.adapters.triggers.amqp_queue import AmqpQueue

        return AmqpQueue(
            trigger.url,
            trigger.queue,
            f"coordd trigger {self._cluster().name}/{job}/{trigger.name}",
            aio=self._aio.get,
            password=lambda: _password(trigger),
            tls=lambda: secrets.tls_of(trigger.url, self._cluster()),
        )


def _password(trigger: Trigger) -> str:
    return secrets.password(trigger.password_file, "") if trigger.password_file else ""
