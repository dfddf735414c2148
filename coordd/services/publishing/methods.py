"""The control method message.list: of each `[publish.NAME]`, what waits, what was given up, and how its brokers are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from coordd.config.hooks.publisher import PUBLISH, Publisher
from coordd.core.node.node import Node
from coordd.ports import Ledger
from coordd.services.control.callers import Caller, Method
from coordd.services.publishing.passing import Passing
from coordd.services.triggering.letters import TriggerLetterMethods
from coordd.services.views.letters import dead_letters
from coordd.services.views.objects import instant

# So many dead letters of one destination are counted.
COUNTED_MAX = 1000


class Waiting(NamedTuple):
    """Messages of one destination that are neither delivered nor given up, as this node knows. ``again``: those that
    were tried before. ``since``: when the oldest was accepted (Unix seconds); 0.0: none waits.
    """

    messages: int = 0
    again: int = 0
    since: float = 0.0


def waiting(node: Node, names: Iterable[str]) -> dict[str, Waiting]:
    """The backlog of these destinations."""
    found: dict[str, list[tuple[int, float]]] = {PUBLISH + name: [] for name in names}
    for pursuit in node.pursuits.pursuits.values():
        if pursuit.action.job in found:
            found[pursuit.action.job].append((pursuit.attempt, pursuit.action.fire_at))
    return {
        job.removeprefix(PUBLISH): Waiting(
            len(ones), sum(attempt > 0 for attempt, _ in ones), min([at for _, at in ones], default=0.0)
        )
        for job, ones in found.items()
    }


class MessageMethods(TriggerLetterMethods):
    """What becomes of messages of other processes."""

    passing: Passing | None = None
    publishers: tuple[Publisher, ...] = ()

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {"message.list": Method(self.message_list), **super().table()}

    async def message_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        open_ones = waiting(self._driver.node, [one.name for one in self.publishers])

        def given_up(ledger: Ledger) -> dict[str, int]:
            return {one.name: len(dead_letters(ledger, COUNTED_MAX, PUBLISH + one.name)) for one in self.publishers}

        dead = await self._ledger.query(given_up) if self.publishers else {}
        return [self._message_view(one, open_ones[one.name], dead[one.name]) for one in self.publishers]

    def counted(self, now: float) -> dict[str, tuple[float, float, float, float]]:
        """Of each destination: messages that wait, the age of the oldest (seconds), connections, failing addresses."""
        found, backlog = {}, waiting(self._driver.node, [one.name for one in self.publishers])
        for one in self.publishers:
            of, (connections, failing) = backlog[one.name], self._there(one)
            age_s = max(0.0, now - of.since) if of.since else 0.0
            found[one.name] = (float(of.messages), age_s, float(connections), float(len(failing)))
        return found

    def _there(self, one: Publisher) -> tuple[int, Mapping[str, str]]:
        return self.passing.state(one) if self.passing is not None else (0, {})

    def _message_view(self, one: Publisher, of: Waiting, dead: int) -> dict[str, Any]:
        connections, failing = self._there(one)
        return {
            "name": one.name,
            "to": one.about,
            "ordered": one.ordered,
            "waiting": of.messages,
            "again": of.again,
            "oldest": instant(of.since) if of.since else None,
            "given_up": dead,
            "connections": connections,
            "failing": [f"{address}: {why}" for address, why in failing.items()],
        }
