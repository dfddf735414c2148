"""Sinks of packages on a real daemon: the example of deploy/plugins, installed by pip, and bad ones."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from sqlite3 import connect
from typing import Any

from plugins.written import installed, written

from system.lab.cluster import Cluster, cluster_of
from system.lab.processes import until
from system.plugged.test_plugins import says
from system.test_policies import trigger

SINKS = """
import os

def absent(of):
    if not os.path.exists(of.path):
        raise OSError("no file")
    open(of.path, "a").write(of.outcome["id"])
"""


def letters(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {one["job"]: one for one in cluster.nodes[0].call("deadletter.list") if one["kind"] == "sink"}


def test_the_sinks_of_packages_get_each_end_and_what_they_never_take_is_a_dead_letter(tmp_path: Path) -> None:
    site, bad = installed(tmp_path, "sink"), written(tmp_path / "bad", "coordd.sinks", SINKS, "absent", "loops")
    path, file = tmp_path / "ends.db", tmp_path / "file"

    def ends() -> list[tuple[str, str]]:
        with closing(connect(path)) as database:
            return database.execute("SELECT id, state FROM ends").fetchall() if path.stat().st_size else []

    with cluster_of(1) as cluster:
        cluster.job("sales", "until", cluster.go("open"))
        cluster.go("open").touch()
        (node,) = cluster.nodes
        node.env["PYTHONPATH"] = os.pathsep.join(map(str, (site, bad)))
        again = 'attempts = 2\ndelay = "0.2s"\n'
        node.settings = (
            f'[sink.table]\nto = "plugin://ends-table{path}"\n[sink.absent]\nto = "plugin://absent{file}"\n{again}'
            f'[sink.loops]\nto = "plugin://loops"\ntimeout = "1s"\n{again}'
        )
        cluster.start()
        cluster.becomes(trigger(node, "sales", "one"), "success")
        until(lambda: path.exists() and ends() == [("sales#one", "success")], why="the table has the end")
        until(lambda: {*letters(cluster)} == {"hook~sink.absent", "hook~sink.loops"}, why="two are given up")
        letter = letters(cluster)["hook~sink.absent"]
        assert letter["attempts"] == 2
        file.touch()
        node.call("deadletter.replay", id=letter["id"])
        until(lambda: file.read_text() == "sales#one", why="the letter has arrived")
        assert says(node, "plug-in ends-table") == ("ok", "a sink of coordd-ends-table 1.0")
        assert says(node, "sink table") == ("ok", f"plugin://ends-table{path}, of *")
