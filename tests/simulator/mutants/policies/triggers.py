"""Triggers: each arrival is one run on any node that polls, and triggers with the same key are one run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from coordd.core.node.elections import Elections
from coordd.core.node.node import Node
from coordd.core.triggers import duplicates, polling
from coordd.core.triggers.arrivals import run_of
from coordd.services.triggering import registering, taking
from coordd.services.triggering.polling import Polling
from coordd.services.triggering.queues import QueueSource
from coordd.services.triggering.taking import Taker
from simulator.mutants.mutant import Mutant, instead
from simulator.policies import TRIGGERS


@instead(QueueSource, "look")
async def _acknowledges_what_it_reads(real: Any, self: QueueSource, room: Any) -> Any:
    look = await real(self, room)
    await self._queue.acknowledge([place for places in self._places.values() for place in places])
    return look


@instead(taking, "register")
def _by_the_look(real: Any, driver: Any, job: Any, trigger: Any, arrival: Any) -> Any:
    return real(driver, job, trigger, arrival._replace(key=f"{arrival.key} {driver.now().wall}"))


@instead(Polling, "look")
def _polls_anyway(real: Any, self: Polling, of: str, *rest: Any, **named: Any) -> bool:
    real(self, of, *rest, **named)
    self._pollers[of] = self._driver.node.full_hostname
    return True


@instead(polling, "poller")
def _whether_it_lives_or_not(real: Any, ident: str, succession: Any, *nodes: Any) -> str:
    return str(succession[0]) if succession else str(real(ident, succession, *nodes))


@contextlib.contextmanager
def _by_the_arrival_alone() -> Iterator[None]:
    def run(job: Any, trigger: Any, arrival: Any) -> str:
        return run_of(job.name, trigger.name, arrival.key)

    with mock.patch.object(registering, "run_of_arrival", run), mock.patch.object(taking, "run_of_arrival", run):
        yield


@instead(duplicates, "ident_of")
def _every_time_is_another_period(real: Any, dedupe: Any, values: Any, timezone: str, at: float) -> str:
    ident = str(real(dedupe, values, timezone, at))
    return f"{ident}.{at:.0f}" if dedupe.period_s else ident


MUTANTS = (
    Mutant(
        "a message is acknowledged before its row is there",
        "triggers: first the row is written, then the arrival counts as consumed",
        "AR",
        _acknowledges_what_it_reads,
        (TRIGGERS, "crash", "ledger_down"),
    ),
    Mutant(
        "a run's id is made from the look that found it",
        "triggers: the id is made from the arrival alone",
        "AR",
        _by_the_look,
        (TRIGGERS, "crash", "ledger_deaf"),
    ),
    Mutant("every node polls", "triggers: one node polls a trigger", "AP", _polls_anyway, (TRIGGERS, "crash")),
    Mutant(
        "a dead poller is not replaced",
        "triggers: if it dies, the next node of the same election polls",
        "AP AR",
        _whether_it_lives_or_not,
        (TRIGGERS, "crash", "gone"),
    ),
    Mutant(
        "what a ledger has forgotten is not looked up again",
        "triggers: what is still there when a ledger has gone back gets its row again",
        "AR",
        lambda: mock.patch.object(Taker, "_look_at_ledger", lambda _: None),
        near=385,
    ),
    Mutant(
        "a node without a bus leaves a trigger to those that do not know why",
        "triggers: without a bus the nodes come to the same succession, although a look has failed",
        "AP",
        lambda: mock.patch.object(Elections, "_cannot_be_left", lambda *_: False),
        near=16114399,
    ),
    Mutant(
        "each node has its own clock's terms",
        "triggers: a term is one by the ledger's clock",
        "AP",
        lambda: mock.patch.object(Node, "ledger_wall", lambda _, now: now.wall),
        near=16449198,
    ),
    Mutant(
        "arrivals with the same key are two runs",
        "policies, dedupe: triggers with the same key are the same run",
        "AR",
        _by_the_arrival_alone,
        (TRIGGERS, "crash"),
    ),
    Mutant(
        "a key is another run each time",
        "policies, dedupe: triggers with the same key within a period are the same run",
        "AD",
        _every_time_is_another_period,
        (TRIGGERS, "crash"),
    ),
)
