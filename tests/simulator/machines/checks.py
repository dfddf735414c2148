"""The real service of checks (services/checks/service.py) of each daemon, in a world without trio.

What a look finds is drawn: each check goes bad and good again while faults last, and is good from GOOD_AT_S on. Three
checks are shared by nodes or are each node's own; a job abstains from bad nodes, two are suspended, one is not touched.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

from coordd.core.checks.check import Check, Use
from coordd.core.checks.state import HEALTHY, UNHEALTHY, UNKNOWN, Result
from coordd.core.jobs.job import Command, Job, Retry, Schedule
from coordd.core.ledger.requests import Keep
from coordd.errors import UnavailableError
from coordd.services.checks import service
from coordd.services.checks.service import Checks
from coordd.services.ledger import CONNECTED
from simulator.machines.revisions import Log
from simulator.machines.seat import Seat, Services
from simulator.machines.waiting import Question, Then
from simulator.policies import CHECKS
from simulator.terms import CHAOS_S, LEASE, SCHEDULES_END_S, WALL

if TYPE_CHECKING:
    from coordd.core.ready import Elected
    from coordd.core.wire.events import CheckChanged
    from simulator.machines.daemon import Daemon
    from simulator.machines.waiting import Turns
    from simulator.world import World

# The tag of about half of the machines.
SITE = "site"

_ROOM = Check(name="room", kind="disk", path="/", every_s=1.0, fail_after=1, pass_after=1)
_STORE = Check(name="store", kind="http", url="http://h/", every_s=2.0, scope="cluster", fail_after=2, pass_after=1)
_PLACE = Check(name="place", kind="http", url="http://h/", every_s=2.0, scope="tag:site", fail_after=1, pass_after=2)
OF_NODES = {check.name: check for check in (_ROOM, _STORE, _PLACE)}
SHARED = {check.name: check for check in OF_NODES.values() if check.shared}

# What each check means for which job.
USES = {"roomy": Use("room", "abstain"), "stored": Use("store", "suspend"), "placed": Use("place", "suspend")}
WARNED = {"warned": Use("store", "warn")}

# How often a check goes bad, and for how long (seconds). From GOOD_AT_S on all are good.
TIMES_BAD = (1, 2, 3)
BAD_S = (2.0, 14.0)
GOOD_AT_S = CHAOS_S + 8.0

# A look that fails itself says nothing.
FAILS_ITSELF = 0.05

# In worlds with the fault ``pause_daemon``, some checkers stand still right after they have written how their check
# stands: how probable that is, and for how many seconds. The other nodes elect another one meanwhile.
HESITATES = 0.1
HESITATES_S = (10.0, 25.0)


def jobs() -> dict[str, Job]:
    """The jobs that checks concern."""
    end = WALL + SCHEDULES_END_S
    return {
        name: Job(
            name=name,
            digest=f"checked-{name}",
            launch=Command(argv=("/bin/true",)),
            lease_s=LEASE,
            overlap="allow",
            retry=Retry(relaunches=50),
            schedule=Schedule(kind="every", every_s=every_s, end=end),
            uses=(use,),
        )
        for (name, use), every_s in zip({**USES, **WARNED}.items(), (4.0, 5.0, 6.0, 10.0), strict=True)
    }


def tags(seed: int, nodes: int) -> tuple[tuple[str, ...], ...]:
    """The tags of each machine."""
    rng = random.Random(f"sites of {seed}")
    return tuple((SITE,) if rng.random() < 0.6 else () for _ in range(nodes))


class Truth:
    """When each check is bad: on each machine by itself, or for all."""

    def __init__(self, seed: int, nodes: int) -> None:
        rng = random.Random(f"checks of {seed}")
        self._bad: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for name, check in OF_NODES.items():
            for machine in (-1,) if check.shared else range(nodes):
                begins = [rng.uniform(3.0, CHAOS_S) for _ in range(rng.choice(TIMES_BAD))]
                self._bad[name, machine] = [(at, min(GOOD_AT_S, at + rng.uniform(*BAD_S))) for at in begins]

    def is_bad(self, check: Check, machine: int, now: float) -> bool:
        """True if a look finds it bad now. ``now``: seconds of the world."""
        bad = self._bad.get((check.name, -1 if check.shared else machine), ())
        return any(begin <= now < end for begin, end in bad)


class Seen:
    """The node as the service sees it. A ledger of a world has no identity unless nodes compare ledgers."""

    ledger = "the ledger"

    def __init__(self, daemon: Daemon) -> None:
        self._node = daemon.node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


class ChecksSeat(Seat):
    """What the service of checks sees of its daemon. It asks for no runs."""

    def __init__(self, daemon: Daemon, turns: Turns, truth: Truth) -> None:
        super().__init__(daemon, turns, 0)
        self._truth = truth
        self._rng = random.Random(f"looks of {daemon.world.plan.seed} {daemon.host.index} {daemon.host.boots}")
        self.handlers: dict[str, Callable[[Elected], None]] = {}
        self.state = CONNECTED  # of the ledger; the node says whether it answers
        this: Any = self
        this.node = Seen(daemon)
        self.checks = Checks(OF_NODES, this, this)
        self.checks._look = self._look  # type: ignore[method-assign]  # what it finds is drawn

    async def _look(self, check: Check) -> Result:
        await Question(lambda then: self._daemon.world.at(self._daemon.call_s(), then, None))
        if self._rng.random() < FAILS_ITSELF and not self._daemon.world.chaos_over:
            return Result(UNKNOWN, "the look failed")
        daemon = self._daemon
        bad = self._truth.is_bad(check, daemon.host.index, daemon.world.now)
        return Result(UNHEALTHY if bad else HEALTHY, "as drawn")

    def feed(self, call: Callable[..., Any], *args: Any) -> None:
        """In a step of its own: what the judge finds wrong must not be taken for a failed look."""
        self._daemon.world.at(0.0, self._daemon.feed, call, *args)

    def tell(self, event: CheckChanged) -> None:
        self._daemon.world.fault_log[f"check_{event.state}"] += 1

    def journal_control(self, method: str, subject: str, _uid: int, by: str) -> None:
        self._daemon.world.acts[f"{method} by a check"] += 1
        self._daemon.world.say(f"{self._daemon.host.name} {method} {subject} by {by}")

    async def write(self, request: Any) -> Any:
        answer = await Question(partial(self._put, request))
        if isinstance(request, Keep):
            await Question(self._hesitate)
        return answer

    def _hesitate(self, then: Then) -> None:
        world = self._daemon.world
        if "pause_daemon" in world.plan.faults and not world.chaos_over and self._rng.random() < HESITATES:
            world.fault_log["checker_hesitates"] += 1
            self._daemon.pause(self._rng.uniform(*HESITATES_S))
        world.at(0.0, then, None)

    def _put(self, request: Any, then: Then) -> None:
        away = UnavailableError("the ledger did not answer")
        host = self._daemon.host
        self._daemon.world.server.ask(host, request, lambda answer: then(away if answer is None else answer))

    def elected(self, elected: Elected) -> None:
        """This node is first in an election that a service opened."""
        if elected.topic in self.handlers:
            self.handlers[elected.topic](elected)


class Checking(Services[ChecksSeat]):
    """The services of checks of all daemons of one world."""

    kind, what = CHECKS, "checks"

    def __init__(self, world: World, turns: Turns) -> None:
        super().__init__(world, turns)
        self.truth = Truth(world.plan.seed, world.plan.nodes)

    def keeps(self) -> frozenset[str]:
        """The jobs that checks alone suspend and resume: somebody is left who looks."""
        if CHECKS not in self.world.plan.kinds:
            return frozenset()
        sites = any(SITE in self.world.plan.tags[host.index] for host in self.world.hosts if not host.gone)
        return frozenset(("stored", "placed") if sites else ("stored",))

    def _seat(self, daemon: Daemon) -> ChecksSeat:
        return ChecksSeat(daemon, self.turns, self.truth)

    def _runs(self, seat: ChecksSeat) -> Coroutine[Any, Any, Any]:
        return seat.checks.run()

    def _patch(self, patches: contextlib.ExitStack) -> None:
        log: Any = Log(self.world)
        log.debug = log.info
        log.exception = partial(log.error, exc_info=True)
        patches.enter_context(self.turns.patched(service))
        patches.enter_context(mock.patch.object(service, "log", log))
