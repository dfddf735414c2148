"""Configuration and time as faults: job files that are edited, removed and brought back; clocks that are hours off.

All of it is drawn from its own random stream, so other parts of a seed's world do not change.
A file is changed on one machine after the other, as a person or a tool does it, while claims are in flight.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from msgspec import structs

from coordd.core.checks.check import TCP, Check, Use
from coordd.core.groups.expand import Expand
from coordd.core.jobs.job import (
    After,
    Blackout,
    Breaker,
    Command,
    Concurrency,
    Dedupe,
    Job,
    Limits,
    Rate,
    Rates,
    Retry,
    Schedule,
    Sink,
)
from coordd.core.jobs.trigger import HTTP, Trigger
from coordd.core.node.states import STARTING
from simulator.item import Item
from simulator.terms import LEASE, SCHEDULES_END_S, WALL

if TYPE_CHECKING:
    from coordd.core.ready import Now
    from simulator.world import Host, World

# The last edit begins before EDITED_BY_S. The time until an edit reaches its last machine is between the two values of
# SPREAD_S. So all nodes know the same definition of every later fire time.
EDITED_BY_S = 30.0
SPREAD_S = (0.0, 8.0)

# The possible numbers of edits in a world that has edits, and how long (seconds) a removed job is away.
EDITS = (1, 3, 6)
AWAY_S = (1.0, 12.0)

# The probability of each kind of change in a world.
CHANCES = {"edit": 0.3, "remove": 0.15, "far_skew": 0.1, "far_step": 0.1, "ledger_far_step": 0.08, "ledger_glitch": 0.1}

# Seconds by which a clock is wrong, or by which it is set.
FAR_SKEWS_S = (-10_800.0, -3_600.0, -90.0, 90.0, 3_600.0, 10_800.0)
FAR_STEPS_S = (-3_600.0, -300.0, -60.0, 60.0, 300.0, 3_600.0)
GLITCHES_S = (20.0, 60.0, 300.0)  # forward, and back a moment later
LEDGER_STEPS_S = (-300.0, -60.0, 60.0, 300.0)

# The maximum ``start_within`` (seconds) of jobs in a world whose definitions change.
START_WITHIN_S = 20.0

# LIMITS: bounds of the product that no world comes near, with lower values for some worlds.
# LIMITED: the probability that a world may have lower bounds.
LIMITED = 0.15
CATCH_UP = "coordd.core.runs.planner.CATCH_UP_MAX"
LIMITS: dict[str, tuple[int, ...]] = {
    CATCH_UP: (2, 4),
    "coordd.core.runs.witness.AT_A_TIME": (1, 3),
    "coordd.core.runs.pursuit.EPITAPHS_MAX": (3, 10),
    "coordd.core.node.elections.DECIDED_MAX": (3, 10),
    "coordd.core.ledger.requests.OPEN_PAGE": (2, 4, 12),
}

AMOUNTS_S = {
    "far_skew": FAR_SKEWS_S,
    "far_step": FAR_STEPS_S,
    "ledger_far_step": LEDGER_STEPS_S,
    "ledger_glitch": GLITCHES_S,
}
OF_THE_LEDGER = frozenset(("ledger_far_step", "ledger_glitch"))

# A change of any field of a definition, in the worlds of this kind; the seeds (m, r): seed % m == r. The possible
# numbers of such changes, and the last time (seconds) at which one begins.
FIELD = "field"
REDEFINED, REDEFINED_SEEDS = "redefined", (41, 31)
FIELDS_CHANGED = (6, 10, 16)

CONFIGURES = frozenset(("edit", "remove", FIELD))
FAR = frozenset(("far_skew", "far_step", "ledger_far_step", "ledger_glitch"))

END = WALL + SCHEDULES_END_S

# Changes a definition: takes it and ``pick`` in [0, 1), which chooses a value, and returns the changed fields.
Change = Callable[[Job, float], dict[str, Any]]


def _other(values: tuple[Any, ...], now: Any, pick: float) -> Any:
    """One of ``values`` that differs from ``now``."""
    others = [value for value in values if value != now]
    return others[int(pick * len(others))]


def _one_of(field: str, values: tuple[Any, ...]) -> Change:
    """Another one of these values."""
    return lambda job, pick: {field: _other(values, getattr(job, field), pick)}


def _schedule(job: Job, pick: float) -> dict[str, Any]:
    old = job.schedule
    every_s = _other((7.0, 9.0, 11.0, 12.0, 13.0, 14.0), old.every_s if old is not None else 0.0, pick)
    return {"schedule": Schedule(kind="every", every_s=every_s, end=END)}


def _jitter(job: Job, pick: float) -> dict[str, Any]:
    if job.schedule is None:
        return _schedule(job, pick)
    return {"schedule": structs.replace(job.schedule, offset_s=_other((0.0, 1.0, 3.0), job.schedule.offset_s, pick))}


def _retry(job: Job, pick: float) -> dict[str, Any]:
    return {"retry": Retry(attempts=_other((1, 2, 4), job.retry.attempts, pick), delay_s=1.0, relaunches=50)}


CHANGES: dict[str, Change] = {
    "schedule": _schedule,
    "jitter": _jitter,
    "on_lost": _one_of("on_lost", ("relaunch", "hold")),
    "overlap": _one_of("overlap", ("forbid", "queue", "allow", "replace")),
    "start_within": _one_of("start_within_s", (2.0, 6.0, 20.0)),
    "attempts": _retry,
    "lease": _one_of("lease_s", (6.5, LEASE)),
    "misfire": _one_of("misfire", ("once", "all")),
    "placement": _one_of("placement", ("first", "spread")),
    "args": lambda job, pick: {"launch": Command(argv=("/bin/true", f"{pick:.3f}"))},
}
NAMES = sorted(CHANGES)

# The time of the runs of a job whose fire times are few: it is in the middle of a world.
AT_S = 40.0

# A pool that jobs come into and leave. Nodes do not know the same size of it while their files differ.
POOL = "shared"


def _enabled(job: Job, _pick: float) -> dict[str, Any]:
    if not job.enabled:
        return {"enabled": True, "schedule": job.schedule or job.held, "held": None}
    return {"enabled": False, "schedule": None, "held": job.schedule}


def _any_schedule(job: Job, pick: float) -> dict[str, Any]:
    """Another kind, another time zone, blackouts, or none. That of a job that is not enabled is held."""
    every = Schedule(kind="every", every_s=9.0, end=END)
    black = (Blackout(start=WALL + AT_S, end=WALL + AT_S + 9.0), Blackout(cron="* * * * *", duration_s=5.0))
    chosen = (
        Schedule(kind="cron", cron="* * * * *", end=END),
        Schedule(kind="cron", cron="* * * * *", timezone="Europe/Berlin", end=END),
        Schedule(kind="at", at=WALL + AT_S),
        structs.replace(every, blackout=black),
        structs.replace(every, start=WALL + AT_S),
        None,
    )
    return {"schedule" if job.enabled else "held": _other(chosen, job.schedule or job.held, pick)}


def _held(job: Job, pick: float) -> dict[str, Any]:
    """Not enabled, and what it would do is another schedule."""
    held = structs.replace(job, **_enabled(job, pick)) if job.enabled else job
    return {"enabled": False, "schedule": None, **_any_schedule(held, pick)}


def _any_retry(job: Job, pick: float) -> dict[str, Any]:
    chosen = (
        Retry(attempts=1, relaunches=1),
        Retry(attempts=3, delay_s=1.0, backoff="exponential", jitter=0.5, relaunches=50),
        Retry(attempts=4, delay_s=0.5, backoff="linear", never_on_codes=(1,), relaunches=50),
        Retry(attempts=2, delay_s=3.0, never_on_patterns=("no such table",), submits=2, relaunches=50),
    )
    return {"retry": _other(chosen, job.retry, pick)}


def _pool(job: Job, pick: float) -> dict[str, Any]:
    pool, size = _other((("", 0), (POOL, 1), (POOL, 2), ("other", 1)), (job.pool, job.pool_size), pick)
    return {"pool": pool, "pool_size": size}


def _after(job: Job, pick: float) -> dict[str, Any]:
    """Parents in one direction only, so that no job comes after itself."""
    parents = tuple(name for name in ("sched", "spread") if name > job.name)[:1]
    if not parents:
        return _any_schedule(job, pick)
    chosen = (None, After(parents), After(parents, on="done", period_s=20.0, within_s=10.0))
    return {"after": _other(chosen, job.after, pick)}


def _texts(field: str) -> Change:
    """A change of a field that nothing depends on here."""
    return lambda job, pick: {field: f"{pick:.3f}"}


# One change of each field of a definition.
FIELDS: dict[str, Change] = {
    "launch": CHANGES["args"],
    "description": _texts("description"),
    "owner": _texts("owner"),
    "enabled": _enabled,
    "held": _held,
    "schedule": _any_schedule,
    "schedule_text": _texts("schedule_text"),
    "timezone": _one_of("timezone", ("UTC", "Asia/Kolkata")),
    "misfire": _one_of("misfire", ("once", "all", "skip")),
    "start_within_s": CHANGES["start_within"],
    "expect_within_s": _one_of("expect_within_s", (0.0, 1.0, 5.0)),
    "overlap": lambda job, pick: {**CHANGES["overlap"](job, pick), "expand": None},  # a group allows it
    "on_lost": CHANGES["on_lost"],
    "placement": CHANGES["placement"],
    "tags": _one_of("tags", ((), ("nowhere",))),
    "priority": _one_of("priority", (0, 1, 2)),
    "pool": _pool,
    "pool_size": _pool,
    "concurrency": _one_of("concurrency", (None, Concurrency(max=1), Concurrency(max=2, per="{day}"))),
    "rate": _one_of("rate", (None, Rates(cluster=Rate(1, 4)), Rates(Rate(3, 5), Rate(2, 5)))),
    "queue_max": _one_of("queue_max", (0, 1, 3, 1000)),
    "queue_keep": _one_of("queue_keep", ("first", "last")),
    "timeout_s": _one_of("timeout_s", (0.0, 2.0, 8.0)),
    "lease_s": CHANGES["lease"],
    "params": lambda job, pick: {"params": {"day": f"{pick:.3f}"}},
    "retry": _any_retry,
    "breaker": _one_of("breaker", (None, Breaker(open_for_s=4.0), Breaker(((1, ("failure",)),), open_for_s=2.0))),
    "after": _after,
    "dedupe": _one_of("dedupe", (None, Dedupe("{day}"), Dedupe("{day}", 60.0))),
    "expand": lambda job, pick: {
        "expand": _other((None, Expand("part", ("a", "b"))), job.expand, pick),
        "overlap": "allow",
    },
    "run_as": _texts("run_as"),
    "limits": _one_of("limits", (Limits(), Limits(memory=2**30, tasks=64))),
    "triggers": _one_of("triggers", ((), (Trigger(kind=HTTP, name="in", route="/in"),))),
    "checks": _one_of("checks", ((), (Check(name="port", kind=TCP),))),
    "uses": _one_of("uses", ((), (Use("some"),))),
    "sinks": _one_of("sinks", ((), (Sink("some"),))),
}
FIELD_NAMES = sorted(FIELDS)


def limits(seed: int) -> dict[str, int]:
    """The bounds that are lower in that world."""
    rng = random.Random(f"limits of {seed}")
    if rng.random() >= LIMITED:
        return {}
    return {name: rng.choice(values) for name, values in LIMITS.items() if rng.random() < 0.5}


def _chosen(item: Item) -> tuple[str, Change]:
    """The field that an edit changes, and how."""
    changes, names = (FIELDS, FIELD_NAMES) if item.kind == FIELD else (CHANGES, NAMES)
    name = names[int(item.who * len(names))]
    return name, changes[name]


def edited(job: Job, item: Item) -> Job:
    """The definition with one changed field, which ``item`` chooses. The new digest says which edit made it."""
    _, change = _chosen(item)
    changes = change(job, item.amount % 1)
    if not job.enabled and "enabled" not in changes and "schedule" in changes:
        changes["held"] = changes.pop("schedule")
    return structs.replace(job, digest=f"{job.name} at {item.at:.3f}", **changes)


def short_lived(jobs: dict[str, Job]) -> dict[str, Job]:
    """The jobs with a short ``start_within``, for worlds with edits.

    If no node has the definition of a run any more, the run waits for ``start_within``.
    """
    return {
        name: structs.replace(job, start_within_s=min(job.start_within_s, START_WITHIN_S)) for name, job in jobs.items()
    }


def draw(seed: int, jobs: dict[str, Job], *, forgets: bool, only: Container[str] | None = None) -> list[Item]:
    """The changes of files and clocks in that world: the kinds that are drawn, or all kinds in ``only``."""
    rng = random.Random(f"configuration of {seed}")
    made: list[Item] = []
    for kind, chance in CHANCES.items():
        there = (rng.random() < chance if only is None else kind in only) and not (
            forgets and kind in OF_THE_LEDGER
        )  # S3 depends on the ledger's clock in such a world
        if not there:
            continue
        for _ in range(rng.choice(EDITS) if kind == "edit" else rng.choice((1, 2))):
            at, who, name = rng.uniform(2.0, EDITED_BY_S), rng.random(), rng.choice(sorted(jobs))
            if kind in CONFIGURES:
                made.append(Item(at, kind, who, rng.uniform(*(SPREAD_S if kind == "edit" else AWAY_S)), name))
            else:
                made.append(Item(0.0 if kind == "far_skew" else at, kind, who, rng.choice(AMOUNTS_S[kind])))
    return made


def fields(seed: int, jobs: dict[str, Job], *, parents: bool) -> list[Item]:
    """The changes of any fields, in a world of that kind. ``parents``: jobs run after these, whose `expand` people must
    not change then (docs/policies.md, Groups).
    """
    rng = random.Random(f"fields of {seed}")
    made = [
        Item(rng.uniform(2.0, EDITED_BY_S), FIELD, rng.random(), rng.uniform(*SPREAD_S), rng.choice(sorted(jobs)))
        for _ in range(rng.choice(FIELDS_CHANGED))
    ]
    return [item for item in made if not (parents and _chosen(item)[0] == "expand")]


class Configuration:
    """The job files of a world, as they should be and as each machine has them."""

    def __init__(self, world: World) -> None:
        self.world = world
        # _first: digest -> when the first machine got its schedule (true time, the ledger's clock). _newest: each job's
        # newest definition. _had: job -> the machines whose daemon has read its file, and has not noticed since that it
        # is gone. _removed: removed job -> the machines whose daemon has noticed the removal.
        self._first = {job.digest: (0.0, 0.0) for job in world.plan.jobs.values()}
        self._newest = dict(world.plan.jobs)
        self._removed: dict[str, set[int]] = {}
        self._had: defaultdict[str, set[int]] = defaultdict(set)
        # Job -> when daemons were started that have its file but no memory of the job. They take it for a new job.
        self.met_at_start: dict[str, list[float]] = {}
        self.settled_at = 0.0  # since when all machines have had the same files

    def do(self, item: Item) -> None:
        """Edit or remove the file of one job, on one machine after the other."""
        world = self.world
        field, _ = _chosen(item)
        world.say(f"CONFIGURATION {item.kind} {item.what} {field}")
        world.acts["remove" if item.kind == "remove" else f"{item.kind} {field}"] += 1
        spread_s = 2.0 if item.kind == "remove" else item.amount
        if item.kind != "remove":
            old = world.jobs.get(item.what) or world.plan.jobs[item.what]
            self._take({**world.jobs, item.what: edited(old, item)}, spread_s)
        else:
            removed = world.jobs.get(item.what)
            self._take({name: job for name, job in world.jobs.items() if name != item.what}, spread_s)
            if removed is not None:
                self._removed[item.what] = set()
                world.at(item.amount + spread_s, self._bring_back, removed, spread_s)

    def _bring_back(self, job: Job, spread_s: float) -> None:
        if job.name not in self.world.jobs:
            self.world.say(f"CONFIGURATION {job.name} is brought back")
            self._take({**self.world.jobs, job.name: job}, spread_s)

    def _take(self, jobs: dict[str, Job], spread_s: float) -> None:
        world = self.world
        world.jobs = jobs
        world.known_jobs.update({job.digest: job for job in jobs.values()})
        for number, machine in enumerate(world.hosts):
            world.at(spread_s * number / len(world.hosts), self.reload, machine)
        self.settled_at = max(self.settled_at, world.now + spread_s)

    def met_by_a_stranger(self, job: Job, opened_at: float) -> bool:
        """True if a daemon that had never had the job may have opened that run.

        Such a daemon was started after the job came back and before the run was opened.
        """
        return any(self._first[job.digest][0] <= at <= opened_at for at in self.met_at_start.get(job.name, ()))

    def scheduled_since(self, digest: str, opened_at: float, began: float) -> float:
        """When the first machine got that schedule, or got it back, by the ledger's clock.

        This is the earlier of two readings: by the clock as it was then, and by the clock as it was when the run was
        opened. ``began`` is the beginning of the world by the latter clock. If the run was opened before that machine
        got the schedule, the result is 0.0.
        """
        at, told = self._first[digest]
        if opened_at < at:
            return 0.0
        return min(told, began + at * self.world.server.rate)

    def reload(self, host: Host) -> None:
        """That machine gets the current files, and its daemon is told."""
        world = self.world
        for name, job in self.world.jobs.items():
            returns = self._all_noticed(name)
            if job.digest not in self._first or returns:
                before = self._newest[name]
                same = before.schedule == job.schedule  # put back, or another field changed: the schedule continues
                goes_on = same and not returns
                told = world.server.wall() - world.server.glitch_s  # a schedule heard in a glitch counts from its end
                self._first[job.digest] = self._first[before.digest] if goes_on else (world.now, told)
            self._newest[name] = job
            self._removed.pop(name, None)
        host.jobs = self.world.jobs
        if host.daemon is not None:
            host.daemon.feed(self.noticed, host, host.jobs)

    def in_force(self, jobs: dict[str, Job]) -> None:
        """A published revision has come into force: its changed schedules count from now."""
        world, before = self.world, self.world.jobs
        told = world.server.wall() - world.server.glitch_s
        for name, job in jobs.items():
            was = before.get(name)
            if was is None or was.schedule != job.schedule or job.digest not in self._first:
                goes_on = was is not None and was.schedule == job.schedule
                self._first[job.digest] = self._first[was.digest] if was is not None and goes_on else (world.now, told)
            self._newest[name] = job

    def noticed(self, host: Host, jobs: dict[str, Job], now: Now) -> None:
        """A daemon has read these files. It keeps on its disk which jobs are removed, unless the disk is full."""
        assert host.daemon is not None
        node = host.daemon.node
        before = node.ctx.jobs
        if node.ctx.state == STARTING and not self.world.plan.published:
            for name in jobs.keys() - node.rulebook.definitions.had.keys():
                self.met_at_start.setdefault(name, []).append(self.world.now)
        node.set_jobs(jobs, now)
        for name in before.keys() | jobs.keys():
            if before.get(name) is not jobs.get(name):
                self.world.records.redefined[host.index, name].append(self.world.now)
        if self.world.now < host.disk.full_until:
            return
        for name in jobs:
            self._had[name].add(host.index)
        for name, machines in self._removed.items():
            if name not in jobs and host.index in self._had[name]:
                self._had[name].discard(host.index)
                machines.add(host.index)

    def _all_noticed(self, name: str) -> bool:
        """The job was removed everywhere, and every machine's daemon has noticed.

        So no daemon can believe that the job was never away. A daemon that was away while the job was back for a moment
        notices nothing: when the job comes back again, it takes it for the job that another node has brought back.
        """
        there = {host.index for host in self.world.hosts if not host.gone}
        return name in self._removed and there <= self._removed[name]

    def _glitch(self, seconds: float) -> None:
        self.world.server.steps(seconds, far=True)
        self.world.server.glitch_s += seconds

    def sets_clock(self, item: Item, there: list[Host]) -> None:
        """Set the clock of the ledger or of one machine far off."""
        if item.kind == "ledger_far_step":
            self.world.server.steps(item.amount, far=True)
        elif item.kind == "ledger_glitch":
            self._glitch(item.amount)
            self.world.at(0.3 + 3.0 * item.who, self._glitch, -item.amount)
        else:
            there[int(item.who * len(there))].skew += item.amount
