"""One trial from beginning to end: build, load, harm, heal, wait, ask, judge, remove."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from support import servers
from system.lab.cluster import CallError
from system.lab.processes import boottime, until

from chaos.checker import OPEN, Answer, Record, Verdict, judge, lives
from chaos.cluster import Arena, hosts
from chaos.load import Jobs, Load, fire_times
from chaos.nemesis import Nemesis
from chaos.net import Net

READY_S = 90.0
LEAD_S = 3  # seconds from "all are ready" to the first fire time
SETTLE_S = 240.0  # enough for a quarantine, the longest job and a queue that has waited
LIST_MAX = 10_000


class Plan(NamedTuple):
    """The settings of a trial. ``faults``, ``triggers``: number per minute. ``only``: kinds of faults; () is all."""

    setup: str = "redis"
    seed: int = 0
    minutes: float = 10.0
    nodes: int = 5
    faults: float = 11.0
    triggers: float = 24.0
    only: tuple[str, ...] = ()


class Progress(NamedTuple):
    """The progress of a trial, for the terminal."""

    phase: str
    part: float  # of the time in which faults strike
    launches: int
    faults: int
    up: int


class Outcome(NamedTuple):
    verdict: Verdict
    nemesis: Nemesis
    about: dict[str, Any]


Show = Callable[[Progress], object]


@contextlib.contextmanager
def arena_of(plan: Plan) -> Iterator[Arena]:
    """The whole laboratory. It is removed at the end of the context."""
    net = Net(hosts(plan.setup, plan.nodes))
    try:
        arena = Arena(net.up(), plan.setup, plan.nodes)
        try:
            yield arena
        finally:
            arena.close()
    finally:
        net.down()


def run(plan: Plan, show: Show, evidence: Path) -> Outcome:
    """``evidence``: the directory for all records if a property was violated, or if the trial itself fails."""
    show(Progress("building", 0.0, 0, 0, 0))
    with arena_of(plan) as arena:
        try:
            outcome = _trial(arena, plan, show)
        except Exception:
            keep(arena, evidence)
            raise
        if outcome.verdict.violations:
            keep(arena, evidence)
            (evidence / "faults.jsonl").write_text(
                "".join([f"{json.dumps(fault._asdict())}\n" for fault in outcome.nemesis.log])
            )
            (evidence / "violations").write_text("\n".join(outcome.verdict.violations) + "\n")
    return outcome


def _trial(arena: Arena, plan: Plan, show: Show) -> Outcome:
    load = Load(arena, plan.seed, plan.triggers)

    def tell(phase: str, part: float) -> None:
        launches = arena.log_path.read_text().count(" start ") if arena.log_path.exists() else 0
        show(Progress(phase, part, launches, len(nemesis.log), sum(node.up for node in arena.nodes)))

    for node in arena.nodes:
        node.launch()
    until(lambda: all((node.try_call("status") or {}).get("state") == "ready" for node in arena.nodes), READY_S)
    first = float(int(time.time()) + LEAD_S)
    last = first + float(int(plan.minutes * 60.0))
    jobs = Jobs(arena, first, last)
    nemesis = Nemesis(arena, jobs, plan.seed, plan.faults, plan.only)
    jobs.write()
    for node in arena.nodes:
        node.call("reload")
    began = boottime()
    ends = began + (last - time.time())
    told_at = 0.0

    def look() -> None:
        nonlocal told_at
        if boottime() >= told_at + 1.0:
            told_at = boottime()
            tell("chaos", (told_at - began) / (ends - began))

    load.start()
    try:
        nemesis.run(ends, look)
    finally:
        load.stop()
        nemesis.heal()
        load.join()
    left = settle(arena, nemesis, lambda: tell("settling", 1.0))
    expected = fire_times(first, last)
    record = _record(arena, nemesis, load, expected)
    verdict = judge(record)
    about = {
        **plan._asdict(),
        "settled": not left,
        "not_settled": left,
        "refused_triggers": len(load.refused),
        "given_up_triggers": load.given_up,
        "daemons_that_ended_alone": nemesis.ended_alone,
        "clock_jumps": bool(arena.skew_library),
        "tracebacks": [n.name for n in arena.nodes if "Traceback" in n.log()],
    }
    if left:
        verdict.violations.append(f"not settled {SETTLE_S:g} s after all was mended: {', '.join(left[:10])}")
        verdict.violations.extend([_told(arena, what.split()[0]) for what in left[:10] if re.match(r"\S+[@#]", what)])
    verdict.violations.extend(f"{name} has a traceback in its log" for name in about["tracebacks"])
    return Outcome(verdict, nemesis, about)


def settle(arena: Arena, nemesis: Nemesis, tell: Callable[[], object]) -> list[str]:
    """Wait until all nodes see each other and no run is open; returns the runs that are still open."""
    limit = boottime() + SETTLE_S
    left = ["the nodes do not see each other"]
    while left and boottime() < limit:
        time.sleep(1.0)
        nemesis.heal()
        tell()
        left = _open_runs(arena)
    return left


def _open_runs(arena: Arena) -> list[str]:
    try:
        for node in arena.nodes:
            status = node.status()
            if status["state"] != "ready" or status["members"]["alive"] != len(arena.nodes):
                return [f"{node.name}: {status['state']}, members {status['members']}"]
        rows = [row for state in OPEN for row in arena.nodes[0].call("run.list", state=state, limit=LIST_MAX)]
        return [f"{row['id']} {row['state']}" for row in rows]
    except (OSError, CallError) as exc:
        return [f"a node does not answer: {exc}"]


def _told(arena: Arena, run: str) -> str:
    """Everything known about a run that is not over: its row, its job's row, and each node's view of it."""
    job = run.partition("@")[0].partition("#")[0]
    prefix = f"{{coordd:{arena.production.name}}}:"
    parts = [f"{run} is not over", f"the ledger's time: {_redis(arena, 'TIME')}"]
    parts += [f"{key}: {_redis(arena, 'HGETALL', f'{prefix}{key}')}" for key in (f"run:{run}", f"standing:{job}")]
    parts.append(f"activations: {_redis(arena, 'LRANGE', f'{prefix}activations:{job}', '0', '-1')}")
    for node in arena.nodes:
        try:
            parts.append(f"{node.name} has {node.call('job.show', job=job)['digest']} and says: {node.why(run)}")
        except (OSError, CallError) as exc:
            parts.append(f"{node.name} does not answer: {exc}")
    return "\n  ".join(parts)


def _redis(arena: Arena, *words: str) -> str:
    """The answer of the ledger's Redis to this command, in one line."""
    try:
        return " ".join(arena.master().cli(*words).split())
    except servers.ServerError as exc:
        return f"no answer: {exc}"


def _record(arena: Arena, nemesis: Nemesis, load: Load, expected: list[str]) -> Record:
    """The programs' records, and a daemon's answer about each run that did not succeed."""
    entries, beats = arena.entries(), arena.beats()
    runs = lives(entries, beats)
    wanted = dict.fromkeys([*expected, *[one.run for one in load.accepted], *runs])
    asked = [run for run in wanted if not any(life.end == "end" for life in runs.get(run, ()))]
    answers = {run: _ask(arena, run) for run in asked}
    return Record(entries, beats, expected, load.accepted, nemesis.log, answers, arena.children(), nemesis.jobs.edits)


def _ask(arena: Arena, run: str) -> Answer:
    node = arena.nodes[-1]
    try:
        shown = node.call("run.show", id=run)
    except CallError as exc:
        return Answer("", "", f"{exc.kind}: {node.why(run)}")
    return Answer(shown["state"], str(shown.get("reason") or ""), node.why(run))


def keep(arena: Arena, evidence: Path) -> None:
    """Save logs, journals, counts and runners' files, without sockets and without the files that fill disks."""
    for node in arena.nodes:
        node.empty()
    shutil.rmtree(evidence, ignore_errors=True)

    def left_out(directory: str, names: list[str]) -> list[str]:
        return [name for name in names if not (Path(directory, name).is_file() or Path(directory, name).is_dir())]

    with contextlib.suppress(shutil.Error):  # files that vanished meanwhile
        shutil.copytree(arena.path, evidence, ignore=left_out)
