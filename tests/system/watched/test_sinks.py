"""Sinks of a real cluster: each end arrives at each of them, also if nodes die; what is given up is a dead letter."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from system.lab.cluster import Cluster, cluster_of
from system.lab.processes import until


def arrived(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def letters(cluster: Cluster) -> list[dict[str, Any]]:
    return [one for one in cluster.nodes[1].call("deadletter.list") if one["kind"] == "sink"]


def test_each_end_arrives_and_what_is_given_up_is_replayed() -> None:
    with cluster_of(2) as cluster:
        lines, tables, later = cluster.path / "ends.jsonl", cluster.path / "ends", cluster.path / "later"
        for node in cluster.nodes:
            node.settings = (
                f'[sink.lines]\nto = "file://{lines}"\n[sink.tables]\nto = "parquet://{tables}"\njobs = ["good"]\n'
                f'[sink.later]\nto = "file://{later}/ends.jsonl"\njobs = []\nattempts = 2\ndelay = "0.2s"\n'
            )
        cluster.job("good", "sleep", 0.1, overlap="allow")
        path = cluster.jobs_dir / f"{cluster.job('bad', 'sleep', 0.1, code=3)}.toml"
        path.write_text(path.read_text() + '[[sink]]\nto = "later"\n')
        cluster.start()
        for number in range(3):
            cluster.nodes[number % 2].call("run.trigger", job="good", id=str(number))
        cluster.nodes[0].call("run.trigger", job="bad", id="1")
        until(lambda: len(letters(cluster)) == 1, why="the sink without a directory is given up")
        (letter,) = letters(cluster)
        assert (letter["job"], letter["attempts"]) == ("hook~sink.later", 2)

        until(lambda: len(arrived(lines)) >= 4, why="four ends have arrived")
        ends = arrived(lines)
        assert Counter((one["id"], one["state"]) for one in ends) == {
            ("good#0", "success"): 1, ("good#1", "success"): 1, ("good#2", "success"): 1, ("bad#1", "failure"): 1,
        }  # fmt: skip
        row = cluster.row("bad#1")
        end = next(one for one in ends if one["id"] == "bad#1")
        assert end == {**end, "token": row["token"], "exit_code": 3, "reason": "exit code 3", "attempt": 0}
        until(lambda: tables.is_dir() and len(pq.read_table(tables)) == 3, why="three rows of Parquet")

        later.mkdir()
        cluster.nodes[1].call("deadletter.replay", id=letter["id"])
        until(lambda: [one["id"] for one in arrived(later / "ends.jsonl")] == ["bad#1"], why="the letter has arrived")
        until(lambda: letters(cluster) == [], why="no letter is left")

        cluster.nodes[0].call("run.trigger", job="good", id="last")
        cluster.nodes[0].kill()
        until(lambda: any(one["id"] == "good#last" for one in arrived(lines)), why="the other node tells it")
        checks = {one["check"]: one["text"] for one in cluster.nodes[1].call("doctor")}
        assert checks["sink lines"] == f"file://{lines}, of *"
