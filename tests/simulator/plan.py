"""What a seed draws: machines, jobs, who asks for what, and what goes wrong when.

A plan is made before the world begins, from its own random stream. Its items do not depend on each other: an item can
be left out (``without``), and the others stay as they are. So a plan that fails can be made smaller.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from coordd.core.jobs.job import Command, Concurrency, Job, Rate, Rates, Retry, Schedule, scheduled_run
from coordd.core.jobs.schedule import fires_between
from coordd.core.ledger.words import RHO
from coordd.core.wire import windows
from simulator import configuration, following, policies, publishing
from simulator.item import Item
from simulator.machines import arriving, checks, hooks
from simulator.terms import CHAOS_S, KILL_GRACE, LEASE, SCHEDULES_END_S, WALL

# Faults of single messages, calls and starts. Each has a probability. All other faults strike at one instant.
CONTINUOUS = ("loss", "duplication", "slow", "straggler", "skew", "late_join", "lost_reply", "launch_fails", "targeted")

# Faults of one machine, with the bounds of the drawn amount: how long the fault lasts (seconds), or how strong it is.
MACHINES: dict[str, tuple[float, float]] = {
    "crash": (0.5, 15.0), "power": (2.0, 20.0), "shutdown": (2.0, 20.0), "bus_cut": (1.0, 25.0), "deaf": (1.0, 20.0),
    "mute": (1.0, 20.0), "ledger_cut": (0.5, 20.0), "ledger_deaf": (0.5, 12.0), "pause_daemon": (0.2, 20.0),
    "pause_runner": (3.0, 30.0), "freeze": (1.0, 30.0), "kill_runner": (0.3, 1.0), "step": (-30.0, 30.0),
    "disk_full": (1.0, 25.0), "gone": (0.0, 1.0),
}  # fmt: skip

# Faults of the ledger that all nodes share. Its clock may also go back, but not in worlds whose ledger forgets: S3
# depends on the clock there.
LEDGER: dict[str, tuple[float, float]] = {"ledger_down": (0.5, 15.0), "ledger_step": (-5.0, 20.0)}

# Only nodes of one machine can lose each other in pairs, restart all at once, or hear a lying member on their socket.
# Only a broker can be away for all nodes, or deliver messages that somebody without the key has made.
ONE_MACHINE: dict[str, tuple[float, float]] = {"pair_cut": (2.0, 30.0), "reboot": (1.0, 10.0), "liar": (0.0, 1.0)}
PRODUCTION: dict[str, tuple[float, float]] = {
    "broker_down": (0.5, 20.0),
    "connection_lost": (0.1, 12.0),
    "forged": (0.0, 1.0),
}

# In these worlds a disk moves: its daemon is started on another machine, or in another PID namespace, while the runners
# go on unseen. (m, r): the seeds with seed % m == r. The amount: seconds until that daemon begins.
MOVED = "moved"
MOVED_SEEDS = (20, 1)
MOVED_S = (0.5, 6.0)

# How a ledger goes back: a replica without the last writes takes over; a restart from an old snapshot; a flush. Some
# failovers (this part) are restarts instead: there is no replica, and the last writes may be kept.
FAILOVER = "failover"
SETBACKS = (FAILOVER, "old_snapshot", "flush")
RESTART, RESTARTS = "restart", 0.6

# Worlds of one machine that nobody hears: it is granted a run while no other node reaches the ledger, and is then cut
# off from the ledger, which restarts and has forgotten the grant. Only mutants ask for them.
UNHEARD = "unheard"

STRIKES = {**MACHINES, **LEDGER, **ONE_MACHINE, **PRODUCTION}
FAULTS = (*CONTINUOUS, *STRIKES)

# Two kinds of worlds in which ledgers have identities. Each kind has its own seeds.
# Misplaced: half of the nodes (rounded down) ask another ledger from their first start on, until a person corrects
# that. All nodes hear each other in such a world, because a node that is cut off cannot compare ledgers.
# Pinned: all nodes have used the same ledger before, and that ledger goes back.
MISPLACED, PINNED = "misplaced", "pinned"
MISPLACED_SEEDS, PINNED_SEEDS = (50, 8), (20, 4)  # (m, r): the seeds with seed % m == r
HEARING = frozenset(
    (
        "duplication",
        "skew",
        "lost_reply",
        "launch_fails",
        "pause_runner",
        "kill_runner",
        "ledger_down",
        "ledger_cut",
        "ledger_deaf",
        "step",
        "disk_full",
        "forged",
    )
)

# Last digits of seeds. PRODUCTION_SEEDS: the broker and the ledger of the cluster have their own machines.
# FORGETFUL_SEEDS: those of them whose ledger goes back.
# With all other seeds the cluster is one machine: it has datagrams, and a ledger that forgets nothing.
PRODUCTION_SEEDS = frozenset((1, 4, 5, 8, 9))
FORGETFUL_SEEDS = frozenset((4, 5, 9))

# Of PRODUCTION_SEEDS, the remainders (seed % 20) of the seeds whose ledger is Redis's own scripts.
SCRIPTED_SEEDS = frozenset((8, 9))

# (m, r): the seeds with seed % m == r draw limits: pools, concurrency, rates, the length of queues.
LIMITED_SEEDS = (7, 3)

# (m, r): the seeds with seed % m == r have people who backfill fire times that are over.
BACKFILL_SEEDS = (3, 2)

# Seeds that have shown a defect in a world that was drawn before there were the kinds below: they stay those worlds.
EARLIER = frozenset((1040, 3138, 5550, 22017, 22746, 23315, 24931, 26855, 29189, 32016, 40606, 304444, 605436, 620532))

# How many messages of each sender a receiver remembers, in some worlds with a broker. With the real number, which is
# larger, hardly any message would be late.
REACH = 16

# TIGHT: the probability of a world in which every clock's rate is at one of its bounds. The kill grace is short there,
# so it does not compensate for the clocks: programs are ended in the last moment of their lease.
TIGHT = 0.15
TIGHT_GRACE_S = 0.05

# Seconds from a first setback to a second setback that strikes in the quarantine of the first.
SOON_S = (3.0, 12.0)

FAULTS_MIN = 10
TRIGGERS = (12, 16, 24)

# What people do, and how often at most in one world.
ACTS = {"revoke": 3, "cancel": 3, "suspend": 2, "conflict": 2, "redefine": 1, "drain": 2, "prune": 4}


@dataclass(frozen=True)
class Plan:
    """A world before it begins. Clock rates as factors, skews in seconds, ``joins`` in seconds from the start."""

    seed: int
    production: bool  # several machines: a broker, and a ledger across a network
    forgets: bool  # the ledger loses writes that it has acknowledged
    faults: frozenset[str]
    rates: tuple[float, ...]
    skews: tuple[float, ...]
    joins: tuple[float, ...]
    ledger_rate: float
    kill_grace_s: float
    loss: float
    delay_s: float
    reach: int
    limits: dict[str, float]  # bounds of the product that are lower in this world: name -> value
    jobs: dict[str, Job]
    items: tuple[Item, ...]
    kinds: frozenset[str] = frozenset()  # what is special in it: PUBLISHED, and the kinds of policies.py
    tags: tuple[tuple[str, ...], ...] = ()  # of each node
    rooms: tuple[tuple[int, ...], ...] = ()  # of each node: policies.rooms
    scores: dict[str, float] = field(default_factory=dict)  # what the strategy of priorities says of jobs
    # from when on (seconds) the programs of which job fail on which machine; all others succeed
    fails: tuple[float, frozenset[tuple[str, int]]] = (0.0, frozenset())
    misplaced: int = 0  # how many of the last nodes ask another ledger at their first start
    pinned: bool = False  # every node has used the ledger before
    without: frozenset[str] = frozenset()  # numbers of items, names of continuous faults, names of nodes

    @property
    def nodes(self) -> int:
        return len(self.rates)

    @property
    def published(self) -> bool:
        """Its jobs come from published revisions."""
        return publishing.PUBLISHED in self.kinds

    @property
    def backfills(self) -> bool:
        """People ask for fire times that are over."""
        return _of_kind(self.seed, BACKFILL_SEEDS) and self.misplaced == 0

    @property
    def identified(self) -> bool:
        """Its ledgers have identities, and nodes compare them."""
        return self.pinned or self.misplaced > 0

    @property
    def scripted(self) -> bool:
        """Its ledger is Redis's scripts, if there is a server.

        This is a tenth of the worlds. The ledger forgets in half of the tenth.
        """
        return self.production and not self.identified and self.seed % 20 in SCRIPTED_SEEDS

    @property
    def packs(self) -> bool:
        """Each message and journal line is its real bytes. Few worlds do this: it costs more than all the rest."""
        return self.seed % 50 == 0

    def labels(self) -> list[str]:
        """The names of all parts that can be left out, the largest parts first."""
        nodes = [f"n{index}" for index in range(self.nodes - 1, 1, -1)]
        return [*nodes, *sorted(self.faults & set(CONTINUOUS)), *(str(number) for number in range(len(self.items)))]


def draw(
    seed: int, faults: tuple[str, ...] | None = None, forgets: bool | None = None, without: frozenset[str] = frozenset()
) -> Plan:
    """The plan of a seed. ``faults``: only these faults; ``forgets``: whether its ledger loses acknowledged writes."""
    rng = random.Random(f"plan of {seed}")
    forgetful = seed % 10 in FORGETFUL_SEEDS if forgets is None else forgets
    if faults is None:
        production = forgetful or (forgets is None and seed % 10 in PRODUCTION_SEEDS)
        there = [*CONTINUOUS, *MACHINES, *LEDGER, *(PRODUCTION if production else ONE_MACHINE)]
        chosen = {fault for fault in there if rng.random() < 0.3}
        while len(chosen & set(STRIKES)) < 2:
            chosen.add(rng.choice([fault for fault in there if fault in STRIKES]))
    else:
        production = forgetful or bool(set(faults) & {*PRODUCTION, MISPLACED, MOVED})
        chosen = set(faults) & set(FAULTS)
    misplaced = MISPLACED in faults if faults is not None else _of_kind(seed, MISPLACED_SEEDS)
    pinned = forgetful and (PINNED in faults if faults is not None else _of_kind(seed, PINNED_SEEDS))
    if misplaced:
        chosen = chosen & HEARING | ({"ledger_cut", "pause_runner"} if faults is None else set())
    kinds = _kinds(seed, faults) if not (misplaced or pinned) else frozenset((MISPLACED if misplaced else PINNED,))
    nodes = rng.choice((3, 4, 5, 6))
    jobs = _limited(seed, _jobs(rng)) if _of_kind(seed, LIMITED_SEEDS) else _jobs(rng)
    jobs = policies.jobs_of(kinds, seed, jobs)
    items = [*_strikes(rng, sorted(chosen), forgetful), *_triggers(rng), *_acts(rng, jobs, forgetful)]
    items, jobs = _configured(seed, items, jobs, kinds, forgetful, faults)
    items += policies.items_of(kinds, seed, nodes) + (arriving.items(seed) if policies.TRIGGERS in kinds else [])
    if MOVED in faults if faults is not None else _of_kind(seed, MOVED_SEEDS) and not misplaced:
        items += _moves(seed)
    skews = [rng.choice((0.0, rng.uniform(-40, 40))) for _ in range(nodes)]
    late = [rng.uniform(5, 30) if number else rng.uniform(0, 0.5) for number in range(nodes)]
    early = [rng.uniform(0, 0.5) for _ in range(nodes)]
    rates = tuple(1 + rng.uniform(-RHO, RHO) * 0.99 for _ in range(nodes))
    ledger_rate = 1 + rng.uniform(-RHO, RHO)
    bounds = random.Random(f"bounds of {seed}")
    tight = bounds.random() < TIGHT
    return Plan(
        seed=seed,
        production=production,
        forgets=forgetful,
        faults=frozenset(chosen) - without,
        rates=tuple(1 + bounds.choice((-RHO, RHO)) for _ in range(nodes)) if tight else rates,
        skews=tuple(skews) if "skew" in chosen - without else (0.0,) * nodes,
        joins=tuple(late if "late_join" in chosen - without else early),
        ledger_rate=1 + bounds.choice((-RHO, RHO)) if tight else ledger_rate,
        kill_grace_s=TIGHT_GRACE_S if tight else KILL_GRACE,
        loss=rng.choice((0.05, 0.15, 0.3)),
        delay_s=rng.choice((0.05, 0.5, 2.0)),
        limits=_limits(kinds, seed),
        reach=rng.choice((REACH, windows.REACH)) if production else windows.REACH,
        jobs=jobs | _beside(kinds, seed),
        items=tuple(sorted(items)),
        kinds=kinds,
        tags=_tags(kinds, seed, nodes),
        rooms=policies.rooms(seed, nodes) if policies.ROOM in kinds else ((),) * nodes,
        scores=policies.scores(seed, jobs) if policies.LINE in kinds else {},
        fails=policies.fails(seed, nodes) if kinds & {policies.RETRIES, policies.BREAKERS} else (0.0, frozenset()),
        misplaced=nodes // 2 if misplaced else 0,
        pinned=pinned,
        without=without,
    )


def _limits(kinds: frozenset[str], seed: int) -> dict[str, float]:
    """The bounds of the product that are lower in that world."""
    terms = arriving.limits(seed) if policies.TRIGGERS in kinds else {}
    return {**configuration.limits(seed), **policies.limits_of(kinds), **terms}


def _beside(kinds: frozenset[str], seed: int) -> dict[str, Job]:
    """The jobs of some kinds of worlds, which nothing else is drawn for."""
    made = hooks.jobs() if policies.HOOKS in kinds else {}
    made |= following.jobs(seed) if policies.AFTER in kinds else {}
    made |= checks.jobs() if policies.CHECKS in kinds else {}
    return made | (arriving.jobs(seed) if policies.TRIGGERS in kinds else {})


def _tags(kinds: frozenset[str], seed: int, nodes: int) -> tuple[tuple[str, ...], ...]:
    """The tags of each machine, in the kinds of worlds that have some."""
    none: tuple[tuple[str, ...], ...] = ((),) * nodes
    line = policies.tags(seed, nodes) if policies.LINE in kinds else none
    sites = checks.tags(seed, nodes) if policies.CHECKS in kinds else none
    return tuple((*one, *two) for one, two in zip(line, sites, strict=True))


def _of_kind(seed: int, which: tuple[int, int]) -> bool:
    return seed % which[0] == which[1]


def _kinds(seed: int, faults: tuple[str, ...] | None) -> frozenset[str]:
    """The kinds of a world: by its seed, or because ``faults`` names it."""
    edits = {publishing.PUBLISHED: publishing.PUBLISHED_SEEDS, configuration.REDEFINED: configuration.REDEFINED_SEEDS}
    every = edits | policies.SEEDS
    if faults is not None:
        return policies.with_parents(frozenset(every.keys() & set(faults)))
    if seed in EARLIER:
        return frozenset()
    drawn = frozenset(kind for kind, which in every.items() if _of_kind(seed, which))
    if publishing.PUBLISHED in drawn:
        drawn -= {policies.HOOKS, policies.AFTER, policies.RERUNS, policies.TRIGGERS, policies.CHECKS}
        drawn -= {configuration.REDEFINED}  # nobody edits a file
    if seed in policies.BEFORE_BREAKERS:
        drawn -= {policies.BREAKERS}
    if seed in policies.BEFORE_TRIGGERS:
        drawn -= {policies.TRIGGERS}
    if seed in policies.BEFORE_RERUNS:
        drawn -= {policies.RERUNS}
    if seed in policies.BEFORE_CHECKS or policies.TRIGGERS in drawn:
        drawn -= {policies.CHECKS}
    return policies.with_parents(drawn - policies.YOUNGER if seed in policies.EARLIER else drawn)


def _configured(
    seed: int,
    items: list[Item],
    jobs: dict[str, Job],
    kinds: frozenset[str],
    forgets: bool,
    faults: tuple[str, ...] | None,
) -> tuple[list[Item], dict[str, Job]]:
    """The items with what happens to job files, clocks and revisions; and the jobs, as such a world has them."""
    if MISPLACED in kinds:
        return [item for item in items if item.kind not in ACTS], jobs
    configured = configuration.draw(seed, jobs, forgets=forgets, only=faults)
    if publishing.PUBLISHED in kinds:
        items = [item for item in items if item.kind != "redefine"]
        configured = [item for item in configured if item.kind in configuration.FAR] + publishing.draw(seed, jobs)
    if configuration.REDEFINED in kinds:
        configured += configuration.fields(seed, jobs, parents=policies.AFTER in kinds)
    changed = configuration.CONFIGURES | publishing.KINDS.keys()
    if any(item.kind in changed for item in configured):
        jobs = configuration.short_lived(jobs)
    return items + configured, jobs


def _jobs(rng: random.Random) -> dict[str, Job]:
    """The jobs of a world: three with a schedule, and four without. People redefine the last one."""
    launch = Command(argv=("/bin/true",))
    end = WALL + SCHEDULES_END_S
    made = [
        Job(
            name="sched",
            digest="d1",
            launch=launch,
            lease_s=LEASE,
            misfire=rng.choice(("once", "all")),
            schedule=Schedule(kind="every", every_s=rng.choice((9.0, 11.0, 14.0)), end=end),
            overlap=rng.choice(("forbid", "queue", "allow", "replace")),
        ),
        Job(
            name="spread",
            digest="d2",
            launch=launch,
            lease_s=LEASE,
            schedule=Schedule(kind="every", every_s=13.0, end=end),
            placement="spread",
            overlap="allow",
            retry=Retry(attempts=3, delay_s=2.0, relaunches=50),
        ),
        Job(
            name="strict",
            digest="d3",
            launch=launch,
            lease_s=LEASE,
            start_within_s=rng.choice((2.0, 6.0)),
            schedule=Schedule(kind="every", every_s=12.0, end=end),
            overlap=rng.choice(("forbid", "queue")),
            retry=Retry(attempts=2, delay_s=1.0, never_on_codes=(3,)),
        ),
        Job(
            name="held",
            digest="d4",
            launch=launch,
            lease_s=LEASE,
            on_lost="hold",
            overlap="allow",
            retry=Retry(attempts=2, delay_s=1.0),
        ),
        Job(name="hand", digest="d5", launch=launch, lease_s=LEASE, overlap="allow", retry=Retry(relaunches=50)),
        Job(name="guarded", digest="d6", launch=launch, lease_s=LEASE, overlap="queue", retry=Retry(relaunches=50)),
        Job(name="morph", digest="d7", launch=launch, lease_s=LEASE, overlap="allow", start_within_s=20.0),
    ]
    return {job.name: job for job in made}


def _limited(seed: int, jobs: dict[str, Job]) -> dict[str, Job]:
    """The jobs with limits, from a stream of their own: all else in that world stays as it is."""
    rng = random.Random(f"limits of {seed}")
    pool: dict[str, Any] = {"pool": "shared", "pool_size": rng.choice((1, 2, 3))}
    drawn: dict[str, dict[str, Any]] = {
        "hand": rng.choice((pool, {"concurrency": Concurrency(max=rng.choice((1, 2)))})),
        "morph": rng.choice((pool, {"rate": Rates(cluster=Rate(count=2, period_s=5))})),
        "spread": rng.choice((pool, {})),
        "guarded": {"queue_max": rng.choice((1, 3)), "queue_keep": rng.choice(("first", "last"))},
    }
    return {name: structs.replace(job, **drawn.get(name, {})) for name, job in jobs.items()}


def _strikes(rng: random.Random, chosen: list[str], forgets: bool) -> list[Item]:
    """The faults that strike, and when: at least FAULTS_MIN faults, unless ``chosen`` has only continuous faults."""
    striking = [fault for fault in chosen if fault in STRIKES]
    made = []
    for fault in striking:
        few = fault in LEDGER or fault in ("gone", "reboot", "broker_down")
        made += [_strike(rng, fault, forgets) for _ in range(rng.choice((1, 2, 3) if few else (2, 3, 5)))]
    while striking and len(made) < FAULTS_MIN:
        made.append(_strike(rng, rng.choice(striking), forgets))
    if forgets:
        first = rng.uniform(8, CHAOS_S)
        again = first + rng.choice((rng.uniform(*SOON_S), rng.uniform(12, 30)))
        for at in (first, min(again, CHAOS_S))[: rng.choice((1, 1, 2))]:
            made.append(Item(at, rng.choice(SETBACKS), rng.random(), rng.uniform(0.2, 2.0)))
    return made


def _strike(rng: random.Random, fault: str, forgets: bool) -> Item:
    low, high = STRIKES[fault]
    if fault == "step":
        amount = rng.choice((-30.0, -5.0, 5.0, 30.0))
    elif fault == "ledger_step":
        amount = rng.choice((5.0 if forgets else -5.0, 5.0, 12.0, 20.0))
    else:
        amount = rng.uniform(low, high)
    return Item(rng.uniform(3, CHAOS_S), fault, rng.random(), amount)


def unheard(plan: Plan) -> Plan:
    """The last of three nodes is that machine. It comes late, to a cluster that is new or not, or was always there."""
    begins = (20.0, 1.0, 20.0)[plan.seed % 3]

    def strike(at: float, kind: str, node: int, amount: float) -> Item:
        return Item(begins + at, kind, round((node + 0.5) / 3, 2) + 0.007, amount)  # it strikes that very node

    items = (
        strike(0.0, "bus_cut", 2, 24.0),
        *[strike(0.9, "ledger_cut", node, 1.6) for node in (0, 1)],
        Item(begins + 1.4, "trigger", 0.9, 0.0, "hand#1"),
        strike(2.3, "ledger_cut", 2, 6.0),
        Item(begins + 2.4, FAILOVER, RESTARTS / 2, 0.1),
        Item(begins + 3.2, "trigger", 0.1, 0.0, "hand#1"),  # a client that has had no answer asks again, elsewhere
    )
    joins = (*plan.joins[:2], plan.joins[2] if plan.seed % 3 == 2 else begins)
    of_nodes = {name: getattr(plan, name)[:3] for name in ("rates", "skews", "tags", "rooms")}
    return replace(plan, items=items, joins=joins, **of_nodes)


def _moves(seed: int) -> list[Item]:
    """The disks that move, from a random stream of their own."""
    rng = random.Random(f"moves of {seed}")
    return [
        Item(rng.uniform(3, CHAOS_S), MOVED, rng.random(), rng.uniform(*MOVED_S)) for _ in range(rng.choice((2, 4)))
    ]


def _triggers(rng: random.Random) -> list[Item]:
    """Who asks for which run. Requests with the same id are for the same run, on any node."""
    made = []
    for number in range(rng.choice(TRIGGERS)):
        run = f"{rng.choice(('held', 'hand', 'hand', 'guarded', 'morph'))}#{number}"
        made += [Item(rng.uniform(2, CHAOS_S), "trigger", rng.random(), 0.0, run) for _ in range(rng.choice((1, 1, 2)))]
    return made


def _acts(rng: random.Random, jobs: dict[str, Job], forgets: bool) -> list[Item]:
    """What people do besides asking for runs.

    If the ledger forgets, nobody uses retention: witnesses do not know which runs retention has removed.
    """
    made = []
    runs = [f"{name}#{number}" for name in ("held", "hand", "guarded") for number in range(TRIGGERS[0])]
    for job in jobs.values():
        if job.schedule is not None:
            runs += [scheduled_run(job.name, at) for at in fires_between(job.schedule, WALL, WALL + SCHEDULES_END_S, 9)]
    for act, most in ACTS.items():
        if act == "prune" and forgets:
            continue
        for _ in range(rng.randint(0, most)):
            what = rng.choice(runs) if act in ("revoke", "cancel") else rng.choice(sorted(jobs))
            if act == "conflict":
                what = f"hand#{rng.randrange(TRIGGERS[0])}"
            made.append(Item(rng.uniform(5, CHAOS_S), act, rng.random(), rng.uniform(3, 20), what))
    return made
