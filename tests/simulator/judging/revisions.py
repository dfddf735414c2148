"""RV: a revision of the jobs comes into force in one step, when every member has read it; no job fires by two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordd.core.ledger.revision.text import GONE
from coordd.core.ledger.rows import is_backfill
from simulator.judging.records import KNOWN_S
from simulator.machines.revisions import LACKING

if TYPE_CHECKING:
    from coordd.core.ledger.requests import Adopt
    from coordd.core.ledger.rows import Row
    from simulator.machines.revisions import Store
    from simulator.world import Host, World


class Revisions:
    """What the ledger of one world was told of revisions."""

    def __init__(self, world: World, store: Store) -> None:
        self.world, self._store = world, store
        self.number = 0  # of the revision in force
        self.highest = 0  # of all that ever were
        self.sure = False  # the ledger has not gone back since
        self._once = {1}  # all that ever were in force: a node that has one may bring it back. Disks have the first one
        self._definitions: dict[str, str] = {}  # job -> digest, of the jobs in force that have a schedule

    def went_back(self) -> None:
        """The ledger may have forgotten which revision is in force."""
        self.sure = False

    def adopted(self, said: Adopt, host: Host) -> bool:
        """Check one answer "ok" to a node that asks for a revision. False if it was in force already."""
        world = self.world
        if self.sure and said.number == self.number:
            return False
        if self.sure and said.number < self.number:
            world.violate(f"RV revision {said.number} comes into force after revision {self.number}")
        if said.number not in self._once:
            self._all_have_read(said.number, host)
        self._once.add(said.number)
        self.number, self.sure = said.number, True
        self.highest = max(self.highest, said.number)
        self._definitions = self._of(said.number)
        counts = {}
        listed = {name: (digest, schedule) for name, digest, schedule in map(str.split, said.jobs.splitlines())}
        for name in world.plan.jobs if said.newest else listed:
            digest, schedule = listed.get(name, (GONE, GONE))
            row = world.server.job(name)
            if name not in listed and (row is None or not row.digest):
                continue  # the ledger has no definition of it
            world.judge.activated(name, schedule, "person", -said.number)
            wanted = self._definitions.get(name, GONE)
            now = row.digest or GONE if row is not None else "nothing"  # a job that never had a schedule has no digest
            if now != digest or digest != wanted:
                world.violate(f"RV revision {said.number} is in force, {name} is {wanted} in it, and {now} counts")
            counts[name] = row.counts_from if row is not None else 0.0
        for name in self._definitions.keys() - counts.keys():
            world.violate(f"RV revision {said.number} is in force without its {name}")
        world.say(f"revision {said.number} is in force: {counts}")
        return True

    def _of(self, number: int) -> dict[str, str]:
        texts = self._store.revisions[number].texts
        found = {name: text.partition(LACKING)[0] for name, text in texts.items()}
        return {name: digest for name, digest in found.items() if self.world.known_jobs[digest].schedule is not None}

    def _all_have_read(self, number: int, by: Host) -> None:
        """Every member has read it, and can use it."""
        world = self.world
        texts = self._store.revisions[number].texts
        lacking = " ".join([text.partition(LACKING)[2] for text in texts.values()]).split()
        for host in world.hosts:
            if host.daemon is None or not self._is_member(host) or not self._is_member(by):
                continue
            if host.daemon.name not in self._store.readers.get(number, ()):
                world.violate(f"RV {by.name} has put revision {number} in force, and {host.name} has not read it")
            if host.name in lacking:
                world.violate(f"RV {by.name} has put revision {number} in force, and {host.name} cannot use it")

    def _is_member(self, host: Host) -> bool:
        """True if all nodes must know by now that this one lives."""
        world, since = self.world, self.world.now - KNOWN_S
        return (
            host.daemon is not None
            and not host.daemon.paused
            and host.daemon.began_at < since
            and "loss" not in world.rough
            and not world.records.between(host.index, since, world.now)
            and not world.records.unheard(host.index, since, world.now)
        )

    def opened(self, row: Row) -> None:
        """A scheduled run has got its row: by the definition of the revision in force, for the time since it counts."""
        world = self.world
        if not self.sure or not row.scheduled or is_backfill(row) or row.job not in world.plan.jobs:
            return
        counts = self._definitions.get(row.job, "nothing")
        if row.digest != counts:
            world.violate(
                f"RV {row.run} is opened by {row.digest}, and in revision {self.number} {row.job} is {counts}"
            )
