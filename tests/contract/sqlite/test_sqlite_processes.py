"""The SQLite ledger with several processes and threads: which one wins, and what a killed writer leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from support.ledger_calls import Nodes

import coordd
from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.core.ledger.requests import ListOpen

ROOT = os.path.dirname(os.path.dirname(coordd.__file__))

# The beginning of every child program: a ledger at argv[1], and calls to it.
CHILD = f"""
import json, os, sys, time
sys.path[:0] = [{ROOT!r}, {os.path.join(ROOT, "tests")!r}]
from coordd.adapters.ledger import sqlite_ledger, sqlite_rows
from coordd.core.ledger.steps import Life
from support.ledger_calls import FakeClock, Nodes
def open_ledger():
    clock = FakeClock()
    clock.wall = time.time()  # the ledger keeps real time: a trigger of the fake clock's would be years late
    return Nodes(sqlite_ledger.SqliteLedger(sys.argv[1], timeout_s=60.0), clock)
def die(*_):
    os.kill(os.getpid(), 9)
"""


def child(program: str, path: object, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD + program, str(path), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


CLAIM_ALL = """
nodes = open_ledger()
print("ready", flush=True)
sys.stdin.readline()
granted = []
for number in range(200):
    of = nodes.of(f"job#{number}", overlap="allow")
    answer = nodes.claim(of, nonce=sys.argv[2], node=sys.argv[2])
    assert answer.word in ("granted", "held"), answer
    if answer.word == "granted":
        granted.append((number, answer.token))
print(json.dumps(granted), flush=True)
"""


def test_four_processes_claim_the_same_runs_and_each_is_granted_once(path: str) -> None:
    children = [child(CLAIM_ALL, path, f"edge-{n}.1") for n in range(4)]
    for each in children:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"  # they also compete to create the file
    for each in children:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    said = [each.communicate(timeout=240)[0] for each in children]
    assert [each.returncode for each in children] == [0, 0, 0, 0]
    granted = [pair for text in said for pair in json.loads(text)]
    assert sorted(number for number, _ in granted) == list(range(200))
    assert len({token for _, token in granted}) == 200
    assert [name for name in os.listdir(os.path.dirname(path)) if ".new-" in name] == []


def test_threads_share_one_ledger(open_ledger: Callable[..., Nodes]) -> None:
    nodes = open_ledger(timeout_s=60.0)
    granted: list[str] = []

    def claim_all(name: str) -> None:
        for number in range(25):
            answer = nodes.claim(nodes.of(f"j#{number}", overlap="allow"), nonce=name, node=name)
            granted.extend([f"j#{number}"] if answer.word == "granted" else [])

    threads = [threading.Thread(target=claim_all, args=(f"edge-{n}.1",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    assert sorted(granted) == sorted(f"j#{number}" for number in range(25))


KILLED_WHILE_WRITING = """
nodes = open_ledger()
for number in range(100_000):
    grant = nodes.started(nodes.of(f"job#{sys.argv[2]}-{number}", overlap="allow"))
    nodes.report(grant)
    print(grant.run, flush=True)
"""

KILLED_INSIDE = """
nodes = open_ledger()
of = nodes.of("job#1", overlap="allow")
grant = nodes.granted(of)
Life._record = die  # the last step of an operation: its rows are written, and not committed
print("inside", flush=True)
nodes.gate(grant) if sys.argv[2] == "gate" else nodes.claim(nodes.of("job#2", overlap="allow"))
"""

KILLED_WHILE_CREATING = """
sqlite_rows.migrate = die
open_ledger()
"""


def test_a_writer_killed_at_any_moment_loses_nothing_it_was_told(path: str) -> None:
    acknowledged: list[str] = []
    for turn in range(5):
        writer = child(KILLED_WHILE_WRITING, path, str(turn))
        assert writer.stdout is not None
        acknowledged += [writer.stdout.readline().strip() for _ in range(20)]
        writer.kill()
        # The kill cut off the text after the last line end.
        acknowledged += writer.communicate(timeout=60)[0].split("\n")[:-1]
    ledger = SqliteLedger(path)
    assert ledger.integrity() == []
    states = {run: row.state for run in acknowledged if (row := ledger.run(run))}
    assert states == dict.fromkeys(acknowledged, "success")
    for row in ledger.runs(limit=100_000):
        assert [attempt.state for attempt in ledger.attempts(row.run)] == [row.state], row.run
    ledger.close()


@pytest.mark.parametrize("where", ["claim", "gate"])
def test_a_writer_killed_inside_an_operation_leaves_nothing_of_it(path: str, where: str) -> None:
    writer = child(KILLED_INSIDE, path, where)
    assert writer.communicate(timeout=60)[0] == "inside\n"
    assert writer.returncode == -signal.SIGKILL
    ledger = SqliteLedger(path)
    [row] = ledger.runs()
    assert (row.run, row.state, row.beat) == ("job#1", "received", 0)
    answer = ledger.ask(ListOpen(jobs=("job",)))
    assert answer.jobs["job"].fence == row.token  # the fence of the killed claim was rolled back too
    ledger.close()


def test_a_creator_killed_half_way_leaves_the_name_free(path: str) -> None:
    creator = child(KILLED_WHILE_CREATING, path)
    creator.communicate(timeout=60)
    assert creator.returncode == -signal.SIGKILL
    assert not os.path.exists(path)
    ledger = SqliteLedger(path)
    assert ledger.status()["runs"] == {}
    ledger.close()
