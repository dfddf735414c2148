"""A pool of a few slots under hundreds of triggers from five nodes that are killed."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from system.lab.cluster import CallError, Cluster, cluster_of
from system.lab.processes import LOOK_S, boottime

from kills.judge import Record, Verdict, judge
from kills.slots import Change, alive, quantile, read, unused
from kills.stage import PROGRAM, Stage, keep

POOL = "heavy"
JOBS = 5

# The programs live this long (seconds).
LIFE_S = (0.3, 1.5)

# Nodes are killed in rounds this long (seconds) apart. All of a round are back before the next one.
KILLS_APART_S = 14.0

LEAD_S = 2.0
ASKED_APART_S = 1.0
SETTLE_S = 240.0
CALL_S = 3.0


class Plan(NamedTuple):
    """``triggers`` runs are asked for by chance on a node, ``apart_s`` seconds apart; a round kills ``kills`` nodes.
    ``unused_max_s``: how long a free slot may stay unused while a run waits for it.
    """

    triggers: int = 500
    apart_s: float = 0.2
    size: int = 4
    kills: int = 2
    nodes: int = 5
    unused_max_s: float = 1.0
    seed: int = 0


class Recorder:
    """What the ledger's Redis executes, by its own clock, past every daemon: MONITOR."""

    def __init__(self, cluster: Cluster) -> None:
        self.prefix = f"{{coordd:{cluster.production.name}}}:"
        self.lines: list[bytes] = []
        self._redis = cluster.production.redis
        self._sock = socket.create_connection((self._redis.host, self._redis.port), CALL_S)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._sock.sendall(b"MONITOR\r\n")
        assert self._sock.recv(5) == b"+OK\r\n"
        self._sock.settimeout(None)
        thread = threading.Thread(target=self._run, name="recorder")
        thread.start()
        try:
            yield
        finally:
            self._sock.shutdown(socket.SHUT_RDWR)
            thread.join()
            self._sock.close()

    def open(self) -> int:
        """How many runs are not over."""
        return int(self._redis.cli("ZCARD", self.prefix + "open"))

    def _run(self) -> None:
        with self._sock.makefile("rb") as lines:
            self.lines.extend(line for line in lines if b'"ZADD"' in line or b'"ZREM"' in line)


def run(plan: Plan, show: Callable[[str], object]) -> tuple[Verdict, dict[str, Any]]:
    """Play it; returns the verdict, and facts about the trial."""
    with cluster_of(plan.nodes, backend="production") as cluster:
        stage = Stage(cluster, plan.seed, 0.0)
        for node in cluster.nodes:
            node.settings = f"\n[pools]\n{POOL} = {plan.size}\n"
        for number in range(JOBS):
            _job(cluster, f"job{number}", plan.size)
        cluster.start()
        recorder, expected = Recorder(cluster), _triggers(cluster, stage, plan)
        over = threading.Event()
        _kills(stage, plan, over)
        with recorder.running():
            limit = boottime() + LEAD_S + plan.triggers * plan.apart_s + SETTLE_S
            asked_at, left = boottime(), plan.triggers

            def look() -> None:
                nonlocal asked_at, left
                if boottime() - asked_at > ASKED_APART_S:
                    asked_at, left = boottime(), recorder.open()
                    show(f"{len(cluster.starts())} starts, {len(stage.cuts)} kills, {left} not over")
                if boottime() > limit or (not left and boottime() > max(expected.values()) + LEAD_S):
                    over.set()

            stage.play(look)
        states = {row["run"]: row["state"] for row in cluster.rows()}
        # A trigger starts at once, and a busy machine may take it before its time here.
        verdict = judge(Record(dict.fromkeys(expected, 0.0), cluster.entries(), stage.cuts, states))
        changes = read([line.decode() for line in recorder.lines], recorder.prefix, POOL)
        about = _slots(plan, verdict, changes, alive(cluster.entries(), stage.cuts))
        keep(cluster, verdict)
        return verdict, {
            **plan._asdict(),
            **about,
            "ended_alone": stage.ended_alone,
            "cuts": [cut[:4] for cut in stage.cuts],
        }


def _job(cluster: Cluster, name: str, size: int) -> None:
    life = [f"{seconds}" for seconds in LIFE_S]
    argv = [sys.executable, "-I", "-S", "-E", str(PROGRAM), str(cluster.log_path), "", *life, f"{size}"]
    lines = ['overlap = "allow"', f'pool = "{POOL}"', "[retry]", "relaunches = 20", "[command]"]
    cluster.job_file(name, "\n".join([*lines, f"argv = {json.dumps(argv)}"]) + "\n")


def _triggers(cluster: Cluster, stage: Stage, plan: Plan) -> dict[str, float]:
    """Plan the triggers; returns each run with its time."""
    expected = {}
    for number in range(plan.triggers):
        at = boottime() + LEAD_S + number * plan.apart_s
        job, ident = f"job{number % JOBS}", f"{number}"
        expected[f"{job}#{ident}"] = at
        first = stage.chance.randrange(plan.nodes)
        stage.at(at, lambda job=job, ident=ident, first=first: _trigger(cluster, job, ident, first))  # type: ignore[misc]  # mypy cannot infer a default
    return expected


def _trigger(cluster: Cluster, job: str, ident: str, first: int) -> None:
    """A person asks a node; if it does not answer, the next one, for the same run."""
    limit = time.monotonic() + SETTLE_S
    nodes = [*cluster.nodes[first:], *cluster.nodes[:first]]
    while True:
        for node in nodes:
            node.patience_s = CALL_S
            try:
                node.call("run.trigger", job=job, id=ident)
            except (OSError, CallError):  # it is down, or starts
                continue
            return
        assert time.monotonic() < limit, f"no node takes {job}#{ident}"
        time.sleep(LOOK_S)


def _kills(stage: Stage, plan: Plan, over: threading.Event) -> None:
    """Each round kills some nodes within its first half, until all runs are over."""

    def again() -> None:
        if over.is_set():
            return
        now = boottime()
        for name in stage.chance.sample([node.name for node in stage.cluster.nodes], plan.kills):
            stage.at(now + stage.chance.uniform(0.0, 3.0), lambda name=name: stage.strike(name))  # type: ignore[misc]  # mypy cannot infer a default
        stage.at(now + KILLS_APART_S, again)

    stage.at(boottime() + LEAD_S + 1.0, again)


def _slots(plan: Plan, verdict: Verdict, changes: list[Change], counts: list[tuple[float, int]]) -> dict[str, Any]:
    """Judge the pool; returns what goes into the file beside the verdict."""
    most = max((count for _, count in counts), default=0)
    if most > plan.size:
        at = next(at for at, count in counts if count > plan.size)
        verdict.violations.append(f"{most} programs were alive at {at:.3f}")
    held = max((len(change.holders) for change in changes), default=0)
    if not 0 < held <= plan.size:
        verdict.violations.append(f"the ledger had {held} holders, expected 1 to {plan.size}")
    idle = unused(changes, plan.size)
    for one in idle:
        if one.seconds > plan.unused_max_s:
            verdict.violations.append(
                f"a slot was free for {one.seconds:.3f} s from {one.since:.3f} (Unix seconds), {one.waiting} waited"
            )
    times = [one.seconds for one in idle]
    verdict.counts.update({"most alive": most, "most holders": held, "free slots while a run waited": len(idle)})
    return {
        "unused_s": {"p50": quantile(times, 0.5), "p99": quantile(times, 0.99), "max": max(times, default=0.0)},
        "unused": [[round(one.since, 3), round(one.seconds, 3), one.waiting] for one in idle if one.seconds > 0.3],
        "changes": len(changes),
    }
