"""Checks in a real cluster: a plug-in keeps a job from one node, a Redis that stops suspends another."""

from __future__ import annotations

from typing import Any

from support.servers.stores import redis

from system.lab.cluster import Node, cluster_of
from system.lab.processes import ROOT, until
from system.watched.test_hooks import hook, over, told

CHECKS = """
[[check]]
name = "plug"
kind = "command"
argv = ["{plugin}"]
every = "1s"
fail_after = 1
pass_after = 1
[[check]]
name = "store"
kind = "redis"
url = "{url}"
scope = "cluster"
every = "5s"
fail_after = 1
pass_after = 1
"""


# Loaded by a daemon at its start: what does not suspend a job any more lets it go after 3 s, not after two minutes.
SOON = """
import sys
if "coordd" in sys.orig_argv:
    sys.path.insert(0, {root!r})
    from coordd.services.checks import service
    service.KEPT_S = 3.0
"""


def states(node: Node) -> dict[tuple[str, str], str]:
    return {(row["name"], row["node"]): row["state"] for row in node.call("check.list")}


def suspended(node: Node, name: str = "loads") -> Any:
    [job] = [one for one in node.call("job.list") if one["name"] == name]
    return job["suspended"]


def test_a_plugin_keeps_a_job_from_a_node_and_a_redis_that_stops_suspends_one() -> None:
    with cluster_of(2) as cluster, redis() as store:
        for node in cluster.nodes:
            plugin = cluster.path / f"{node.name}-plugin"
            plugin.write_text('#!/bin/sh\nread -r code text < "$0.says"\necho "$text | t=1s"\nexit "$code"\n')
            plugin.chmod(0o700)
            (cluster.path / f"{node.name}-plugin.says").write_text("0 fine\n")
            node.settings = CHECKS.format(plugin=plugin, url=store.url)
            (site := cluster.path / f"{node.name}-site").mkdir()
            (site / "sitecustomize.py").write_text(SOON.format(root=str(ROOT)))
            node.env["PYTHONPATH"] = str(site)
        command = '[command]\nargv = ["/bin/true"]\n'
        cluster.job_file("local", 'check = ["plug"]\n' + command)
        for name in ("loads", "edited"):
            cluster.job_file(name, 'check = [{ name = "store", then = "suspend" }]\n' + command)
        cluster.start()
        one, two = cluster.nodes
        fine = {("plug", one.name): "healthy", ("plug", two.name): "healthy"}
        until(lambda: fine.items() <= states(one).items(), why="both nodes tell of theirs")
        until(lambda: "healthy" in [state for (name, _), state in states(two).items() if name == "store"], why="store")

        (cluster.path / f"{one.name}-plugin.says").write_text("2 no licence\n")
        why = f"{one.name} abstains from its runs: check plug is unhealthy. Its check plug is unhealthy"
        until(lambda: why in one.why("local"), why="it abstains")
        assert "no licence" in one.why("local")
        assert ("plug", one.name, "unhealthy") in {(*key, state) for key, state in states(two).items()}
        run = one.call("run.trigger", job="local")["id"]
        until(lambda: one.call("run.show", id=run)["state"] == "success", why=run)
        assert one.call("run.show", id=run)["node"].startswith(two.name + ".")

        store.stop()
        until(lambda: suspended(one) is not None, why="suspended")
        assert suspended(one)["by"] == "check store"
        assert "it cannot be reached" in two.why("loads")
        until(lambda: suspended(one, "edited") is not None, why="suspended too")
        run = one.call("run.trigger", job="edited")["id"]
        cluster.job_file("edited", 'check = [{ name = "store", then = "warn" }]\n' + command)
        for node in cluster.nodes:
            node.call("reload")
        cluster.becomes(run, "success")
        assert (suspended(two, "edited"), suspended(two)["by"]) == (None, "check store"), (
            "the check is bad all the time"
        )
        assert "check store does not suspend it any more" in one.log() + two.log()
        until(lambda: one.call("status")["checks"]["unhealthy"] == 2, why="both are bad")
        store.start()
        until(lambda: suspended(two) is None, why="resumed")


def test_a_hook_is_told_once_of_a_check_that_nodes_share() -> None:
    with cluster_of(3, backend="production") as cluster, redis() as store:
        store_check = CHECKS[CHECKS.index('[[check]]\nname = "store"') :].format(url=store.url)
        for node in cluster.nodes:
            node.settings = f"{store_check}[[hook]]\n{hook(cluster, 'page', on='check.*')}\n"
        cluster.start()
        one = cluster.nodes[0]
        until(lambda: "healthy" in states(one).values(), why="somebody looks")
        store.stop()
        over(cluster, "page", 1)
        store.start()
        over(cluster, "page", 2)
        first, second = told(cluster, "page")
        assert (first["event"], first["check"], first["state"]) == ("check.unhealthy", "store", "unhealthy")
        assert "it was healthy" in first["sentence"]
        assert (second["event"], second["state"]) == ("check.healthy", "healthy")
        lines = [line for node in cluster.nodes for line in node.journal("check-changed")]
        assert sorted(line["state"] for line in lines) == ["healthy", "healthy", "unhealthy"], "one node journals each"


def test_production_the_node_that_looks_for_all_is_killed_and_another_one_looks() -> None:
    with cluster_of(3, backend="production") as cluster, redis() as store:
        shared = CHECKS[CHECKS.index('[[check]]\nname = "store"') :].format(url=store.url)
        for node in cluster.nodes:
            node.settings = shared
        cluster.start()
        one = cluster.nodes[0]
        looks = until(lambda: checker(one), why="somebody looks")
        cluster.node(looks).kill()
        left = cluster.others(cluster.node(looks))
        names = [node.name for node in left]
        until(lambda: checker(left[0]) in names, why="another one looks")
        store.stop()
        for node in left:
            # The nodes that looked before this one are told of, too, each with what it saw.
            until(lambda node=node: "unhealthy" in seen_by(names, states(node)), why="it sees the store stop")  # type: ignore[misc]  # a default binds the loop's variable


def seen_by(names: list[str], found: dict[tuple[str, str], str]) -> list[str]:
    """The states of the shared check that these nodes have seen."""
    return [state for (name, node), state in found.items() if name == "store" and node in names]


def checker(node: Node) -> str:
    """The node that looks at the shared check, as this one knows; "" while nobody does."""
    return next((str(row["node"]) for row in node.call("check.list") if row["name"] == "store" and row["state"]), "")
