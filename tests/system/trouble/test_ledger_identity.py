"""Nodes of one cluster get different ledgers: coordd refuses or raises an alarm, and launches no run twice."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from support import servers

from system.lab.cluster import CallError, Cluster, Node, cluster_of
from system.lab.processes import LIMIT_S, exists, kill_at_once, until

EXIT_CONFIG = 78

# A new Redis ledger grants nothing for two renewals and a timeout. Then some fire times of "every 2s" must pass.
WHILE_S = 9.0


@contextmanager
def ticking(size: int) -> Iterator[Cluster]:
    """A cluster with one job that is due every two seconds. In the end, no attempt may have been launched twice."""
    with cluster_of(size, backend="production") as cluster:
        cluster.job("tick", "sleep", 0, schedule="every 2s", overlap="allow", misfire="all")
        yield cluster
        never_twice(cluster)


def never_twice(cluster: Cluster) -> None:
    launches = Counter((entry.run, entry.attempt) for entry in cluster.starts())
    assert [attempt for attempt, count in launches.items() if count > 1] == []


def elsewhere(cluster: Cluster) -> dict[str, Any]:
    """The setting for another database of the same Redis."""
    return {"ledger": f"{cluster.production.ledger_url.removesuffix('/0')}/1"}


def ledger_of(node: Node) -> dict[str, Any]:
    return dict(node.status()["ledger"])


def is_closed(node: Node) -> bool:
    return bool(ledger_of(node)["state"] == "closed")


def uses(*nodes: Node) -> str:
    """Wait until all these nodes have pinned one ledger; returns the ledger's identity."""
    until(
        lambda: all(ledger_of(node)["pinned"] and not ledger_of(node)["not_used"] for node in nodes),
        why=f"{[node.name for node in nodes]} use their ledger",
    )
    [identity] = {ledger_of(node)["identity"] for node in nodes}
    return str(identity)


def is_braked(node: Node) -> str:
    """Wait until status, doctor and log say that a node launches nothing because of its ledger; returns why."""
    until(lambda: ledger_of(node)["not_used"], why=f"{node.name} says that it does not use its ledger")
    [found] = [check for check in node.call("doctor") if check["check"] == "ledger identity"]
    assert found["state"] == "fail"
    assert "launches nothing" in found["text"]
    assert "ledger.not_used" in node.log()
    return str(ledger_of(node)["not_used"])


def ticks_go_on(cluster: Cluster, by: Iterable[Node]) -> None:
    """Wait for two more launches, which must be on these nodes only."""
    names = {node.name for node in by}
    count = len(cluster.starts())
    cluster.launched(count + 2)
    assert {entry.node for entry in cluster.starts()[count:]} <= names


def nothing_starts_on(cluster: Cluster, *nodes: Node) -> None:
    names = {node.name for node in nodes}
    assert not [entry for entry in cluster.starts() if entry.node in names]


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_without_its_ledger_line_a_node_of_a_network_bus_does_not_start(missing: int) -> None:
    """The default ledger is a file on the node itself, so every job would run on every such node."""
    with ticking(3) as cluster:
        without, others = cluster.nodes[:missing], cluster.nodes[missing:]
        for node in without:
            node.changes = {"ledger": None}
        for node in cluster.nodes:
            node.launch()
        for node in without:
            assert node.wait() == EXIT_CONFIG
            for words in (
                "cluster.bus (amqp://)",
                "cluster.ledger is (the default)",
                "Set cluster.ledger to",
                node.name,
            ):
                assert words in node.log()
        for node in others:
            node.ready()
        if others:
            ticks_go_on(cluster, others)
        nothing_starts_on(cluster, *without)


def test_one_node_is_a_majority_of_one_and_refuses_another_database_afterwards() -> None:
    with ticking(1) as cluster:
        [node] = cluster.start().nodes
        identity = uses(node)
        ticks_go_on(cluster, [node])
        assert node.stop() == 0
        node.changes = elsewhere(cluster)
        node.start()
        until(lambda: ledger_of(node)["state"] == "foreign", why="the other database is refused")
        count = len(cluster.starts())
        said = ledger_of(node)
        assert identity in said["error"]
        assert "accept-identity" in said["error"]
        assert said["pinned"]
        time.sleep(WHILE_S)
        assert len(cluster.starts()) == count
        assert node.call("ledger.accept-identity")["before"] == identity
        assert uses(node) != identity
        ticks_go_on(cluster, [node])


def test_two_nodes_with_two_databases_are_a_tie_or_one_of_them_waits() -> None:
    with ticking(2) as cluster:
        right, wrong = cluster.nodes
        wrong.changes = elsewhere(cluster)
        cluster.start()  # at the same time: which node sees the other first decides whether it is a tie
        until(lambda: any(ledger_of(node)["not_used"] for node in cluster.nodes), why="one of them waits, or both")
        time.sleep(WHILE_S)
        braked = [node for node in cluster.nodes if ledger_of(node)["not_used"]]
        assert braked
        for node in braked:
            is_braked(node)
        nothing_starts_on(cluster, *braked)
        went_on = ledger_of(wrong)["pinned"]
        assert wrong.stop() == 0
        wrong.changes = {}
        wrong.start()
        if went_on:
            until(lambda: ledger_of(wrong)["state"] == "foreign", why="it has used the other one")
            wrong.call("ledger.accept-identity")
        uses(right, wrong)
        ticks_go_on(cluster, cluster.nodes)


def test_of_three_nodes_one_has_another_database_at_its_first_start() -> None:
    with ticking(3) as cluster:
        *right, wrong = cluster.nodes
        wrong.changes = elsewhere(cluster)
        for node in right:
            node.start()
        identity = uses(*right)
        wrong.start()
        assert identity in is_braked(wrong)
        ticks_go_on(cluster, right)
        for node in right:
            [found] = [check for check in node.call("doctor") if check["check"] == "ledger identity"]
            assert (found["state"], wrong.name in found["text"]) == ("warn", True)
            shown = {one["node"].partition(".")[0]: one["agrees"] for one in node.call("ledger.status")["nodes"]}
            assert shown == {"n1": True, "n2": True, "n3": False}
        with pytest.raises(CallError) as caught:
            wrong.call("run.trigger", job="tick", id="1")
        assert caught.value.kind == "other_ledger"
        nothing_starts_on(cluster, wrong)
        assert wrong.stop() == 0
        wrong.changes = {}
        wrong.start()
        assert uses(*cluster.nodes) == identity


def test_the_one_with_another_database_may_be_the_first() -> None:
    """Two later nodes are a majority, but do not outvote the first node, which may be launching at this moment."""
    with ticking(3) as cluster:
        *right, wrong = cluster.nodes
        wrong.changes = elsewhere(cluster)
        wrong.start()
        uses(wrong)
        ticks_go_on(cluster, [wrong])
        for node in right:
            node.start()
        for node in right:
            assert wrong.name in is_braked(node)
        ticks_go_on(cluster, [wrong])
        nothing_starts_on(cluster, *right)
        assert wrong.stop() == 0
        wrong.changes = {}
        wrong.start()
        until(lambda: ledger_of(wrong)["state"] == "foreign", why="it has used the other one")
        wrong.call("ledger.accept-identity")
        uses(*cluster.nodes)
        ticks_go_on(cluster, cluster.nodes)


def test_a_node_that_has_used_its_ledger_is_given_another_database() -> None:
    with ticking(3) as cluster:
        *right, moved = cluster.start().nodes
        identity = uses(*cluster.nodes)
        assert moved.stop() == 0
        moved.changes = elsewhere(cluster)
        moved.start()
        until(lambda: ledger_of(moved)["state"] == "foreign", why="the other database is refused")
        assert identity in ledger_of(moved)["error"]
        count = len(cluster.starts())
        ticks_go_on(cluster, right)
        moved.call("ledger.accept-identity")  # a mistake: the other nodes go on with the ledger that was used
        assert identity not in str(ledger_of(moved)["identity"])
        is_braked(moved)
        ticks_go_on(cluster, right)
        assert not [entry for entry in cluster.starts()[count:] if entry.node == moved.name]


def test_a_flush_under_nodes_that_have_used_it_restores_its_identity() -> None:
    with ticking(3) as cluster:
        cluster.job("again", "until", cluster.go("go"))
        cluster.start()
        identity = uses(*cluster.nodes)
        run = str(cluster.nodes[0].call("run.trigger", job="again", id="1")["id"])
        pid = cluster.started(run).pid
        cluster.production.redis.cli("FLUSHALL")
        until(lambda: cluster.row(run).get("state") == "started", why="the runner has put its run back")
        for node in cluster.nodes:
            node.ledger_is("connected")
        assert uses(*cluster.nodes) == identity
        assert exists(pid)
        ticks_go_on(cluster, cluster.nodes)
        cluster.go("go").touch()
        assert cluster.becomes(run, "success")["attempt"] == 0


def test_a_rolling_move_to_another_redis() -> None:
    """The ledger is closed, exported, and imported elsewhere. Each node follows when it gets the new URL."""
    with ticking(3) as cluster:
        cluster.job("asked", "sleep", 0, overlap="allow")
        cluster.job("waits", "until", cluster.go("go"))
        first = cluster.start().nodes[0]
        old = uses(*cluster.nodes)
        run = str(first.call("run.trigger", job="asked", id="1")["id"])
        cluster.becomes(run, "success")
        held = str(first.call("run.trigger", job="waits", id="1")["id"])
        cluster.started(held)
        with pytest.raises(CallError, match=held) as caught:
            exported(first, close=True)
        assert caught.value.kind == "in_use"
        cluster.go("go").touch()
        cluster.becomes(held, "success")
        first.call("job.suspend", job="tick")
        for row in cluster.rows():
            if row["state"] == "received":  # claimed ahead; it waits at the gate until the job is resumed
                first.call("run.cancel", id=row["run"])
        until(lambda: all(row["state"] not in ("received", "started") for row in cluster.rows()), why="nothing runs")
        rows = exported(first, close=True)
        assert (rows[0]["kind"], rows[0]["identity"]) == ("ledger", old)
        for node in cluster.nodes:
            until(partial(is_closed, node), why="nobody is answered any more")
        count = len(cluster.starts())
        with servers.redis() as redis:
            for number, node in enumerate(cluster.nodes):
                assert node.stop() == 0
                node.changes = {"ledger": redis.url}
                node.start()
                if number == 0:
                    until(lambda: ledger_of(first)["state"] == "foreign", why="it is empty, and at another place")
                    assert first.call("ledger.import", rows=rows)["rows"] == len(rows) - 1
                    first.call("ledger.accept-epoch")
                node.ledger_is("connected")
                assert len(cluster.starts()) == count, "the job is still suspended"
            new = uses(*cluster.nodes)
            assert new != old
            assert all(node.call("ledger.status")["predecessor"] == old for node in cluster.nodes)
            assert first.call("run.trigger", job="asked", id="1")["state"] == "success", "ids that were used stay used"
            first.call("job.resume", job="tick")
            ticks_go_on(cluster, cluster.nodes)
            for node in cluster.nodes:
                assert node.stop() == 0
            if has_left_something(cluster):
                kill_at_once(cluster.processes)


def test_two_ledgers_that_could_not_be_compared_are_an_alarm_as_soon_as_they_can() -> None:
    """Each node has used its own ledger. The broker is down, so the nodes do not hear each other, and both launch."""
    with cluster_of(2, backend="production", own_broker=True) as cluster:
        cluster.job("tick", "sleep", 0, schedule="every 2s", overlap="allow", misfire="all")
        second = cluster.nodes[1]
        second.changes = elsewhere(cluster)
        for node in cluster.nodes:
            node.start()
            uses(node)
            assert node.stop() == 0
        cluster.production.rabbit.kill()
        for node in cluster.nodes:
            node.launch()
        for node in cluster.nodes:
            node.ready()

        def launched_by(name: str) -> set[str]:
            return {entry.run for entry in cluster.starts() if entry.node == name}

        until(lambda: launched_by("n1") & launched_by("n2"), why="a fire time is launched on both")
        cluster.production.rabbit.start()
        for node in cluster.nodes:
            is_braked(node)  # a tie between nodes that have used different ledgers
        # The first node to connect tells its launches before the other can hear them: one of the two knows both starts.
        knows = until(lambda: [node for node in cluster.nodes if node.call("alarm.list")], why="both starts are known")[
            0
        ]
        assert "was started twice" in knows.status()["alarms"][0]
        assert "alarm.raised" in knows.log()
        assert "fail" in [c["state"] for c in knows.call("doctor") if c["check"] == "alarm"]
        count = len(cluster.starts())
        time.sleep(WHILE_S)
        assert len(cluster.starts()) <= count + 2, "but for what was granted before"
        ids = {alarm["id"] for alarm in knows.call("alarm.list")}
        assert knows.stop() == 0
        knows.start()
        assert {alarm["id"] for alarm in knows.call("alarm.list")} >= ids, "they stand over restarts"
        with pytest.raises(CallError):
            knows.call("alarm.clear", note="")
        cluster.meet()
        cleared = set(knows.call("alarm.clear", note="n2 had database 1")["cleared"])
        assert cleared >= ids
        for node in cluster.nodes:  # what the other one alone has heard
            if {alarm["id"] for alarm in node.call("alarm.list")} - cleared:
                node.call("alarm.clear", note="n2 had database 1")
        until(
            lambda: all(not node.call("alarm.list") for node in cluster.nodes), why="all are told, and none comes back"
        )


def exported(node: Node, **params: Any) -> list[dict[str, Any]]:
    """Export the ledger over the control socket; returns the rows."""
    rows: list[dict[str, Any]] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(LIMIT_S)
        sock.connect(str(node.socket))
        sock.sendall(json.dumps({"id": 1, "method": "ledger.export", "params": params}).encode() + b"\n")
        with sock.makefile("rb") as file:
            for line in file:
                said = json.loads(line)
                if "error" in said:
                    raise CallError(said["error"])
                piece = said.get("params", {})
                rows += piece.get("rows", [])
                if "total" in piece:
                    return rows
    raise ConnectionResetError("the export was not finished")


def has_left_something(cluster: Cluster) -> bool:
    """True if processes are left: runners wait for the end of a quarantine before they exit."""
    return bool(cluster.processes())
