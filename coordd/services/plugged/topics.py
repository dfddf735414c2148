"""The topics of elections that packages bring: the node that is first in such an election calls the handler.

A handler is a process with a time limit. The ledger knows nothing of it: two parts of a cluster that do not hear each
other may both call one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import structlog
import trio

from coordd.core.ready import Elected
from coordd.plugins import TOPICS
from coordd.plugins.installed import points, unfit
from coordd.services.control.doctor import WARN, Check, check
from coordd.services.driver import Driver
from coordd.services.plugged.process import Plugged, finished

log = structlog.get_logger("topics")

# What a topic may be called.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)

# How long (seconds) a handler may take, its bytes of memory for data, and how many run at a time. Further elections
# wait.
TIMEOUT_S = 60.0
MEMORY = 2**30
AT_A_TIME = 4
WAITING_MAX = 100


class Topics:
    """The handlers that are installed. A node without one stands aside in its elections."""

    def __init__(self, driver: Driver, about: Mapping[str, str]) -> None:
        """``about``: node, cluster and socket, for the contexts."""
        self._about = about
        self._won, self._next = trio.open_memory_channel[Elected](WAITING_MAX)
        self._problems: dict[str, str] = {}  # topic -> why it has no handler, or how it failed last
        for point in points(TOPICS):
            name, wrong = point.name, unfit(point)
            if name in driver.node.topics:
                wrong = "a topic of this name is there already"
            elif not NAME.fullmatch(name):
                wrong = "expected a name of up to 64 letters, digits, . _ and -, which begins with a letter or a digit"
            if wrong:
                self._problems[name] = wrong
                log.warning("topic.not_used", topic=name, reason=wrong)
            else:
                driver.node.topics.add(name)
                driver.handlers[name] = self._elected

    async def run(self) -> None:
        """Call handlers for ever."""
        async with trio.open_nursery() as nursery:
            for _ in range(AT_A_TIME):
                nursery.start_soon(self._serve)

    def checks(self) -> list[Check]:
        """For `doctor`: those that have no handler here, or failed last."""
        return [check(f"topic {name}", WARN, why, "the log has topic.failed") for name, why in self._problems.items()]

    def _elected(self, elected: Elected) -> None:
        try:
            self._won.send_nowait(elected)
        except trio.WouldBlock:
            self._failed(elected, f"{WAITING_MAX} elections wait for a handler already")

    async def _serve(self) -> None:
        async for elected in self._next:
            await self._call(elected)

    async def _call(self, elected: Elected) -> None:
        context = {"id": elected.id, "topic": elected.topic, **self._about}
        of = Plugged(TOPICS, elected.topic, elected.topic, MEMORY)
        done, said = await finished(of, context, TIMEOUT_S, lambda _word, _text: None)
        if done:
            self._problems.pop(elected.topic, None)
            log.info("topic.done", topic=elected.topic, id=elected.id, text=said or None)
        else:
            self._failed(elected, said)

    def _failed(self, elected: Elected, why: str) -> None:
        self._problems[elected.topic] = f"{elected.id}: {why}"
        log.error("topic.failed", topic=elected.topic, id=elected.id, reason=why)
