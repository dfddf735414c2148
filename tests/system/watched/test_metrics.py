"""Metrics of real daemons: what a cluster did is the sum over its nodes, and jobs do not depend on the readers."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed
from prometheus_client.parser import text_string_to_metric_families as parsed_plain

from system.lab.cluster import Cluster, Node, cluster_of
from system.lab.processes import until

parser: Any = parsed  # it is not typed


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def page(port: int, path: str = "/metrics") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


def values(text: str) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels (without the cluster's)."""
    return {
        (sample.name, *[value for label, value in sorted(sample.labels.items()) if label != "cluster"]): sample.value
        for family in parser(text)
        for sample in family.samples
    }


def total(ports: list[int], *key: str) -> float:
    return sum(values(page(port)[1]).get(key, 0.0) for port in ports)


def listening(cluster: Cluster) -> list[int]:
    ports = [free_port() for _ in cluster.nodes]
    for node, port in zip(cluster.nodes, ports, strict=True):
        node.settings = f'[metrics]\nlisten = "127.0.0.1:{port}"\n'
    return ports


def test_the_sum_over_the_nodes_is_the_cluster() -> None:
    with cluster_of(3) as cluster:
        ports = listening(cluster)
        cluster.job("good", "sleep", 0.1, overlap="allow")
        cluster.job("bad", "sleep", 0.1, code=3, overlap="allow")
        cluster.job("long", "until", cluster.go("long"))
        cluster.job("never", "sleep", 0.1, expect_within="1h", schedule="0 0 1 1 *")
        cluster.start()
        first = values(page(ports[0])[1])
        assert first["coordd_runs_total", "never", "failure"] == 0
        assert first["coordd_fires_total", "never", "missed"] == 0
        assert first["coordd_expect_within_seconds", "never"] == 3600
        assert first["coordd_members", "alive"] == 3
        until(lambda: all(page(port, "/readyz") == (200, "ready\n") for port in ports))
        assert page(ports[0], "/healthz") == (200, "alive\n")
        for number in range(4):
            for job in ("good", "bad"):
                cluster.nodes[number % 3].call("run.trigger", job=job, id=str(number))
        for number in range(4):
            cluster.becomes(f"good#{number}", "success")
            cluster.becomes(f"bad#{number}", "failure")
        cluster.nodes[0].call("run.trigger", job="long", id="1")
        owner = cluster.owner("long#1")
        left = [port for node, port in zip(cluster.nodes, ports, strict=True) if node is not owner]
        until(lambda: total(ports, "coordd_runs_total", "good", "success") == 4)
        until(lambda: total(ports, "coordd_runs_total", "bad", "failure") == 4)
        assert total(ports, "coordd_run_duration_seconds_count", "good") == 4
        owner.kill_family()
        cluster.started("long#1", 1)
        until(lambda: total(left, "coordd_takeovers_total", "long") == 1)
        assert total(left, "coordd_runs_total", "long", "lost") == 1
        until(lambda: values(page(left[0])[1])["coordd_members", "lost"] == 1)
        cluster.go("long").touch()
        cluster.becomes("long#1", "success")
        until(lambda: total(left, "coordd_runs_total", "long", "success") == 1)
        times = [values(page(port)[1]).get(("coordd_last_success_timestamp_seconds", "long")) for port in left]
        until(lambda: all(("coordd_last_success_timestamp_seconds", "long") in values(page(port)[1]) for port in left))
        assert len({time for time in times if time}) <= 1, "a job's gauges are the same on every node"


def test_readers_in_trouble_are_no_trouble_of_the_jobs() -> None:
    """A port in use, a directory that cannot be written: both are named, in the log and by doctor."""
    with cluster_of(1) as cluster, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        node = cluster.nodes[0]
        place = cluster.path / "exporter"
        port = other.getsockname()[1]
        node.settings = f'[metrics]\nlisten = "127.0.0.1:{port}"\ntextfile = "{place}/coordd.prom"\n'
        cluster.job("good", "sleep", 0.1)
        cluster.start()
        node.call("run.trigger", job="good", id="1")
        cluster.becomes("good#1", "success")
        (check,) = [check for check in node.call("doctor") if check["check"] == "metrics"]
        assert check["state"] == "warn"
        assert f"127.0.0.1:{port} cannot be bound: Address already in use" in check["text"]
        assert f"{place}/coordd.prom cannot be written" in check["text"]
        assert node.log().count("metrics.not_listening") == 1
        place.mkdir()
        other.close()
        until((place / "coordd.prom").exists, 40, why="the file is tried again")
        told = {family.name for family in parsed_plain((place / "coordd.prom").read_text())}
        assert {"coordd_runs", "coordd_bus_up"} <= told
        until(lambda: "metrics.listening" in node.log(), 40, why="the port is tried again")
        assert values(page(port)[1])["coordd_runs_total", "good", "success"] == 1
        node.stop()
        assert not (place / "coordd.prom").exists(), "a file that stays would look alive"


def test_a_drained_node_is_not_ready_and_the_cluster_is_told_so() -> None:
    with cluster_of(2) as cluster:
        ports = listening(cluster)
        cluster.start()
        drained, other = cluster.nodes
        until(lambda: told(other)[-1:] == [True])
        drained.call("node.drain", note="a test")
        until(lambda: page(ports[0], "/readyz") == (503, "the node is draining\n"))
        until(lambda: told(other)[-1:] == [False])
        found = values(page(ports[1])[1])
        assert (found["coordd_cluster_ready",], found["coordd_node_ready",]) == (0, 1)
        assert other.status()["ready"] == {"node": True, "cluster": False, "reason": "1 of 2 nodes take new runs"}
        drained.call("node.resume")
        until(lambda: told(other)[-1:] == [True])
        assert "cluster.not_ready" in other.log()


def told(node: Node) -> list[bool]:
    """What the node's journal says of the cluster's readiness, in order."""
    text = "".join([path.read_text() for path in sorted((node.state_dir / "journal").glob("*.jsonl"))])
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [line["ready"] for line in lines if line["type"] == "cluster-ready"]
