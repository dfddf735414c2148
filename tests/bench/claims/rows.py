"""`make bench ARGS="--only rows"`: what a million rows cost a claim, a sweep, a start, `status` and `run list`.

Two Redis ledgers, and two SQLite ledgers, one of each with a thousand rows and one with a million, are asked in turn.
The rows are copies of one run that a daemon launched, in every set in which the original stands.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import redis
from support.servers import Redis

from bench.claims.clients import Client, ours_redis, ours_sqlite
from bench.cluster import Cluster, Row, boottime, cluster, copy_rows, until
from bench.figures import Figure, summary
from coordd.core.ledger.words import NEWCOMER_S

SECTION = "a ledger with many rows"
FEW, MANY = 1_000, 1_000_000
JOBS, WAITING = 5_000, 5_000
LEASE_S = 3600.0
START_LIMIT_S = 120.0

JOB = 'schedule = "0 2 * * *"\n[command]\nargv = ["/bin/true"]\n'

# By how much (seconds) each copy is older than the one before it.
APART_S = 0.5
COPIES_A_CALL = 5_000

# Copies of one run in all its hashes and sorted sets. ARGV: prefix, run, job, template (JSON), first, last, jobs,
# seconds between two, 1 if the copies are of other jobs.
COPY = """
local prefix, run, job = ARGV[1], ARGV[2], ARGV[3]
local template, first, last, jobs = cjson.decode(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
for n = first, last do
  local to_job = ARGV[9] == '1' and 'job-' .. n % jobs or job
  local to_run = to_job .. '#copy-' .. string.format('%d', n)
  for _, hash in ipairs(template.hashes) do
    local values = {}
    for i, value in ipairs(hash.values) do
      values[i] = value == run and to_run or value == job and to_job or value
    end
    redis.call('HSET', prefix .. hash.name .. to_run, unpack(values))
  end
  for _, set in ipairs(template.sets) do
    local name = set.name
    if string.sub(name, -#job) == job then name = string.sub(name, 1, -#job - 1) .. to_job end
    redis.call('ZADD', prefix .. name, set.score - n * tonumber(ARGV[8]), to_run)
  end
end
"""


def measure(*, quick: bool) -> list[Figure]:
    """Claims in turn; then one daemon with JOBS jobs on the ledger with many rows."""
    many, rounds = (50_000, 60) if quick else (MANY, 400)
    jobs = {f"job-{number}": JOB for number in range(JOBS)} | {"held": JOB}
    with ExitStack() as stack:
        servers = [stack.enter_context(a_server()) for _ in range(2)]
        figures = []
        for server, rows in zip(servers, (FEW, many), strict=True):
            with cluster(1, {"job-0": JOB, "held": JOB}, ledger=server.url) as nodes:
                make_templates(nodes)
            fill_redis(server.url, rows)
        clients = [ours_redis(f"{server.url} default", "bench.1", LEASE_S) for server in servers]
        for client in clients:
            client.join()
        time.sleep(NEWCOMER_S)
        figures.append(_claims("Redis", clients, rows=many, rounds=rounds))
        figures += _daemon(jobs, servers[1].url, many, rounds=5 if quick else 20)
    with cluster(1, {"job-0": JOB, "held": JOB}) as few, cluster(1, {"job-0": JOB, "held": JOB}) as large:
        paths = []
        for nodes, rows in ((few, FEW), (large, many)):
            make_templates(nodes)
            nodes.nodes[0].stop()
            paths.append(f"{nodes.root}/ledger.db")
            fill_sqlite(paths[-1], rows)
        clients = [ours_sqlite(path, "bench", LEASE_S) for path in paths]
        figures.append(_claims("SQLite", clients, rows=many, rounds=rounds))
    return figures


@contextmanager
def a_server() -> Iterator[Redis]:
    """A Redis without a file: what a million copies do to its disk is not the question."""
    server = Redis(appendonly="no")
    server.start()
    try:
        yield server
    finally:
        server.stop()


def make_templates(nodes: Cluster) -> None:
    """One run that has ended, and one that waits because its job is suspended."""
    node = nodes.nodes[0]
    node.call("job.suspend", job="held", note="bench")
    for job, state in (("job-0", "success"), ("held", "pending")):
        node.call("run.trigger", job=job, id="first")
        nodes.reached(f"{job}#first", state, node)


def fill_redis(url: str, rows: int) -> None:
    """Copy both runs: ``rows`` that have ended, of JOBS jobs, and WAITING of the suspended job."""
    with redis.Redis.from_url(url, socket_timeout=60, decode_responses=True) as server:
        ending = "run:job-0#first"
        (found,) = server.scan_iter(f"*{ending}", count=1000)
        prefix = str(found).removesuffix(ending)
        # All keys are looked at for a template: before there are millions.
        templates = {job: json.dumps(_template(server, prefix, f"{job}#first")) for job in ("job-0", "held")}
        for job, count, others in (("job-0", rows, 1), ("held", WAITING, 0)):
            for first in range(0, count, COPIES_A_CALL):
                last = min(first + COPIES_A_CALL, count) - 1
                server.eval(COPY, 0, prefix, f"{job}#first", job, templates[job], first, last, JOBS, APART_S, others)
        there = server.zcard(f"{prefix}list::")
        assert there == rows + WAITING + 2, f"{there} rows"


def _template(server: redis.Redis, prefix: str, run: str) -> dict[str, Any]:
    """The hashes of a run, and the sorted sets with its score in each."""
    made: dict[str, Any] = {"hashes": [], "sets": []}
    for key in server.scan_iter(f"{prefix}*", count=1000):
        name = str(key)[len(prefix) :]
        if name.endswith(run):
            values = [str(value) for pair in server.hgetall(key).items() for value in pair]
            made["hashes"].append({"name": name[: -len(run)], "values": values})
        elif server.type(key) == "zset" and (score := server.zscore(key, run)) is not None:
            made["sets"].append({"name": name, "score": score})
    return made


def fill_sqlite(path: str, rows: int) -> None:
    """The same in a SQLite ledger, whose daemon has ended."""
    with sqlite3.connect(path, timeout=60) as db:
        for table in ("runs", "attempts"):
            copy_rows(db, table, "job-0#first", lambda template: _changes(template, rows))
            copy_rows(db, table, "held#first", lambda template: _changes(template, WAITING))
    db.close()


def _changes(template: Row, count: int) -> Iterator[Row]:
    """Those of the suspended job stay with it; the others are of JOBS jobs."""
    of = template["run"].partition("#")[0]
    times = [name for name in ("fire_at", "created_at", "received_at", "started_at", "ended_at") if template.get(name)]
    for number in range(count):
        job = f"job-{number % JOBS}" if of == "job-0" else of
        changed = {"run": f"{job}#copy-{number}", "job": job, "token": template["token"] - number - 1}
        yield changed | {name: template[name] - number * APART_S for name in times}


def _claims(kind: str, clients: Sequence[Client], *, rows: int, rounds: int) -> Figure:
    """New runs, claimed in the small and in the large ledger in turn."""
    times: list[list[float]] = [[], []]
    for number in range(rounds):
        for client, taken in zip(clients, times, strict=True):
            began = time.perf_counter()
            assert client.claim(f"{kind}-{number}")
            taken.append((time.perf_counter() - began) * 1e6)
    for client in clients:
        client.close()
    few, many = (statistics.median(taken) for taken in times)
    return Figure(
        SECTION, f"{kind}: a claim at {rows:,} rows against {FEW:,}, p50", many / few, "times", 1.2, "<=",
        f"{many:.0f} µs against {few:.0f}", {"us": summary(times[1]), "us_few": summary(times[0])},
    )  # fmt: skip


def _daemon(jobs: dict[str, str], url: str, rows: int, *, rounds: int) -> list[Figure]:
    """Start one daemon several times, and ask it."""
    with cluster(1, jobs, ledger=url) as nodes:
        node = nodes.nodes[0]
        starts = []
        for _ in range(3):
            node.stop()
            began = node.start()
            until(lambda: node.ready(1), "ready", limit_s=START_LIMIT_S, every_s=0.05)
            starts.append(boottime() - began)
        calls = {
            "status": _timed(lambda: node.call("status"), rounds),
            "run list": _timed(lambda: node.call("run.list"), rounds),
            "run list of a job": _timed(lambda: node.call("run.list", job="job-7"), rounds),
        }
        listed = len(node.call("run.list"))
    assert listed > 0
    limits = {"status": 50.0, "run list": 100.0, "run list of a job": 100.0}
    return [
        Figure(SECTION, f"start to READY with {JOBS:,} jobs, {WAITING:,} runs that wait, {rows:,} rows",
               statistics.median(starts), "s", 2, "<=", f"slowest of {len(starts)}: {max(starts):.1f} s"),
        *(Figure(SECTION, f"{what} at {rows:,} rows: p50", statistics.median(times), "ms", limits[what], "<=",
                 f"slowest {max(times):.0f} ms", {"ms": summary(times)}) for what, times in calls.items()),
    ]  # fmt: skip


def _timed(ask: Callable[[], Any], rounds: int) -> list[float]:
    """Milliseconds of each call; a moment lies between two, so that each asks the ledger."""
    times = []
    for _ in range(rounds):
        time.sleep(1.1)
        began = time.perf_counter()
        ask()
        times.append((time.perf_counter() - began) * 1e3)
    return times
