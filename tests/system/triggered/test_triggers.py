"""Triggers of a real cluster on RabbitMQ and Redis: each arrival is one run, also if the node that polls is killed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from system.lab.cluster import Cluster, Node, cluster_of
from system.lab.processes import until

FILES = 12


def appears(directory: Path, *names: str) -> None:
    """Files that are written in place, as many programs do."""
    for name in names:
        (directory / name).write_text(name)


def args_of(cluster: Cluster, job: str) -> Counter[str]:
    """How many runs of the job have ended well with each argument."""
    rows = [row for row in cluster.rows() if row["job"] == job and row["state"] == "success"]
    return Counter(json.loads(row["args"])["what"] for row in rows)


def shown(node: Node, job: str) -> dict[str, Any]:
    found = node.call("trigger.list", job=job)
    assert len(found) == 1
    return dict(found[0])


def test_each_file_and_each_end_of_a_run_is_one_run_in_production_also_if_the_poller_dies() -> None:
    with cluster_of(3, backend="production") as cluster:
        inbox = cluster.path / "inbox"
        inbox.mkdir()
        outside = cluster.path / "outside.csv"
        outside.write_text("not yours")
        (inbox / "link.csv").symlink_to(outside)
        appears(inbox, *[f"{number}.csv" for number in range(FILES)])
        cluster.job("load", "sleep", 0.1, overlap="allow", params={"what": ""})
        with (cluster.jobs_dir / "load.toml").open("a") as file:
            file.write(
                f'[[trigger]]\nkind = "file"\npath = "{inbox}/*.csv"\nevery = "1s"\nsettle = "0s"\nmax_open = 50\n'
                'args = { what = "{trigger.name}" }\n'
            )
        cluster.job("then", "sleep", 0.1, overlap="allow", params={"what": ""})
        with (cluster.jobs_dir / "then.toml").open("a") as file:
            file.write(
                '[[trigger]]\nkind = "event"\non = "run.success"\njobs = ["load"]\nargs = { what = "{trigger.run}" }\n'
            )
        cluster.start()

        first = {f"{number}.csv": 1 for number in range(FILES)}
        until(lambda: args_of(cluster, "load") == first, why="the files that were there are taken")
        poller = until(lambda: shown(cluster.nodes[0], "load")["poller"], why="somebody polls")
        assert {shown(node, "load")["poller"] for node in cluster.nodes} == {poller}
        told = cluster.nodes[0].call("trigger.show", job="load")
        assert [(one["arrival"], one["reason"]) for one in told["refused_now"]] == [
            (f"{inbox}/link.csv", f"a link out of {inbox}")
        ]

        cluster.node(poller).kill()
        second = {f"{number}.csv": 1 for number in range(FILES, 2 * FILES)}
        appears(inbox, *second)
        until(lambda: args_of(cluster, "load") == {**first, **second}, why="another node polls")
        left = cluster.others(cluster.node(poller))
        assert shown(left[0], "load")["poller"] in [node.name for node in left]
        runs = {row["run"]: 1 for row in cluster.rows() if row["job"] == "load"}
        assert len(runs) == 2 * FILES
        until(lambda: args_of(cluster, "then") == runs, why="each end of load is one run of then")
        assert len([row for row in cluster.rows() if row["job"] == "then"]) == 2 * FILES
