"""One node of the RabbitMQ benchmark, as a process. It has the real driver, core, bus and Redis ledger, but no runners.

It reads commands as JSON lines from stdin. It writes each event as a line into a pipe, as the peer's worker does:
{"k": kind, "w": node, "t": CLOCK_MONOTONIC in ns, …}. A granted run ends when the command "finish" comes.

usage: gossip_member.py '{"index": 0, "count": 3, "bus": URL, "ledger": URL, "cluster": NAME, "facts": PATH,
"fast": true}'; "fast": claims cross no thread
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any

import trio

from bench.told import commands, driver_of, fresh_node
from coordd.adapters import logs
from coordd.adapters.bus.amqp_bus import AmqpBus
from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.adapters.ledger.redis_loop import RedisLoopLedger
from coordd.core.context import Settings
from coordd.core.election import Election
from coordd.core.jobs.job import Command, Job
from coordd.core.ledger.runner_requests import Gate, Registration, Report
from coordd.core.node.elections import Elections
from coordd.core.ready import Launch, Now
from coordd.core.runs.pursued import TOLD, Pursuit
from coordd.core.runs.pursuit import Pursuits
from coordd.core.wire.events import Action
from coordd.services.ledger import LedgerService

LIMIT_S = 30.0
JOB = "bench"
ASKED_FOR = f"{JOB}#t"  # how the ids of triggers begin


class Member:
    """One node."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.count = spec["count"]
        self.name = f"n{spec['index']}"
        settings = Settings(cluster=spec["cluster"], budget_client=100_000, budget_cluster=100_000)
        self.node = fresh_node(self.name, spec["index"], settings)
        self.job = Job(name=JOB, launch=Command(("true",)), overlap="allow", placement="first", digest="bench")
        self.bus = AmqpBus([spec["bus"]], self.node.full_hostname, cluster=spec["cluster"], lane=spec["fast"])
        kind = RedisLoopLedger if spec["fast"] else RedisLedger
        self.ledger = LedgerService(
            lambda: kind(spec["ledger"], timeout_s=2.0, cluster=spec["cluster"], fresh=True), 2.0
        )
        self.driver = driver_of(self.node, self.bus, self.ledger, self._launch)
        settled = Elections._settled

        def watched(elections: Elections, election: Election, now: Now) -> None:
            settled(elections, election, now)
            self._decided(election)

        Elections._settled = watched  # type: ignore[assignment, method-assign]  # a process has one node
        begun = Pursuits._new

        def recorded(pursuits: Pursuits, action: Action, *more: Any) -> Pursuit:
            pursuit = begun(pursuits, action, *more)
            # All but those of ``do_trigger`` stand for scheduled runs: their claim makes the row.
            pursuit.recorded = "" if action.run.startswith(ASKED_FOR) else TOLD
            return pursuit

        Pursuits._new = recorded  # type: ignore[assignment, method-assign]  # a process has one node
        self._out = open(spec["facts"], "wb", buffering=0)  # noqa: SIM115 - for as long as the process lives
        self._over: list[Launch] = []

    def say(self, kind: str, **fields: Any) -> None:
        """Send one fact to the benchmark."""
        fact = {"k": kind, "w": self.name, "t": time.monotonic_ns(), **fields}
        with contextlib.suppress(OSError):
            self._out.write(json.dumps(fact).encode() + b"\n")

    async def run(self) -> None:
        """Run until stdin ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.bus.receive, self.driver.deliver, self._peer_dead, self._bus_changed)
            nursery.start_soon(self.ledger.run, self.driver.ledger_answers)
            nursery.start_soon(self.driver.run)
            with trio.fail_after(LIMIT_S):
                while self.bus.state != "connected":
                    await trio.sleep(0.01)
            self.node.set_jobs({JOB: self.job}, self.driver.now())
            self.driver.feed(self.node.start, None)
            async for word, arguments in commands():
                await getattr(self, f"do_{word}")(**arguments)
            nursery.cancel_scope.cancel()
        self.bus.close()

    # ---- commands

    async def do_join(self) -> None:
        """Wait until all nodes are there."""
        with trio.fail_after(LIMIT_S):
            while self.node.state != "ready" or len(self.node.ctx.membership.view()) < self.count:
                await trio.sleep(0.01)
        self.say("ready", pid=os.getpid())

    async def do_elect(self, run: str) -> None:
        """An election as the peer's worker gets it and as the schedule makes it: elect, then claim."""
        self.node.pursuits.begin(Action(JOB, run, fire_at=time.time(), digest="bench"), self.driver.now())
        self.driver.pump()

    async def do_trigger(self, run: str) -> None:
        """A trigger as `coordctl run trigger` makes it: record and elect, then claim."""
        of = Registration(run, JOB, "bench", self.job.policy(), time.time(), scheduled=False)
        self.driver.feed(self.node.trigger, of, 0)

    async def do_burst(self, prefix: str, count: int) -> None:
        """As a schedule at 02:00 does: ``count`` runs are due in one tick."""
        for number in range(count):
            run = f"{JOB}#{prefix}{number}"
            action = Action(JOB, run, fire_at=time.time(), digest="bench")
            self.node.pursuits.begin(action, self.driver.now())
        self.driver.pump()

    async def do_drill(self, ident: str) -> None:
        """An election about nothing."""
        self.driver.feed(self.node.open_election, ident, "drill", None)

    async def do_finish(self) -> None:
        """End the granted runs, so that the next sweep finds no open run."""
        over, self._over = self._over, []
        for launch in over:
            self.node.ctx.ask(Gate(grant=launch.grant))
            self.node.ctx.ask(Report(grant=launch.grant, state="success", exit_code=0))
            self.node.runner_ended(launch, "success", 0, "", "", 0.0, self.driver.now())
        self.driver.pump()
        self.say("finished", runs=len(over))

    async def do_counts(self) -> None:
        """The counters of the bus, and the value of the logical clock."""
        self.say("counts", **self.bus.statistics())

    # ---- events

    def _launch(self, launch: Launch) -> None:
        self.say("acted", id=launch.run)
        self._over.append(launch)

    def _decided(self, election: Election) -> None:
        self.say("decided", id=election.id)

    def _peer_dead(self, name: str) -> None:
        self.say("lost", peer=name)
        self.driver.feed(self.node.peer_dead, name)

    def _bus_changed(self, up: bool) -> None:
        self.say("bus", up=up)
        self.driver.feed(self.node.bus_changed, up)


if __name__ == "__main__":
    logs.configure(level="error")
    trio.run(Member(json.loads(sys.argv[1])).run)
