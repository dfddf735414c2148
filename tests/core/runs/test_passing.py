"""Each fire time ends in exactly one decision, whatever nodes, the ledger and people do.

The oracle counts fire times with its own arithmetic, and records by itself which definition was there, who was up, what
was suspended and what was launched. It reads the ledger's decisions only to compare them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from support.small_cluster import EPOCH, Cluster, job

from coordd.core.context import Settings
from coordd.core.jobs.job import Blackout, Job, Schedule, scheduled_run
from coordd.core.ledger.requests import Keep, Suspend
from coordd.core.ledger.rows import ALL
from coordd.core.runs.passing import GRACE_S
from coordd.services.views import fires
from coordd.services.views.fires import Fire, Known

EVERY_S = 600.0
PIECE_S = 100.0
START_WITHIN_S = 900.0
JITTER_S = 7.0
SLOW = Settings(heartbeat_interval_s=30.0, renew_interval_s=20.0)

# A fire time is decided at most this long (seconds) after it was due, when nodes and ledger are there.
DECIDED_S = START_WITHIN_S + GRACE_S + 120.0


def definition(number: int, misfire: str, *, blackout: bool) -> Job:
    """The n-th definition: an earlier file with another interval."""
    every_s = EVERY_S * (1 + number % 2)
    silent = (Blackout(start=EPOCH + 4 * 3600.0, end=EPOCH + 5 * 3600.0),) if blackout else ()
    schedule = Schedule(kind="every", every_s=every_s, offset_s=JITTER_S, blackout=silent)
    return job(digest=f"d{number}", schedule=schedule, misfire=misfire, start_within_s=START_WITHIN_S)


@dataclass
class Past:
    """What happened, as the test has recorded it."""

    cluster: Cluster
    definitions: list[tuple[float, Job]]
    suspended: list[tuple[float, float]] = field(default_factory=list)
    suspended_from: float = 0.0
    decided: dict[float, tuple[str, str]] = field(default_factory=dict)  # due -> its decision and run, when first seen
    known: list[Job] = field(default_factory=list)
    runs: set[str] = field(default_factory=set)  # launched at any time, on any node

    @property
    def now(self) -> float:
        return self.cluster.time().wall

    def expected(self) -> list[tuple[float, Job]]:
        """Every due time so far, with its definition, by arithmetic of its own."""
        found = []
        ends = [at for at, _ in self.definitions[1:]] + [float("inf")]
        for (begin, one), end in zip(self.definitions, ends, strict=True):
            assert one.schedule is not None
            step = int(one.schedule.every_s)
            for nominal in range(int(EPOCH) // step * step, int(self.now) + 1, step):
                due = nominal + JITTER_S
                if begin < due <= min(end, self.now):
                    found.append((due, one))
        return found

    def answer(self) -> list[Fire]:
        """`job.fires` from the beginning until now."""
        ledger = self.cluster.ledger
        known = ledger.fires("sales")
        rows = {row.run: row for row in ledger.runs(job="sales", limit=10_000)}
        parts = fires.segments(known.activations, reversed(self.known))
        dues = fires.enumerated(parts, EPOCH, self.now, 10_000, 0.0, self.now)
        return fires.fires(dues, Known(known, rows, ""), EPOCH, self.now, 0.0, self.now)

    def check(self) -> None:
        """One line for each fire time; a decision stays as it is."""
        answer = self.answer()
        assert [fire.due for fire in answer] == [due for due, _ in self.expected()]
        for fire in answer:
            if fire.decision:
                first = self.decided.setdefault(fire.due, (fire.decision, fire.run))
                assert fire.decision == first[0], f"{fire} was {first}"
            else:
                assert fire.due not in self.decided, f"{fire} was {self.decided[fire.due]}"

    def launched(self) -> set[str]:
        return {launch.run for shell in self.cluster.shells.values() for launch in shell.launches}


def edited(past: Past, number: int, misfire: str, *, blackout: bool) -> None:
    """All machines get another file, while a node and the ledger are there."""
    cluster = past.cluster
    one = definition(number, misfire, blackout=blackout)
    past.known.append(one)
    cluster.jobs = {"sales": one}
    past.definitions.append((past.now, one))
    for shell in cluster.shells.values():
        shell.do(shell.node.set_jobs, cluster.jobs)
    cluster.wait(60.0)


def lived(seed: int) -> Past:
    """A random history of some hours, of two nodes."""
    rng = random.Random(seed)
    misfire, blackout = rng.choice(("once", "skip", "all")), rng.random() < 0.5
    first = definition(0, misfire, blackout=blackout)
    cluster = Cluster("a", "b", jobs=[first], settings=SLOW)
    past = Past(cluster, [(EPOCH, first)], known=[first])
    number = boots = 1
    launched: dict[str, None] = {}
    cluster.wait(120.0)
    for _ in range(14):
        what = rng.choice(("wait", "wait", "kill", "start", "suspend", "resume", "pause", "away", "back", "edit"))
        alive = [name for name, shell in cluster.shells.items() if shell.alive]
        if what == "kill" and alive:
            cluster.kill(rng.choice(alive))
        elif what == "start" and len(alive) < 2:
            boots += 1
            dead = next(name for name, shell in cluster.shells.items() if not shell.alive)
            launched.update(dict.fromkeys(one.run for one in cluster.shells[dead].launches))
            cluster.boot(dead, boots)
            cluster.start(dead)
        elif what in ("suspend", "pause") and not past.suspended_from:
            hold = (
                Keep(key=ALL, held=True, by="ann") if what == "pause" else Suspend(job="sales", suspended=True, by="a")
            )
            cluster.ledger.ask(hold)
            past.suspended_from = past.now
        elif what == "resume" and past.suspended_from:
            resume(past)
        elif what in ("away", "back"):
            cluster.ledger_away = what == "away"
        elif what == "edit" and alive and not cluster.ledger_away:
            cluster.wait(60.0)
            if 60.0 < past.now % EVERY_S < 400.0:
                edited(past, number, rng.choice(("once", "skip", "all")), blackout=blackout)
                number += 1
        wait_in_pieces(past, rng.choice((300.0, 1000.0, 4000.0)), launched)
    cluster.ledger_away = False
    for name in cluster.shells:
        launched.update(dict.fromkeys(one.run for one in cluster.shells[name].launches))
        boots += 1
        cluster.boot(name, boots)
        cluster.start(name)
    resume(past)
    wait_in_pieces(past, 2 * DECIDED_S + 2 * EVERY_S, launched)
    past.runs = set(launched)
    return past


def resume(past: Past) -> None:
    past.cluster.ledger.ask(Suspend(job="sales", suspended=False, by="ann"))
    past.cluster.ledger.ask(Keep(key=ALL, held=False, by="ann"))
    if past.suspended_from:
        past.suspended.append((past.suspended_from, past.now))
    past.suspended_from = 0.0


def wait_in_pieces(past: Past, seconds: float, launched: dict[str, None]) -> None:
    """Programs end now and then, unless their node is dead; after each piece the decisions are compared."""
    cluster = past.cluster
    while seconds > 0:
        cluster.wait(min(seconds, PIECE_S))
        seconds -= PIECE_S
        for name, shell in cluster.shells.items():
            for run in list(shell.renew_at) if shell.alive else ():
                cluster.end(name, run)
        past.check()
    launched.update(dict.fromkeys(past.launched()))


@pytest.mark.parametrize("seed", range(10))
def test_each_fire_time_ends_in_exactly_one_decision(seed: int) -> None:
    past = lived(seed)

    jobs = dict(past.expected())
    assert {fire.due for fire in past.answer()} == jobs.keys()
    for fire in past.answer():
        assert fire.decision or fire.due > past.now - DECIDED_S, f"{fire} has no decision"
        judge(past, fire, jobs[fire.due])


def judge(past: Past, fire: Fire, of: Job) -> None:
    """The decision is one that this history allows."""
    run = scheduled_run("sales", fire.fire_at)
    assert of.schedule is not None
    silent = any(one.start <= fire.due < one.end for one in of.schedule.blackout)
    assert (fire.decision == "blackout") == silent, fire
    if fire.decision == "launched":
        assert fire.run == run
    elif past.cluster.ledger.run(run) is None:
        assert run not in past.runs, f"{fire}, and it was launched"
    if fire.decision == "coalesced":
        assert of.misfire == "once"
        assert fire.run > run
        assert past.cluster.ledger.run(fire.run) is not None
    if fire.decision == "skipped":
        gone = any(at > fire.due for at, _ in past.definitions[1:])
        assert of.misfire == "skip" or gone, fire
    if fire.decision == "suspended":
        assert any(begin <= end and end > fire.due + START_WITHIN_S for begin, end in past.suspended), fire


def test_a_suspended_job_leaves_one_line_and_no_rows() -> None:
    minutely = job(every_s=60.0, start_within_s=120.0)
    cluster = Cluster("a", "b", jobs=[minutely], settings=SLOW)
    cluster.ledger.ask(Suspend(job="sales", suspended=True, by="ann"))

    for _ in range(12):
        cluster.wait(300.0)

    (stretch,) = cluster.ledger.fires("sales").stretches
    assert stretch.decision == "suspended"
    assert stretch.upto - stretch.after > 50 * 60.0
    assert cluster.ledger.runs(limit=1000) == []


def only(cluster: Cluster, of: Job) -> list[tuple[str, str]]:
    """The decisions so far, each with the run that it names."""
    past = Past(cluster, [(EPOCH, of)], known=[of])
    return [(fire.decision, fire.run) for fire in past.answer()]


def away(misfire: str, hours: float) -> tuple[Cluster, Job]:
    """All nodes are away for that time from the beginning; the job fires hourly."""
    of = job(every_s=3600.0, start_within_s=START_WITHIN_S, misfire=misfire)
    cluster = Cluster("a", jobs=[of], settings=SLOW)
    cluster.wait(60.0)
    cluster.kill("a")
    cluster.wait(hours * 3600.0)
    cluster.boot("a", 2)
    cluster.start("a")
    return cluster, of


def test_what_is_skipped_before_the_next_launch_is_told_before_it() -> None:
    cluster, of = away("skip", 2.5)

    assert only(cluster, of) == [("skipped", ""), ("skipped", "")]


def test_what_was_coalesced_into_a_run_that_was_missed_names_it() -> None:
    cluster, of = away("once", 3.5)  # the newest is older than start_within: its run is missed
    cluster.wait(120.0)

    newest = scheduled_run("sales", EPOCH + 3 * 3600.0)
    assert cluster.state(newest) == "missed"
    assert only(cluster, of) == [("coalesced", newest), ("coalesced", newest), ("missed", newest)]


def test_a_fire_time_that_another_node_pursues_is_not_passed_over() -> None:
    cluster, of = away("skip", 0.5)
    cluster.ledger_away = True
    cluster.wait(3600.0)  # its fire time comes, and it cannot be claimed
    cluster.ledger_away = False
    cluster.wait(120.0)

    assert only(cluster, of) == [("missed", scheduled_run("sales", EPOCH + 3600.0))]


def test_a_job_that_always_runs_needs_no_record() -> None:
    minutely = job(every_s=60.0)
    cluster = Cluster("a", "b", jobs=[minutely], settings=SLOW)

    for _ in range(40):
        cluster.wait(30.0)
        for name, shell in cluster.shells.items():
            for run in list(shell.renew_at):
                cluster.end(name, run)

    assert {row.state for row in cluster.ledger.runs(limit=1000)} <= {"success", "received", "started"}
    assert cluster.ledger.fires("sales").stretches == []
