"""Daemons, runners and whole nodes die. Each run is launched as often as its job allows, never twice at a time."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coordd.adapters.disk import journal
from coordd.core.wire.journal_line import decode_line
from coordd.core.wire.merge import merge
from system.lab.cluster import CallError, Cluster, Node, cluster_of
from system.lab.processes import boottime, exists, until, warm_parents

IDS = 300
everywhere = pytest.mark.parametrize("backend", ["embedded", "production"])
STORM_LIMIT_S = 240.0  # 300 runs on two cores that do other work too

Ask = tuple[str, str, dict[str, str]]  # job, id, args

TERMINAL = {"success", "failure", "revoked", "rejected", "missed", "lost"}


# ---- hundreds of runs


class Client(threading.Thread):
    """Triggers every run on one node until that node has accepted each of them. The node may go away meanwhile."""

    def __init__(self, node: Node, runs: list[Ask], stop: threading.Event) -> None:
        super().__init__(name=f"client of {node.name}")
        self.node = node
        self.waiting = list(runs)
        random.Random(node.name).shuffle(self.waiting)
        self.stop = stop
        self.durable: Counter[str] = Counter()
        self.refused = 0  # calls to repeat: the daemon went away before it answered, or was not there
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while self.waiting and not self.stop.is_set():
                job, ident, args = self.waiting[-1]
                try:
                    said = self.node.call("run.trigger", job=job, id=ident, args=args)
                except OSError:
                    self.refused += 1
                    self.stop.wait(0.05)
                    continue
                self.durable[said["durable"]] += 1
                self.waiting.pop()
        except (CallError, ValueError) as exc:
            self.failure = exc


def wait_for_the_end(cluster: Cluster, count: int, open_states: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """Wait until that many runs are over; returns their rows."""

    def look() -> list[dict[str, Any]]:
        rows = cluster.rows()
        over = [row for row in rows if row["state"] in TERMINAL | open_states]
        return rows if len(rows) == len(over) == count else []

    return until(look, STORM_LIMIT_S, why=f"{count} runs are over")


def check_journals(cluster: Cluster) -> int:
    """Check that all journal lines are valid and the journals agree with the ledger; returns the number of lines."""
    until(lambda: not untold(cluster), why="the nodes have told their journals how the runs ended")
    count = 0
    for node in cluster.nodes:
        directory = node.state_dir / "journal"
        lines = [
            line for path in sorted(directory.glob("*.jsonl")) for line in path.read_bytes().splitlines(keepends=True)
        ]
        assert all(line.endswith(b"\n") and decode_line(line) is not None for line in lines), node.name
        count += len(lines)
    return count


def untold(cluster: Cluster) -> list[tuple[str, str, str]]:
    """(run, state in the ledger, state in the journals) of every run that is over, if the two states differ."""
    events = [event for node in cluster.nodes for event in journal.read(str(node.state_dir / "journal"))]
    told = {state.fields["run"]: state.state for state in merge(events).values()}
    rows = [row for row in cluster.rows() if row["state"] in TERMINAL]
    return [
        (row["run"], row["state"], told.get(row["run"], "")) for row in rows if told.get(row["run"]) != row["state"]
    ]


@everywhere
def test_daemons_are_killed_while_300_runs_are_triggered_everywhere(backend: str) -> None:
    with cluster_of(3, lease=12.0, backend=backend) as cluster:
        cluster.job("storm", "sleep", "{seconds}", overlap="allow", params={"seconds": "0.2"})
        cluster.start()
        runs: list[Ask] = [("storm", str(number), {}) for number in range(IDS)]
        stop = threading.Event()
        clients = [Client(node, runs, stop) for node in cluster.nodes]
        for client in clients:
            client.start()
        kills = 0
        try:
            while any(client.is_alive() for client in clients) or kills < 6:
                node = cluster.nodes[kills % 3]
                cluster.launched(min(IDS, len(cluster.starts()) + 10))
                node.kill()
                kills += 1
                node.start()
                assert kills < 100, "it never ends"
        finally:
            stop.set()
            for client in clients:
                client.join()
        assert [client.failure for client in clients] == [None] * 3
        assert [client.waiting for client in clients] == [[]] * 3
        rows = wait_for_the_end(cluster, IDS)
        assert {row["state"] for row in rows} == {"success"}
        launches = Counter(entry.run for entry in cluster.starts())
        assert launches == {f"storm#{number}": 1 for number in range(IDS)}, "each once"
        # If a daemon dies while it starts a runner, that attempt has certainly not run. Then the next attempt runs.
        assert sum(row["attempt"] for row in rows) <= kills
        cluster.meet()
        print(
            f"{kills} kills, {sum(client.refused for client in clients)} refused calls,"
            f" durable {sum((client.durable for client in clients), Counter())},"
            f" {check_journals(cluster)} journal lines"
        )


@everywhere
def test_a_nodes_whole_family_is_killed_again_and_again(backend: str) -> None:
    with cluster_of(3, lease=8.0, backend=backend) as cluster:
        victim, *steady = cluster.nodes
        for node in steady:
            node.budget = 10  # so that the victim has most of the runs whenever it is up
        many: dict[str, Any] = {"overlap": "allow", "params": {"seconds": "1"}}
        cluster.job("held", "sleep", "{seconds}", on_lost="hold", **many)
        cluster.job("again", "sleep", "{seconds}", retry={"relaunches": 50}, **many)
        cluster.start()
        chance = random.Random(1)
        runs: list[Ask] = [
            (("held", "again")[number % 2], str(number), {"seconds": f"{chance.uniform(2.0, 8.0):.2f}"})
            for number in range(IDS)
        ]
        stop = threading.Event()
        clients = [Client(node, runs, stop) for node in steady]
        for client in clients:
            client.start()
        cuts: list[float] = []
        killed = 0
        try:
            while lost_attempts(cluster, victim) < 40 and not is_over(cluster):
                until(lambda: len(running(cluster, victim)) >= 16 or is_over(cluster), STORM_LIMIT_S)
                killed += victim.kill_family()
                cuts.append(boottime())
                victim.start()
                assert all(node.up for node in steady), "the others live on"
            until(lambda: not any(client.is_alive() for client in clients))
        finally:
            stop.set()
            for client in clients:
                client.join()
        assert [client.failure for client in clients] == [None] * 2
        rows = wait_for_the_end(cluster, IDS, frozenset(("unknown",)))
        assert not [entry for entry in cluster.entries() if entry.word == "overlap"], "never two alive at a time"
        launches = Counter((entry.run, entry.attempt) for entry in cluster.starts())
        assert set(launches.values()) == {1}, "an attempt is launched once"
        held = {row["run"]: row for row in rows if row["job"] == "held"}
        again = {row["run"]: row for row in rows if row["job"] == "again"}
        assert (len(held), len(again)) == (IDS // 2, IDS // 2)
        assert {row["state"] for row in again.values()} == {"success"}
        assert {row["state"] for row in held.values()} <= {"success", "unknown"}
        for run, row in held.items():
            assert len(cluster.starts(run)) <= 1, "a held job is launched once at the most"
            assert row["state"] == "unknown" or len(cluster.starts(run)) == 1
        takeovers = [row for row in again.values() if row["attempt"] > 0]
        waits = sorted(takeover_times(cluster, cuts))
        unknown = sum(row["state"] == "unknown" for row in held.values())
        print(
            f"{len(cuts)} power cuts, {killed} processes killed, {len(takeovers)} runs taken over"
            f" ({sum(row['attempt'] for row in takeovers)} attempts), {unknown} unknown,"
            f" cut to next start {waits[0]:.1f} / {waits[len(waits) // 2]:.1f} / {waits[-1]:.1f} s,"
            f" {check_journals(cluster)} journal lines"
        )
        assert len(takeovers) >= 30
        assert unknown > 0


def running(cluster: Cluster, node: Node) -> set[int]:
    """The pids of a node's programs that have started, have not written their end, and exist."""
    entries = [entry for entry in cluster.entries() if entry.node == node.name]
    ended = {(entry.run, entry.attempt) for entry in entries if entry.word == "end"}
    return {e.pid for e in entries if e.word == "start" and (e.run, e.attempt) not in ended and exists(e.pid)}


def lost_attempts(cluster: Cluster, node: Node) -> int:
    """The number of runs of ``again`` with an attempt that began on a node, did not end, and no longer runs."""
    entries = [entry for entry in cluster.entries() if entry.node == node.name and entry.run.startswith("again#")]
    ended = {(entry.run, entry.attempt) for entry in entries if entry.word == "end"}
    begun = {(entry.run, entry.attempt) for entry in entries if entry.word == "start"}
    return len({run for run, _ in begun - ended}) - len(running(cluster, node))


def is_over(cluster: Cluster) -> bool:
    rows = cluster.rows()
    return len(rows) == IDS and all(row["state"] in TERMINAL | {"unknown"} for row in rows)


def takeover_times(cluster: Cluster, cuts: list[float]) -> list[float]:
    """Seconds from the power cut that ended an attempt to the start of the next attempt, for each takeover."""
    starts = {(entry.run, entry.attempt): entry.at for entry in cluster.starts()}
    return [
        at - next(cut for cut in cuts if cut > starts[run, attempt - 1])
        for (run, attempt), at in starts.items()
        if attempt > 0 and (run, attempt - 1) in starts
    ]


# ---- a daemon comes back

ENDS = {"success": "succeeded", "failure": "failed"}


@pytest.mark.parametrize(
    ("backend", "ending", "code", "state", "said"),
    [
        ("embedded", "exit", 0, "success", 0),
        ("embedded", "exit", 7, "failure", 7),
        ("embedded", "signal", 15, "failure", -15),
        ("production", "exit", 7, "failure", 7),
    ],
)
@pytest.mark.parametrize("when", ["while the daemon is away", "after it is back"])
def test_a_daemon_finds_its_run_again_and_tells_its_true_end(
    backend: str, ending: str, code: int, state: str, said: int, when: str
) -> None:
    with cluster_of(1, backend=backend) as cluster:
        cluster.job("long", "until", cluster.go("long"), ending=ending, code=code)
        cluster.start()
        node = cluster.nodes[0]
        run = node.call("run.trigger", job="long")["id"]
        pid = cluster.started(run).pid
        node.kill()
        if when == "while the daemon is away":
            cluster.go("long").touch()
            until(lambda: not exists(pid))
            node.start()
        else:
            node.start()
            assert node.status()["runs"]["active"] == 1
            assert exists(pid)
            cluster.go("long").touch()
        row = cluster.becomes(run, state)
        assert (row["attempt"], row["exit_code"]) == (0, said)
        assert len(cluster.starts()) == 1
        until(lambda: node.status()["runs"]["active"] == 0)
        until(lambda: not list((node.runtime_dir / "runs").iterdir()), why="nothing is left of it on the disk")
        assert check_journals(cluster) > 3
        told = [event for event in journal.read(str(node.state_dir / "journal")) if event.get("run") == run]
        assert [event.get("exit_code") for event in told if event["type"] == f"task-{ENDS[state]}"] == [said]


# ---- runners


def busy_run(cluster: Cluster) -> tuple[Node, str, int]:
    """Start a program that runs a busy loop in Python; returns its node, its run and its pid."""
    cluster.job("busy", "busy", retry={"relaunches": 0})
    cluster.start()
    run = str(cluster.nodes[0].call("run.trigger", job="busy")["id"])
    pid = cluster.started(run).pid
    return cluster.owner(run), run, pid


@everywhere
def test_the_runner_alone_is_killed(backend: str) -> None:
    with cluster_of(2, backend=backend) as cluster:
        node, run, pid = busy_run(cluster)
        _kill(node.runner(run)["pid"])
        row = cluster.becomes(run, "lost")
        assert "the runner died" in row["reason"]
        until(lambda: not exists(pid))
        assert len(cluster.starts()) == 1
        until(lambda: node.family() - warm_parents(_pid(node)) == {_pid(node)}, why="the daemon is all that is left")


@everywhere
def test_the_runner_and_its_watcher_are_killed(backend: str) -> None:
    with cluster_of(2, backend=backend) as cluster:
        node, run, pid = busy_run(cluster)
        said = node.runner(run)
        _stop(said["watcher"], said["pid"])
        _kill(said["watcher"], said["pid"])
        cluster.becomes(run, "lost")
        until(lambda: not exists(pid))
        until(lambda: node.family() - warm_parents(_pid(node)) == {_pid(node)}, why="the daemon is all that is left")


@everywhere
def test_runner_and_daemon_are_killed(backend: str) -> None:
    with cluster_of(2, backend=backend) as cluster:
        node, run, pid = busy_run(cluster)
        runner = node.runner(run)["pid"]
        node.signal(signal.SIGSTOP)
        _kill(runner)
        node.kill()
        cluster.becomes(run, "lost")
        until(lambda: not exists(pid))
        until(lambda: not node.family(), why="nothing is left of it")


@everywhere
def test_a_runner_that_is_stopped_leaves_nothing_alive_when_its_lease_lapses(backend: str) -> None:
    with cluster_of(2, backend=backend) as cluster:
        cluster.job("busy", "busy")
        cluster.start()
        run = str(cluster.nodes[0].call("run.trigger", job="busy")["id"])
        first = cluster.started(run)
        _stop(cluster.owner(run).runner(run)["pid"])
        second = cluster.started(run, 1)
        assert second.token > first.token
        assert not exists(first.pid)
        assert not [entry for entry in cluster.entries() if entry.word == "overlap"]
        print(f"taken over {second.at - first.at:.1f} s after its start")
        cluster.nodes[0].call("run.cancel", id=run)
        cluster.becomes(run, "revoked")


def test_an_attempt_whose_runner_and_watcher_are_stopped_does_not_outlive_its_lease() -> None:
    """While machine and daemon go on, nobody else would end the program before another node may take over."""
    with cluster_of(2) as cluster:
        cluster.job("busy", "busy")
        cluster.start()
        run = str(cluster.nodes[0].call("run.trigger", job="busy")["id"])
        first = cluster.started(run)
        node = cluster.owner(run)
        guards = node.runner(run)
        _stop(guards["pid"], guards["watcher"])
        cluster.started(run, 1)
        assert not exists(first.pid)
        assert not [entry for entry in cluster.entries() if entry.word == "overlap"], "never two alive at a time"
        assert "runner.was_stopped" in node.log()
        cluster.nodes[0].call("run.cancel", id=run)
        cluster.becomes(run, "revoked")


def test_a_stopped_runner_without_a_watcher_goes_on() -> None:
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        cluster.job("busy", "busy")
        cluster.start()
        run = str(node.call("run.trigger", job="busy")["id"])
        cluster.started(run)
        guards = node.runner(run)
        _stop(guards["pid"])
        _kill(guards["watcher"])
        until(lambda: "runner.was_stopped" in node.log(), why="the daemon continues it")
        node.call("run.cancel", id=run)
        cluster.becomes(run, "revoked")
        assert len(cluster.starts(run)) == 1


def test_when_the_machine_stops_the_daemon_leaves_after_its_runs() -> None:
    """The network goes after the daemon's unit: what has not reported by then never does."""
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        tools, begun = cluster.path / "tools", cluster.path / "begun"
        tools.mkdir()
        (tools / "systemctl").write_text("#!/bin/sh\necho stopping\n")
        (tools / "systemctl").chmod(0o755)
        node.env["PATH"] = f"{tools}:/usr/local/bin:/usr/bin:/bin"
        script = f"trap 'sleep 0.7; exit 0' TERM; : >{begun}; while :; do sleep 0.05; done"
        cluster.job_file("slow", f'on_lost = "hold"\n[command]\nargv = ["/bin/sh", "-c", "{script}"]\n')
        cluster.start()
        run = str(node.call("run.trigger", job="slow")["id"])
        until(begun.exists)
        assert node.stop() == 0
        assert node.family() == set()
        assert cluster.row(run)["state"] != "started"
        assert "runners.not_ended" not in node.log()


def _pid(node: Node) -> int:
    assert node.process is not None
    return node.process.pid


def _kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _stop(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids} == {"T"})
