"""Drivers on another machine ask the daemons: adopted ones publish, late and superseded ones change nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Mapping

import pytest

from system.applications.daemons import daemons_on, followed
from system.applications.tracked import Place
from system.guarding.far import HERE, FarDriver, conf_of, far_machine
from system.lab.cluster import Cluster, Node
from system.lab.processes import until

pytestmark = [pytest.mark.paired, pytest.mark.skipif(os.getuid() != 0, reason="only root can make network namespaces")]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Lab:
    """Two daemons that listen, a fake YARN, and another machine."""

    def __init__(self, cluster: Cluster, place: Place, namespace: str, drivers: contextlib.ExitStack) -> None:
        self.cluster, self.place = cluster, place
        self._namespace, self._drivers = namespace, drivers

    def begun(self, run: str, name: str) -> tuple[FarDriver, str]:
        """The application of a run has a driver, which has staged its output; and its id."""
        ident = followed(self.cluster, run)
        driver = self.driver(conf_of(self.owner(run), run), ident, name)
        driver.staged()
        return driver, ident

    def driver(self, conf: Mapping[str, str], ident: str, name: str) -> FarDriver:
        made = FarDriver(self.cluster, self._namespace, conf, ident, name)
        self._drivers.callback(made.close)
        return made

    def owner(self, run: str) -> Node:
        return self.cluster.node(self.cluster.row(run)["node"].split(".")[0])


@pytest.fixture
def lab() -> Iterator[Lab]:
    with daemons_on("yarn") as (cluster, place), far_machine() as namespace, contextlib.ExitStack() as drivers:
        ports = [free_port() for _ in cluster.nodes]
        listed = ", ".join(f'"{HERE}:{port}"' for port in ports)
        for node, port in zip(cluster.nodes, ports, strict=True):
            node.settings += f'\n[guard]\nlisten = "0.0.0.0:{port}"\naddresses = [{listed}]\n'
        cluster.job_file("nightly", place.job())
        cluster.start()
        yield Lab(cluster, place, namespace, drivers)


def test_a_superseded_driver_and_a_late_one_leave_the_target_unchanged(lab: Lab) -> None:
    cluster, run = lab.cluster, "nightly#1"
    cluster.nodes[0].call("run.trigger", job="nightly", id="1")
    frozen, ident = lab.begun(run, "frozen")
    os.kill(frozen.process.pid, signal.SIGSTOP)
    owner = lab.owner(run)
    conf = conf_of(owner, run)
    lab.place.fake.purge(ident)
    os.kill(int(owner.runner(run)["pid"]), signal.SIGKILL)
    cluster.becomes(run, "unknown")
    owner.call("run.resolve", id=run, **{"as": "relaunch"})
    second, other = lab.begun(run, "second")
    assert other != ident
    assert second.end() == 0, second.said()
    published = frozen.target.read_text()

    os.kill(frozen.process.pid, signal.SIGCONT)
    assert frozen.end() == 1, frozen.said()
    late = lab.driver(conf, ident, "late")
    assert late.end() == 1, late.said()

    assert frozen.target.read_text() == published
    assert "owner: False" in frozen.said()
    assert "LeaseLostError: nightly#1, attempt 0" in frozen.said()
    assert f"and it follows {other}" in frozen.said()
    assert "coordd.guard: nightly#1, attempt 0 must not begin any more: the ledger has attempt 1" in late.said()
    assert "staged" not in late.said()
    row = cluster.row(run)
    assert (row["attempt"], row["commit_token"]) == (1, row["token"])


def test_a_driver_whose_node_dies_is_adopted_and_publishes(lab: Lab) -> None:
    cluster, run = lab.cluster, "nightly#2"
    cluster.nodes[0].call("run.trigger", job="nightly", id="2")
    adopted, ident = lab.begun(run, "adopted")

    lab.owner(run).kill_family()
    until(lambda: cluster.row(run)["attempt"] == 1, why="the next attempt")
    assert followed(cluster, run) == ident
    assert adopted.end() == 0, adopted.said()

    row = cluster.row(run)
    assert (row["attempt"], row["commit_token"]) == (1, row["token"])
    assert adopted.target.read_text() == ident.replace("application", "container_e01") + "_01_000001"
