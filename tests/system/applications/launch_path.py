"""The submitter is killed at each line of the launch path, and the run must have one application in the end.

    claim, journal           the daemon is killed when the ledger, or the journal, has the grant; it is started again
    gate                     the runner is killed as soon as it is there
    exec, submitted          the runner is killed while spark-submit has not yet, or has just, handed the driver over
    tracked                  the runner is killed when the ledger has the application

The first two kills fall at that line or shortly after it. The watcher lives: without it nobody could tell whether the
submitter is dead, and the run would wait for a person where no application is shown. A Standalone master cannot prove
that nothing was submitted, so there a person says after "gate" and "exec" that the run is to be tried again.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from support.servers.spark import StandaloneCluster

from system.applications.daemons import application_of, daemons_on, followed
from system.applications.standalone import KIND
from system.applications.tracked import Place
from system.lab.cluster import Cluster, Node
from system.lab.processes import exists, until

POINTS = ("claim", "journal", "gate", "exec", "submitted", "tracked")
OF_DAEMON = ("claim", "journal")
STOPS = {"exec": "before", "submitted": "after"}

NOTHING_SUBMITTED = "nothing was submitted: its submitter is dead"
NOBODY_KNOWS = "resolved as relaunch by "

ROUND_S = 180.0
POLL_S = 0.001


class Round:
    """One run, whose submitter is killed at one point."""

    def __init__(self, cluster: Cluster, place: Place, point: str, ident: str) -> None:
        self.cluster = cluster
        self.place = place
        self.point = point
        self.run = f"{point}#{ident}"
        self.killed = False
        self.resolved = False  # a person has said that it is to be tried again

    @property
    def node(self) -> Node:
        return self.cluster.nodes[0]

    def trigger(self) -> None:
        self.go.unlink(missing_ok=True)
        self.stopped.unlink(missing_ok=True)
        self.node.call("run.trigger", job=self.point, id=self.run.partition("#")[2])

    @property
    def go(self) -> Path:
        return go_of(self.place, self.point)

    @property
    def stopped(self) -> Path:
        """Where a submitter that stops writes its pid."""
        return Path(f"{self.go}.{STOPS.get(self.point, 'x')}")

    def reached(self) -> bool:
        """True if the run has come to its point."""
        if self.point == "journal":
            return any(self.run.encode() in path.read_bytes() for path in self.node.state_dir.glob("journal/*.jsonl"))
        if self.point == "gate":
            return bool(self.runner())
        if self.point in STOPS:
            return self.stopped.exists()
        row = self.cluster.row(self.run)
        return bool(row.get("application_id")) if self.point == "tracked" else row.get("state") is not None

    def kill(self) -> None:
        """Kill the submitter, here and now."""
        self.killed = True
        if self.point in OF_DAEMON:
            self.node.kill()
            self.node.start()
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.runner() or int(self.node.runner(self.run)["pid"]), signal.SIGKILL)
        if self.point in STOPS:  # it dies shortly after its runner, and would go on if it saw the file before
            until(lambda: not exists(int(self.stopped.read_text())))
        self.go.touch()

    def runner(self) -> int:
        """The pid of the run's runner, which is the child of its watcher; 0 if it is not there.

        Other tests have the same jobs at the same time: the run's id must be this process's own.
        """
        pids = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                words = (path / "cmdline").read_bytes().split(b"\0")
                if b"coordd-runner" in words and self.run.encode() in words:
                    pids[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        return next((pid for pid, parent in pids.items() if parent in pids), 0)

    def judged(self) -> str:
        """Wait for the run's end; what is wrong with it, or ""."""
        if self.place.kind == KIND:
            until(self.has_application_or_is_resolved, ROUND_S, why=f"{self.run} has an application")
        ident = followed(self.cluster, self.run)
        self.place.fake.finish(ident)
        row = self.cluster.becomes(self.run, "success", "failure", "lost", "revoked", limit_s=ROUND_S)
        found = application_of(self.place, self.run)
        reasons = [f"{one['state']}: {one['reason']}" for one in self.cluster.attempts(self.run)]
        proved = self.point != "exec" or (NOBODY_KNOWS if self.resolved else NOTHING_SUBMITTED) in reasons[0]
        if found == [ident] and row["state"] == "success" and proved:
            return ""
        return f"{self.run}: {row['state']}, applications {found}, followed {ident}; {reasons}"

    def has_application_or_is_resolved(self) -> bool:
        """A person looks what the run waits for, and lets it be tried again where nobody can tell."""
        row = self.cluster.row(self.run)
        if row["state"] == "unknown" and not self.resolved:
            problems = [one["problem"] for one in self.node.call("orphans")["runs"] if one["id"] == self.run]
            if any("forgets ended drivers when it restarts" in text for text in problems):
                assert application_of(self.place, self.run) == [], "what runs is adopted, without a person"
                self.node.call("run.resolve", id=self.run, **{"as": "relaunch"})
                self.resolved = True
        return row["state"] == "started" and bool(row["application_id"])


def go_of(place: Place, point: str) -> Path:
    return place.directory / f"go-{point}"


def jobs(cluster: Cluster, place: Place) -> None:
    """A job for each point."""
    for point in POINTS:
        stops = f'SUBMIT_STOPS = "{STOPS[point]}"\n' if point in STOPS else ""
        cluster.job_file(point, f'{place.job()}[spark.env]\nSUBMIT_GO = "{go_of(place, point)}"\n{stops}')


def kill_all(rounds: list[Round]) -> None:
    """Trigger the runs, and kill each when it comes to its point. A daemon that is killed starts nothing meanwhile, so
    the runs whose daemon is killed come first, one by one.
    """
    for one in sorted(rounds, key=lambda one: one.point not in OF_DAEMON):
        one.trigger()
        if one.point in OF_DAEMON:
            wait_and_kill([one])
    wait_and_kill([one for one in rounds if not one.killed])


def wait_and_kill(waiting: list[Round]) -> None:
    until_at = time.monotonic() + ROUND_S
    while waiting:
        assert time.monotonic() < until_at, [one.run for one in waiting]
        for one in waiting:
            if one.reached():
                one.kill()
        waiting = [one for one in waiting if not one.killed]
        time.sleep(POLL_S)


def play(kind: str, rounds: int, seed: int, real: StandaloneCluster | None = None) -> Counter[str]:
    """Kill at every point, that many times; returns how often each point ended with one adopted application.

    Raises AssertionError with everything that is wrong.
    """
    good: Counter[str] = Counter()
    rng = random.Random(seed)
    with daemons_on(kind, 1, real=real) as (cluster, place):
        jobs(cluster, place)
        cluster.start()
        wrong = []
        for number in range(rounds):
            ident = f"{number}-{os.getpid()}"
            batch = [Round(cluster, place, point, ident) for point in rng.sample(POINTS, len(POINTS))]
            kill_all(batch)
            for one in batch:
                problem = one.judged()
                wrong += [problem] if problem else []
                good[one.point] += not problem
            until(lambda: not any(row["state"] == "started" for row in cluster.rows()))
            print(f"{kind}, round {number + 1} of {rounds}: {dict(good)}", flush=True)
        assert not wrong, "\n".join(wrong)
    return good
