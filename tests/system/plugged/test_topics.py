"""Topics of packages on real daemons: the example of deploy/plugins, installed by pip, and bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plugins.written import installed, written

from coordd.plugins import TOPICS
from system.lab.cluster import Node, cluster_of
from system.lab.processes import until
from system.plugged.test_plugins import says

BAD = """
import sys

def drill(of): pass
def exits(of): sys.exit(3)
def raises(of): raise ValueError("it is Friday")
"""


def opened(node: Node, ident: str, topic: str) -> dict[str, Any]:
    return dict(node.call("election.open", id=ident, topic=topic))


def first(election: dict[str, Any]) -> str:
    return str(election["succession"][0]).rpartition(".")[0]


def calls(node: Node, ident: str) -> None:
    until(lambda: f"told of {ident}" in node.log(), why=f"{node.name} has called the handler")


def is_named(node: Node, topic: str, problem: str) -> None:
    until(lambda: problem in says(node, f"topic {topic}")[1], why=f"{topic} is named")


@pytest.mark.parametrize("backend", ["embedded", pytest.param("production", marks=pytest.mark.production)])
def test_of_all_nodes_the_first_one_calls_the_example(backend: str, tmp_path: Path) -> None:
    """The third node does not have the package, and stands aside."""
    site = installed(tmp_path, "topic")
    with cluster_of(3, backend=backend) as cluster:
        for node in cluster.nodes[:2]:
            node.env["PYTHONPATH"] = str(site)
        one, two, three = cluster.start().nodes
        assert says(one, "plug-in page-one") == ("ok", "a topic of coordd-page-one 1.0")
        for number, node in enumerate((one, two, three)):
            election = opened(node, f"full-{number}", "page-one")
            assert {name.rpartition(".")[0] for name in election["succession"]} == {one.name, two.name}
            winner = next(node for node in (one, two) if node.name == first(election))
            calls(winner, f"full-{number}")

        told = [line for node in cluster.nodes for line in node.log().splitlines() if "topic.done" in line]
        assert len(told) == 3
        assert "topic.done" not in three.log()


def test_bad_ones_fail_alone_and_are_named(tmp_path: Path) -> None:
    site = written(tmp_path / "bad", TOPICS, BAD, "drill", "exits", "raises", "leaks", "gone")
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        node.env["PYTHONPATH"] = str(site)
        cluster.start()
        assert says(node, "topic drill") == ("warn", "a topic of this name is there already")
        for topic, problem in (
            ("exits", "it called exit(3)"),
            ("raises", "it failed: ValueError: it is Friday"),
            ("leaks", "it failed: MemoryError"),
            ("gone", "it failed: AttributeError"),
        ):
            opened(node, f"x-{topic}", topic)
            is_named(node, topic, problem)
        assert first(opened(node, "y", "drill")) == node.name
        assert node.status()["state"] == "ready"
