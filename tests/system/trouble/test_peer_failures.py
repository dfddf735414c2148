"""The failures that break Celery's gossip, in a cluster on RabbitMQ and Redis: each run is launched once."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from coordd import client
from system.lab.cluster import Cluster, Node, cluster_of, fire_time
from system.lab.processes import exists, send, until, warm_parents

RESTARTS = 5

# A run that ends at once cannot be granted to a second candidate by mistake. So these programs run this long (seconds).
CONTESTED_S = 1.5


@contextmanager
def production(size: int, **settings: Any) -> Iterator[Cluster]:
    with cluster_of(size, backend="production", **settings) as cluster:
        yield cluster


def at_once(*calls: Callable[[], object]) -> None:
    """Make calls at the same time, each in its own thread; fails if one of them fails."""
    failures: list[BaseException] = []
    gate = threading.Barrier(len(calls))

    def make(call: Callable[[], object]) -> None:
        gate.wait()
        try:
            call()
        except BaseException as exc:  # the test's own thread reports it
            failures.append(exc)

    threads = [threading.Thread(target=make, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def trigger(node: Node, job: str, ident: str) -> str:
    return str(node.call("run.trigger", job=job, id=ident)["id"])


def all_once(cluster: Cluster, runs: list[str]) -> None:
    """Wait until these runs have succeeded; each must have been launched once."""
    for run in runs:
        cluster.becomes(run, "success")
    launches = Counter(entry.run for entry in cluster.starts())
    assert {run: launches[run] for run in runs} == dict.fromkeys(runs, 1)


def pids(cluster: Cluster) -> list[int]:
    return [node.process.pid for node in cluster.nodes if node.process is not None and node.up]


# ---- few nodes


@pytest.mark.parametrize("size", [1, 2])
def test_a_small_cluster_holds_one_election_after_another(size: int) -> None:
    with production(size) as cluster:
        cluster.job("hello", "sleep", 0, overlap="allow")
        cluster.start()
        before = pids(cluster)
        runs = [trigger(cluster.nodes[number % size], "hello", str(number)) for number in range(30)]
        all_once(cluster, runs)
        assert pids(cluster) == before


@pytest.mark.parametrize(("size", "dying"), [(3, 1), (5, 2), (3, 2), (2, 1), (8, 6)])
def test_nodes_are_killed_and_a_run_is_asked_for_at_once(size: int, dying: int) -> None:
    with production(size) as cluster:
        cluster.job("hello", "sleep", 0, overlap="allow")
        cluster.start()
        for node in cluster.nodes[:dying]:
            node.signal(signal.SIGKILL)
        runs = [trigger(node, "hello", node.name) for node in cluster.nodes[dying:]]
        for node in cluster.nodes[:dying]:
            node.wait()
        for run in runs:
            cluster.becomes(run, "success")
        launches = Counter((entry.run, entry.attempt) for entry in cluster.starts())
        assert set(launches.values()) == {1}
        assert all(node.up for node in cluster.nodes[dying:])
        until(lambda: cluster.nodes[-1].status()["members"]["lost"] == dying)


def test_the_node_that_was_asked_dies_right_after_its_answer() -> None:
    with production(3) as cluster:
        cluster.job("hello", "sleep", 0)
        cluster.start()
        run = trigger(cluster.nodes[0], "hello", "1")
        cluster.nodes[0].kill_family()
        cluster.becomes(run, "success")
        assert not [entry for entry in cluster.entries() if entry.word == "overlap"]
        launches = Counter(entry.attempt for entry in cluster.starts(run))
        assert set(launches.values()) == {1}


# ---- the winner


def paused(node: Node) -> set[int]:
    """Stop a node and everything that it has started; returns the pids."""
    stopped: set[int] = set()
    while fresh := node.family() - stopped:
        for pid in sorted(fresh):  # the daemon first: it lets stopped guards go on
            send(pid, signal.SIGSTOP)
        stopped |= fresh
    return stopped


def resume(pids: set[int]) -> None:
    for pid in pids:
        send(pid, signal.SIGCONT)


def caught_before_its_action(cluster: Cluster) -> tuple[Node, str, set[int]]:
    """Pause a node that has been granted a run and has not launched it; returns (node, run, paused pids).

    A run is granted a second before its time. If the machine is too slow for one run, this takes the next job's run.
    """
    tried: set[str] = set()

    def look() -> tuple[Node, str, set[int]] | None:
        for row in cluster.rows():
            run = row["run"]
            if row["state"] == "received" and run not in tried:
                tried.add(run)
                node = cluster.node(row["node"].partition(".")[0])
                stopped = paused(node)
                if cluster.row(run)["state"] == "received":
                    return node, run, stopped
                resume(stopped)
        return None

    found = until(look, why="a run is granted ahead of its time")
    assert found
    return found


def jobs_ahead(cluster: Cluster, verb: str, what: object = "") -> None:
    """Write jobs that are due one after the other, each once."""
    now = datetime.now(UTC).timestamp()
    for number in range(6):
        at = datetime.fromtimestamp(int(now) + 15 + 6 * number, UTC)
        cluster.job(f"once-{number}", verb, what, schedule=f"at {at:%Y-%m-%dT%H:%M:%S}")


def test_the_winner_is_killed_before_its_action() -> None:
    with production(3) as cluster:
        jobs_ahead(cluster, "sleep", 0)
        cluster.start()
        node, run, _ = caught_before_its_action(cluster)
        node.kill_family()
        row = cluster.becomes(run, "success")
        (start,) = cluster.starts(run)
        assert start.node != node.name
        assert start.wall >= fire_time(run)
        assert row["attempt"] == 0, "a grant without a launch does not count as an attempt"


def test_the_winner_is_paused_before_its_action_and_goes_on_when_another_has_taken_over() -> None:
    with production(3) as cluster:
        jobs_ahead(cluster, "until", cluster.go("once"))
        cluster.start()
        node, run, stopped = caught_before_its_action(cluster)
        start = cluster.started(run)
        assert start.node != node.name
        resume(stopped)
        cluster.meet()
        assert node.process is not None
        daemon = node.process.pid
        until(
            lambda: not [pid for pid in stopped - {daemon} - warm_parents(daemon) if exists(pid)],
            why="its runner has given up",
        )
        assert node.up
        assert exists(start.pid)
        cluster.go("once").touch()
        all_once(cluster, [run])


# ---- messages that are lost, late or doubled


def test_a_deaf_node_neither_wins_for_ever_nor_holds_the_others_up() -> None:
    with production(3) as cluster:
        cluster.job("hello", "sleep", CONTESTED_S, overlap="allow")
        cluster.start()
        deaf = cluster.nodes[1]
        unbind(cluster, deaf)
        runs = [trigger(cluster.nodes[number % 3], "hello", str(number)) for number in range(9)]
        all_once(cluster, runs)
        until(lambda: '"bus.lost"' in deaf.log(), why="it notices that no echo comes back, and reconnects")
        cluster.meet()
        assert deaf.up
        all_once(cluster, [trigger(deaf, "hello", "healed")])


def unbind(cluster: Cluster, node: Node) -> None:
    """Remove the binding of a node's queue: the queue then gets no broadcast."""
    rabbit = cluster.production.rabbit
    lines = rabbit.ctl("list_bindings", "source_name", "destination_name", "routing_key", "--formatter", "json")
    assert node.process is not None
    mine = f"{node.name}.{node.process.pid}"
    removed = 0
    for one in json.loads(lines):
        source = one["source_name"]
        if source == f"coordd.{cluster.production.name}" and mine in one["destination_name"]:
            resource = '{{resource,<<"/">>,{kind},<<"{name}">>}}'
            binding = (
                f'{{binding,{resource.format(kind="exchange", name=source)},<<"{one["routing_key"]}">>,'
                f"{resource.format(kind='queue', name=one['destination_name'])},[]}}"
            )
            said = rabbit.ctl("eval", f'rabbit_binding:remove({binding}, fun (_, _) -> ok end, <<"tests">>).')
            assert "error" not in said, said
            removed += 1
    assert removed == 1, lines


def test_a_node_joins_while_elections_are_held() -> None:
    with production(3) as cluster:
        cluster.job("hello", "sleep", 0, overlap="allow")
        cluster.start()
        late = cluster.nodes[2]
        runs: list[str] = []
        for turn in range(3):
            late.stop()
            late.launch()
            for number in range(30):
                runs.append(trigger(cluster.nodes[number % 2], "hello", f"{turn}-{number}"))
                cluster.becomes(runs[-1], "success")
                if (late.try_call("status") or {}).get("state") == "ready":
                    break
            runs += [trigger(node, "hello", f"{turn}-ready-{node.name}") for node in cluster.nodes]
            late.ready()
        all_once(cluster, runs)
        cluster.meet()


def test_a_node_that_joins_knows_ends_and_revokes_although_the_ledger_is_away() -> None:
    with production(3) as cluster:
        cluster.job("hello", "sleep", 0, overlap="allow")
        cluster.start()
        first, second, late = cluster.nodes
        until(lambda: all(len(node.call("node.list")) == 3 for node in cluster.nodes), why="all know each other")
        late.stop()
        done = trigger(first, "hello", "1")
        cluster.becomes(done, "success")
        second.call("run.revoke", id="hello#never")
        until(lambda: "task-succeeded" in types_of(first, done), why="the end is heard")
        cluster.production.redis.kill()
        late.launch()
        until(lambda: (late.try_call("status") or {}).get("state") == "ready", why="it takes part")
        until(lambda: "succeeded on" in late.why(done), why="it knows the end")
        ended, revoked = late.call("why", id=done), late.call("why", id="hello#never")
        assert "told this node" in ended["sentence"]
        assert "the ledger does not answer" in ended["sentence"]
        assert "success" in [step["what"] for step in ended["timeline"]]
        assert "hello#never was revoked at" in revoked["sentence"]
        assert "revoked by" in revoked["sentence"]
        assert types_of(late, done) == ["task-succeeded"]
        assert types_of(late, "hello#never") == ["task-revoked"]


def types_of(node: Node, run: str) -> list[str]:
    """The types of the ends of a run among the events that the node knows."""
    kinds = ["task-succeeded", "task-failed", "task-revoked"]
    with client.blocking(node.socket) as connected:
        told = connected.stream("events.subscribe", backlog=2000, follow=False, types=kinds)
        return [one["event"]["type"] for one in told if one.get("event", {}).get("run") == run]


@pytest.mark.parametrize("gap_s", [0.0, 0.003, 0.5])
def test_the_same_id_is_asked_for_twice_on_different_nodes(gap_s: float) -> None:
    with production(3) as cluster:
        cluster.job("hello", "sleep", CONTESTED_S, overlap="allow")
        cluster.start()
        before = pids(cluster)
        runs: list[str] = []

        def add(number: int, node: Node, after_s: float) -> None:
            time.sleep(after_s)
            runs.append(trigger(node, "hello", str(number)))

        for number in range(10):
            one, other = cluster.nodes[number % 3], cluster.nodes[(number + 1) % 3]
            at_once(partial(add, number, one, 0.0), partial(add, number, other, gap_s))
        assert sorted(Counter(runs).values()) == [2] * 10
        all_once(cluster, sorted(set(runs)))
        assert pids(cluster) == before


# ---- the broker


def bus_is(cluster: Cluster, state: str) -> None:
    until(lambda: {node.status()["bus"]["state"] for node in cluster.nodes} == {state}, why=f"the bus is {state}")


def test_the_broker_is_killed_again_and_again_while_elections_are_held() -> None:
    with production(3, own_broker=True) as cluster:
        cluster.job("hello", "sleep", CONTESTED_S, overlap="allow")
        cluster.start()
        before = pids(cluster)
        stop = threading.Event()
        runs: list[str] = []

        def ask() -> None:
            number = 0
            while not stop.is_set():
                runs.append(trigger(cluster.nodes[number % 3], "hello", str(number)))
                number += 1
                stop.wait(0.2)

        def harm() -> None:
            try:
                for _ in range(RESTARTS):
                    cluster.production.rabbit.kill()
                    bus_is(cluster, "disconnected")
                    cluster.production.rabbit.start()
                    bus_is(cluster, "connected")
                    cluster.meet()
            finally:
                stop.set()

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            harm()  # in this thread: a server ends with the thread that has started it
        finally:
            asking.join()
        assert len(runs) > 10
        all_once(cluster, runs)
        assert pids(cluster) == before


def test_two_sides_that_do_not_hear_each_other_share_one_ledger() -> None:
    with production(6) as cluster:
        cluster.job("hello", "sleep", CONTESTED_S, overlap="allow")
        cluster.job("tick", "sleep", CONTESTED_S, schedule="every 2s", overlap="allow", misfire="all")
        other_side = cluster.production.rabbit.vhost(cluster.production.name)
        for node in cluster.nodes[3:]:
            node.changes["bus"] = other_side
        for node in cluster.nodes:
            node.launch()
        for node in cluster.nodes:
            node.ready()
        until(lambda: all(node.status()["members"]["alive"] == 3 for node in cluster.nodes))
        runs = [f"hello#{number}" for number in range(10)]
        for number in range(10):
            here, there = cluster.nodes[number % 3], cluster.nodes[3 + number % 3]
            at_once(*(partial(trigger, node, "hello", str(number)) for node in (here, there)))
        all_once(cluster, runs)
        until(lambda: len({entry.run for entry in cluster.starts() if entry.run.startswith("tick@")}) >= 4)
        launches = Counter(entry.run for entry in cluster.starts())
        assert set(launches.values()) == {1}


def test_without_the_broker_the_ledger_alone_launches_each_fire_time_once() -> None:
    with production(3, own_broker=True) as cluster:
        cluster.job("tick", "sleep", 0, schedule="every 2s", overlap="allow", misfire="all")
        cluster.job("long", "until", cluster.go("long"))
        cluster.start()
        long = trigger(cluster.nodes[0], "long", "1")
        pid = cluster.started(long).pid
        before = pids(cluster)
        cluster.production.rabbit.kill()
        bus_is(cluster, "disconnected")

        def ticks() -> list[float]:
            return [fire_time(entry.run) for entry in cluster.starts() if entry.run.startswith("tick@")]

        down_at = max(ticks(), default=0.0)
        until(lambda: len([at for at in ticks() if at > down_at]) >= 5, why="fire times without a broker")
        assert exists(pid)
        trigger(cluster.nodes[1], "long", "1")
        times = ticks()
        assert len(set(times)) == len(times)
        assert sorted(times) == [min(times) + 2.0 * step for step in range(len(times))], "none is left out"
        for node in cluster.nodes:
            assert node.status()["bus"]["error"]
        cluster.production.rabbit.start()
        bus_is(cluster, "connected")
        cluster.meet()
        cluster.go("long").touch()
        all_once(cluster, [long])
        assert pids(cluster) == before


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("amqp://guest:wrong@{host}/", "credentials|refused|password"),
        ("amqp://guest:guest@{host}/no-such-vhost", "no-such-vhost"),
        ("amqp://guest:guest@127.0.0.1:1/", "127.0.0.1:1"),
    ],
)
def test_a_bus_that_does_not_let_us_in_is_said_and_stops_no_launch(wrong: str, said: str) -> None:
    with production(2) as cluster:
        cluster.job("hello", "sleep", 0)
        one, other = cluster.nodes
        right = cluster.production.rabbit.url
        one.changes["bus"] = wrong.format(host=right.partition("@")[2].rstrip("/"))
        one.start()
        other.start()
        status = one.status()["bus"]
        assert status["state"] == "disconnected"
        assert re.search(said, status["error"]), status
        assert "wrong" not in str(status), "no password is shown"
        all_once(cluster, [trigger(one, "hello", "1")])
