"""Published revisions: their store, and the real source of each daemon (services/backends/published.py).

The text of a job file is the digest of a definition of the world. If some machines lack what it needs, their names
follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from coordd.config import tables
from coordd.config.jobfile import JobSet
from coordd.config.sections import Config, JobsConfig
from coordd.config.tomlfile import Problem
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Adopt
from coordd.errors import UnavailableError
from coordd.ports import Kept, Published, Seal, Vote
from coordd.services.backends import published, source
from coordd.services.backends.published import HURRY_S, LOOK_S, PublishedSource
from simulator.machines.waiting import Question, Then, Turns

if TYPE_CHECKING:
    from simulator.machines.daemon import Daemon
    from simulator.world import World

CONFIG = Config(jobs=JobsConfig(backend="redis"))

# In the text of a job file: the machines that lack what it needs follow.
LACKING = " but not on "

# In worlds with the fault ``pause_daemon``, some daemons stand still right after they have read a revision, or right
# before they ask the ledger for it: how probable that is, and for how many seconds.
HESITATES = 0.2
HESITATES_S = (1.0, 20.0)

URL = "store"


class Store:
    """What all nodes read, and nobody loses. ``readers``: revision -> the daemons that have read it."""

    def __init__(self) -> None:
        self.revisions: dict[int, Published] = {}
        self.said: dict[int, dict[str, Vote]] = {}
        self.readers: dict[int, set[str]] = {}
        self.number = 0
        self.down_until = 0.0

    def put(self, texts: dict[str, str], *, digest: str = "", above: int = 0, by: str = "a person") -> Published:
        """A new revision. ``digest``: not that of its texts, so that it is damaged."""
        self.number = max(above, self.number) + 1
        made = Published(self.number, digest or tables.digest_of(texts), by, 0, 0.0, "", len(texts), texts=texts)
        self.revisions[self.number] = made
        return made


class Reached:
    """The store, as one daemon reaches it."""

    url = URL

    def __init__(self, daemon: Daemon, store: Store) -> None:
        self._daemon, self._store = daemon, store

    def _look(self) -> None:
        daemon = self._daemon
        if daemon.world.now < self._store.down_until or not daemon.world.server.reaches(daemon.host):
            raise UnavailableError("the store is away")

    def newest(self) -> int:
        self._look()
        return max(self._store.revisions, default=0)

    def read(self, number: int) -> Published:
        self._look()
        self._store.readers.setdefault(number, set()).add(self._daemon.name)
        hesitates(self._daemon, "pause_after_read")
        return self._store.revisions[number]

    def vote(self, number: int, member: str, said: Vote) -> None:
        self._look()
        self._store.said.setdefault(number, {})[member] = said

    def votes(self, number: int) -> dict[str, Vote]:
        self._look()
        return dict(self._store.said.get(number, {}))

    def publish(
        self, texts: dict[str, str], digest: str, seal: Seal, *, above: int, by: str, uid: int, note: str
    ) -> Published:
        self._look()
        return self._store.put(texts, digest=digest, above=above, by=by)

    def listed(self) -> list[Published]:
        self._look()
        return [self._store.revisions[number] for number in sorted(self._store.revisions, reverse=True)]

    def close(self) -> None: ...


class KeptOnDisk:
    """The copy of the definitions on the disk of a daemon's machine."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def load(self) -> tuple[Kept | None, str]:
        return self._daemon.host.disk.revision, ""

    def save(self, kept: Kept) -> None:
        if self._daemon.full:
            raise UnavailableError("the disk is full")
        self._daemon.host.disk.revision = kept


def hesitates(daemon: Daemon, why: str) -> None:
    """Between a look at the store or the ledger and what follows from it, a daemon may stand still."""
    world = daemon.world
    if "pause_daemon" in world.plan.faults and not world.chaos_over and daemon.calls.random() < HESITATES:
        world.fault_log[why] += 1
        daemon.pause(daemon.calls.uniform(*HESITATES_S))


class Sources:
    """The sources of all daemons of one world."""

    def __init__(self, world: World, turns: Turns) -> None:
        self.world, self.turns, self.store = world, turns, Store()

    def start(self, daemon: Daemon) -> PublishedSource:
        """The source of a daemon that starts, with the definitions that it has at its start."""
        made = PublishedSource(
            CONFIG,
            KeptOnDisk(daemon),
            Reached(daemon, self.store),
            lambda _number, _digest: ("", ""),
            lambda _of, _named: "",
        )
        ledger: Any = SimpleNamespace(write=partial(self._write, daemon))
        driver: Any = SimpleNamespace(node=daemon.node, feed=daemon.feed, bus=Connection(daemon))
        made.attach(partial(self._use, daemon), driver, ledger)
        with self.turns.of(daemon):
            made.start()
        daemon.host.jobs = made.jobs.jobs
        daemon.node.rulebook.definitions.published = True
        daemon.node.rulebook.definitions.revision = made.revision
        self.world.at(daemon.rng.uniform(0.1, LOOK_S), self._look, daemon, made)
        return made

    def _look(self, daemon: Daemon, of: PublishedSource) -> None:
        if daemon._late(self._look, daemon, of):
            return
        if daemon.node.ctx.state in ("ready", "draining"):
            self.turns.begin(daemon, of.look(), lambda _: self._looked(daemon, of))
        else:
            self.world.at(LOOK_S, self._look, daemon, of)

    def _looked(self, daemon: Daemon, of: PublishedSource) -> None:
        self.world.at((HURRY_S if of._hurry else LOOK_S) / daemon.host.rate, self._look, daemon, of)

    def _use(self, daemon: Daemon, jobs: JobSet) -> None:
        daemon.host.jobs = jobs.jobs
        revision = daemon.node.rulebook.definitions.revision = daemon.source.revision if daemon.source else 0
        self.world.say(f"{daemon.host.name} takes its revision {revision}")
        self.world.publishing.taken()
        daemon.feed(self.world.configuration.noticed, daemon.host, jobs.jobs)

    async def _write(self, daemon: Daemon, request: Adopt) -> Answer:
        answer: Answer | None = await Question(partial(self._ask, daemon, request))
        if answer is None:
            raise UnavailableError("the ledger does not answer")
        return answer

    def _ask(self, daemon: Daemon, request: Adopt, then: Then) -> None:
        hesitates(daemon, "pause_before_adopt")
        if not daemon._late(self._ask_ledger, daemon, request, then):
            self._ask_ledger(daemon, request, then)

    def _ask_ledger(self, daemon: Daemon, request: Adopt, then: Then) -> None:
        self.world.server.ask(daemon.host, request, then)

    # ---- what stands in for files and Redis

    def read(self, said: Mapping[str, Any], where: str, _config: Config) -> JobSet:
        """In place of ``tables.read``: the definitions with these digests, as this machine can use them."""
        host = self.turns.present.host
        jobs, problems = {}, {}
        for name, text in said.items():
            digest, _, lacking = text.partition(LACKING)
            if host.name in lacking.split():
                problems[name] = [Problem(where, "", None, f"there is no pool for {name} here")]
            else:
                jobs[name] = self.world.known_jobs[digest]
        return JobSet(jobs, problems)

    @contextmanager
    def patched(self) -> Iterator[None]:
        """The services run in this world."""
        log: Any = Log(self.world)
        with (
            self.turns.patched(published),
            mock.patch.object(tables, "read", self.read),
            mock.patch.object(published, "log", log),
            mock.patch.object(source, "log", log),
        ):
            yield


class Connection:
    """The state of a daemon's bus."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    @property
    def state(self) -> str:
        return "connected" if self._daemon.connected else "disconnected"


class Log:
    """A log that is a transcript. A source keeps whatever goes wrong to itself; here it is a defect."""

    def __init__(self, world: World) -> None:
        self._world = world

    def info(self, event: str, **fields: Any) -> None:
        self._world.say(f"{event} {fields}")

    warning = info

    def error(self, event: str, **fields: Any) -> None:
        self.info(event, **fields)
        if fields.get("exc_info"):
            self._world.at(0.0, self._world.violate, f"X {fields}")
