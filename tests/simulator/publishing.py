"""Worlds whose jobs come from published revisions: what people publish, and what is in force.

All of it is drawn from its own random stream. In such a world nobody edits a file.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

from msgspec import structs

from coordd.config import tables
from coordd.core.jobs.job import Job
from coordd.ports import Kept
from simulator import configuration
from simulator.item import Item
from simulator.judging.revisions import Revisions
from simulator.machines.revisions import LACKING, URL, Sources
from simulator.machines.waiting import Turns

if TYPE_CHECKING:
    from coordd.core.ledger.requests import Adopt
    from simulator.world import Host, World

PUBLISHED = "published"

# (m, r): the seeds with seed % m == r.
PUBLISHED_SEEDS = (13, 10)

# Revisions are published between these times (seconds); the last one is sound, and comes a little later.
FROM_S, UPTO_S, LAST_S = 4.0, 32.0, 34.0

# A revision may come right after another one, within this time (seconds).
SOON_S = (0.1, 6.0)

# What people publish, and how often: one job changed; one removed; a text that some machines cannot use, or that is
# damaged; an earlier revision once more. ``store_down``: nobody reaches the store for a while (seconds).
KINDS = {"publish": 5, "withdraw": 1, "unusable": 2, "damaged": 1, "rollback": 2, "store_down": 1}
ACTS = (2, 4, 6)
AWAY_S = (1.0, 8.0)

# Some machines wait long for the store: each call takes this many times as long.
SLOW, SLOWNESS = 0.25, (20.0, 100.0)

# Some machines have no copy of the first revision.
NO_COPY = 0.3


def draw(seed: int, jobs: dict[str, Job]) -> list[Item]:
    """What people publish in that world."""
    rng = random.Random(f"revisions of {seed}")
    items = []
    at = 0.0
    for _ in range(rng.choice(ACTS)):
        soon = at + rng.uniform(*SOON_S)
        at = soon if at and soon < UPTO_S and rng.random() < 0.4 else rng.uniform(FROM_S, UPTO_S)
        kind = rng.choices([*KINDS], [*KINDS.values()])[0]
        amount = rng.uniform(*AWAY_S) if kind == "store_down" else rng.random()
        items.append(Item(at, kind, rng.random(), amount, rng.choice(sorted(jobs))))
    items.append(Item(LAST_S, "publish", rng.random(), rng.random(), rng.choice(sorted(jobs))))
    return items


class Publishing:
    """The published revisions of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sources = Sources(world, Turns())
        self.store = self.sources.store
        self.rng = random.Random(f"who can use revisions of {world.plan.seed}")
        self.texts = {name: job.digest for name, job in world.plan.jobs.items()}  # of the newest sound revision
        self.judge = Revisions(world, self.store)
        if world.plan.published:
            first = self.store.put(self.texts)
            for host in world.hosts:
                slow = self.rng.random() < SLOW
                host.slowness = self.rng.uniform(*SLOWNESS) if slow else 1.0
                host.jobs = {}
                if self.rng.random() > NO_COPY:
                    host.disk.revision = Kept(URL, self.texts, first.number, first.digest)

    def patched(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which this world's services run."""
        return self.sources.patched() if self.world.plan.published else contextlib.nullcontext()

    # ---- what people do

    def do(self, item: Item) -> None:
        """One act of the plan."""
        world = self.world
        world.acts[f"revision {item.kind}"] += 1
        if item.kind == "store_down":
            self.store.down_until = max(self.store.down_until, world.now + item.amount)
            return
        texts = self._texts(item)
        if item.kind == "damaged":
            made = self.store.put(texts, digest="spoilt", above=self._highest())
        elif item.kind == "unusable":
            made = self.store.put(texts, above=self._highest())
        else:
            self.texts = texts
            made = self.store.put(texts, above=self._highest())
        world.say(f"PEOPLE {item.kind} {item.what}: revision {made.number} is {texts}")

    def _highest(self) -> int:
        return max(self.judge.highest, self.store.number)

    def _texts(self, item: Item) -> dict[str, str]:
        world = self.world
        if item.kind == "rollback":
            sound = [one for one in self.store.revisions.values() if one.digest == tables.digest_of(one.texts)]
            usable = [one.texts for one in sound if not any(LACKING in text for text in one.texts.values())]
            return dict(usable[int(item.who * len(usable))])
        if item.kind == "withdraw" and len(self.texts) > 1:
            return {name: text for name, text in self.texts.items() if name != item.what}
        present = world.known_jobs[self.texts.get(item.what, world.plan.jobs[item.what].digest)]
        job = configuration.edited(present, item)
        job = structs.replace(job, digest=job.digest.replace(" ", "-"))
        world.known_jobs[job.digest] = job
        text = job.digest
        if item.kind == "unusable":
            lacking = [host.name for host in world.hosts if self.rng.random() < 0.4] or [world.hosts[0].name]
            text += LACKING + " ".join(lacking)
        return {**self.texts, item.what: text}

    # ---- what comes of it

    def adopted(self, request: Adopt, host: Host) -> None:
        """The ledger was asked to put a revision in force, and has said ok."""
        if not self.judge.adopted(request, host):
            return
        texts = self.store.revisions[request.number].texts
        jobs = {name: self.world.known_jobs[text.partition(LACKING)[0]] for name, text in texts.items()}
        self.world.configuration.in_force(jobs)
        self.world.jobs = jobs

    def taken(self) -> None:
        """Some daemon uses another revision now."""
        self.world.configuration.settled_at = max(self.world.configuration.settled_at, self.world.now)

    def unsettled(self) -> bool:
        """True if the newest revision is not in force yet, or some node does not have it."""
        newest = max(self.store.revisions, default=0)
        sources = [
            host.daemon.source if host.daemon is not None else None for host in self.world.hosts if not host.gone
        ]
        return self.judge.number != newest or any(one is None or one.kept.number != newest for one in sources)
