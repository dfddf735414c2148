"""Checks in a real cluster: a plug-in keeps a job from one node, a Redis that stops suspends another."""

from __future__ import annotations

from typing import Any

from support.servers.stores import redis

from system.lab.cluster import Node, cluster_of
from system.lab.processes import until

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


def states(node: Node) -> dict[tuple[str, str], str]:
    return {(row["name"], row["node"]): row["state"] for row in node.call("check.list")}


def suspended(node: Node) -> Any:
    [job] = [one for one in node.call("job.list") if one["name"] == "loads"]
    return job["suspended"]


def test_a_plugin_keeps_a_job_from_a_node_and_a_redis_that_stops_suspends_one() -> None:
    with cluster_of(2) as cluster, redis() as store:
        for node in cluster.nodes:
            plugin = cluster.path / f"{node.name}-plugin"
            plugin.write_text('#!/bin/sh\nread -r code text < "$0.says"\necho "$text | t=1s"\nexit "$code"\n')
            plugin.chmod(0o700)
            (cluster.path / f"{node.name}-plugin.says").write_text("0 fine\n")
            node.settings = CHECKS.format(plugin=plugin, url=store.url)
        command = '[command]\nargv = ["/bin/true"]\n'
        cluster.job_file("local", 'check = ["plug"]\n' + command)
        cluster.job_file("loads", 'check = [{ name = "store", then = "suspend" }]\n' + command)
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
        until(lambda: one.call("status")["checks"]["unhealthy"] == 2, why="both are bad")
        store.start()
        until(lambda: suspended(two) is None, why="resumed")
