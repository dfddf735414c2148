"""The work: jobs of several policies, and clients that trigger runs on any node, and some runs on two nodes."""

from __future__ import annotations

import itertools
import random
import threading
import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

from system.lab.cluster import CallError, Node

from chaos.cluster import Arena


class JobKind(NamedTuple):
    """A job, with the facts that the checker needs. ``every_s`` 0.0: the job runs only by trigger."""

    name: str
    every_s: float = 0.0
    longest_s: float = 15.0
    fails: int = 0
    deaf: int = 10
    overlap: str = "allow"
    on_lost: str = "relaunch"
    retry: bool = False
    child: int = 20
    edited: bool = False  # its schedule changes, so nobody knows beforehand which runs it must have

    @property
    def holds(self) -> bool:
        return self.on_lost == "hold"


JOBS = (
    JobKind("tick", 5.0, 25.0),
    JobKind("hold-tick", 12.0, 12.0, on_lost="hold"),
    JobKind("queue-tick", 10.0, 5.0, overlap="queue"),
    JobKind("forbid-tick", 7.0, 8.0, fails=20, overlap="forbid", retry=True),
    JobKind("edited-tick", 6.0, 4.0, edited=True),
    JobKind("asked", longest_s=30.0, fails=10, child=50),
    JobKind("hold-asked", longest_s=10.0, fails=10, on_lost="hold"),
    JobKind("retry-asked", longest_s=8.0, fails=30, retry=True),
    JobKind("queue-asked", longest_s=3.0, overlap="queue"),
)
KINDS = {job.name: job for job in JOBS}

# How often each job is triggered, relative to the others.
WEIGHTS = {"asked": 5, "hold-asked": 2, "retry-asked": 2, "queue-asked": 2}

CLIENTS = 4
TWICE = 0.15  # proportion of the triggers that are sent to a second node at the same time
AGAIN_S = 0.3


# The schedules (seconds) and jitters that ``edited-tick`` may get by an edit.
EVERY_S = (6.0, 7.0, 8.0)
JITTERS = ("0s", "3s")

# If no node has the definition of a waiting run any more, the run becomes MISSED after this time. The trial waits much
# longer than this. An absence or a quarantine of the ledger is shorter than this.
START_WITHIN_S = 90


class Edit(NamedTuple):
    """A job file was changed: from ``wall`` on (Unix seconds), the job fires every ``every_s`` seconds."""

    job: str
    every_s: float
    wall: float


class Jobs:
    """The job files. Schedules run from ``start`` to ``end`` (whole Unix seconds). Each fire time in between counts."""

    def __init__(self, arena: Arena, start: float, end: float) -> None:
        self.arena = arena
        self.start = start
        self.end = end
        self.edits: list[Edit] = []
        self._description = 0

    def write(self) -> None:
        """Write all job files with their first content."""
        for job in JOBS:
            self._write(job, job.every_s, "0s")

    def edit_schedule(self, chance: random.Random) -> str:
        """Change a job's schedule in its file. Nodes read the file when they reload. Returns what was changed."""
        job = next(job for job in JOBS if job.edited)
        now_s = next((edit.every_s for edit in reversed(self.edits)), job.every_s)
        every_s = chance.choice([other for other in EVERY_S if other != now_s])
        jitter = chance.choice(JITTERS)
        self._write(job, every_s, jitter)
        return f"{job.name} every {every_s:g}s, jitter {jitter}"

    def edit_description(self, chance: random.Random) -> str:
        """Change a job's description. No fire time may be lost by this change. Returns what was changed."""
        job = chance.choice([job for job in JOBS if job.every_s and not job.edited])
        self._description += 1
        self._write(job, job.every_s, "0s")
        return f"{job.name}, its description"

    def _write(self, job: JobKind, every_s: float, jitter: str) -> None:
        keys: dict[str, Any] = {
            "overlap": job.overlap,
            "on_lost": job.on_lost,
            "description": f"edited {self._description} times",
        }
        if every_s:
            keys |= {"schedule": f"every {every_s:g}s", "jitter": jitter, "start": _iso(self.start)}
            keys |= {"end": _iso(self.end), "misfire": "skip" if job.edited else "all"}
        retry: dict[str, Any] = {"relaunches": 50} if job.on_lost == "relaunch" else {}
        if job.retry:
            retry |= {"attempts": 3, "delay": "1s"}
        if retry:
            keys["retry"] = retry
        if job.edited:
            keys["start_within"] = f"{START_WITHIN_S}s"
            self.edits.append(Edit(job.name, every_s, time.time()))
        self.arena.chaos_job(job.name, longest_s=job.longest_s, fails=job.fails, deaf=job.deaf, child=job.child, **keys)


def fire_times(start: float, end: float) -> list[str]:
    """The expected scheduled runs: each multiple of the interval since 1970, from ``start`` to before ``end``."""
    runs = []
    for job in JOBS:
        if job.every_s and not job.edited:
            at = -(-start // job.every_s) * job.every_s
            while at < end:
                runs.append(f"{job.name}@{_iso(at)}")
                at += job.every_s
    return runs


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Accepted(NamedTuple):
    """A trigger that a daemon has answered. ``at``: CLOCK_BOOTTIME. ``durable``: cluster | node."""

    run: str
    node: str
    durable: str
    at: float


class Load:
    """The clients, one thread each. They repeat a request until a node accepts it."""

    def __init__(self, arena: Arena, seed: int, per_minute: float) -> None:
        self.arena = arena
        self.seed = seed
        self.pause_s = CLIENTS * 60.0 / per_minute
        self.accepted: list[Accepted] = []
        self.refused: list[str] = []  # the reasons why nodes did not accept a trigger
        self.given_up: list[str] = []  # runs that no node has accepted by the end: each may run or not
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._client, args=(number,), name=f"client {number}") for number in range(CLIENTS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send no new requests; repeat those that were not accepted for a while."""
        self._stop.set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _client(self, number: int) -> None:
        chance = random.Random(f"{self.seed} client {number}")
        while not self._stop.wait(chance.expovariate(1 / self.pause_s)):
            job = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            ident = f"{next(self._numbers)}"
            nodes = list(self.arena.nodes)
            chance.shuffle(nodes)
            if chance.random() < TWICE:
                other = threading.Thread(target=self._ask, args=(nodes[1], job, ident))
                other.start()
                self._until_accepted(nodes, job, ident)
                other.join()
            else:
                self._until_accepted(nodes, job, ident)

    def _until_accepted(self, nodes: list[Any], job: str, ident: str) -> None:
        for node in itertools.islice(itertools.cycle(nodes), 100):
            if self._ask(node, job, ident):
                return
            time.sleep(AGAIN_S)
        self.given_up.append(f"{job}#{ident}")

    def _ask(self, node: Node, job: str, ident: str) -> bool:
        try:
            said = node.call("run.trigger", job=job, id=ident)
        except OSError as exc:
            self.refused.append(f"{node.name}: {type(exc).__name__}")
            return False
        except CallError as exc:
            self.refused.append(f"{node.name}: {exc.kind}: {exc}")
            return False
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.accepted.append(Accepted(said["id"], node.name, said["durable"], at))
        return True
