"""Which queue or stream a trigger names, and with which login."""

from __future__ import annotations

from collections.abc import Callable

import trio

from coordd.adapters import secrets
from coordd.config.sections import ClusterConfig
from coordd.core.jobs.trigger import Trigger
from coordd.ports import MessageQueue


class MessageQueues:
    """Opens the queues and the streams of triggers."""

    def __init__(self, cluster: Callable[[], ClusterConfig]) -> None:
        """``cluster``: [cluster] of the configuration that is in force: authorities and certificates."""
        self._cluster = cluster

    async def run(self) -> None:
        """Serve for ever."""
        await trio.sleep_forever()

    def open(self, job: str, trigger: Trigger) -> MessageQueue:
        """It connects when it is read."""
        from coordd.adapters.triggers.redis_stream import RedisStream  # a node without such triggers loads no redis-py

        group = f"coordd:{self._cluster().name}:{job}:{trigger.name}"

        def password() -> str:
            return secrets.password(trigger.password_file, "") if trigger.password_file else ""

        return RedisStream(
            trigger.url,
            trigger.stream,
            group,
            password=password,
            tls=lambda: secrets.redis_tls(trigger.url, self._cluster()),
        )
