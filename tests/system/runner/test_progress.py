"""A real PySpark driver: how far it is, seen from its node, from the other one, and by systemd; and why it failed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from system.lab.cluster import Cluster, cluster_of
from system.lab.processes import ROOT, until

SPARK_LIMIT_S = 240.0  # JVMs load their classes, on a machine that does other work too

# Two stages, of 4 and 2 tasks. The first task fails once; two tasks wait for a file.
APPLICATION = """
import os, sys, time
from pyspark import TaskContext
from pyspark.sql import SparkSession

go = sys.argv[1]

def work(number):
    if number == 0 and TaskContext.get().attemptNumber() == 0:
        raise ValueError("once")
    while number >= 2 and not os.path.exists(go):
        time.sleep(0.05)
    return number % 2, number

spark = SparkSession.builder.getOrCreate()
spark.sparkContext.parallelize(range(4), 4).map(work).groupByKey(2).count()
raise ValueError("there are no rows in the table of shops; asked with password=hunter2")
"""

CONF = """
[spark.conf]
"spark.driver.memory" = "512m"
"spark.driver.host" = "127.0.0.1"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"
"""


def test_the_progress_of_a_driver_is_told_everywhere_and_its_exception_is_the_reason() -> None:
    with cluster_of(2) as cluster, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(cluster.path / "notify"))
        notified.setblocking(False)
        application, go = cluster.path / "shops.py", cluster.path / "go"
        application.write_text(APPLICATION)
        cluster.job_file(
            "shops", f'[spark]\nmaster = "local[2,2]"\napplication = "{application}"\nargs = ["{go}"]\n{CONF}'
        )
        for node in cluster.nodes:
            node.env = {
                "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
                "PATH": os.environ["PATH"],
                "NOTIFY_SOCKET": str(cluster.path / "notify"),
            }
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="shops", id="1")

        for node in cluster.nodes:
            seen = shown(cluster, node.name)
            assert {key: seen[key] for key in seen if key != "ui"} == {
                "stages": 2, "stages_done": 0, "tasks": 6, "tasks_done": 2, "tasks_failed": 1, "left_s": None,
            }  # fmt: skip
            assert seen["ui"].startswith("http://127.0.0.1:")
            [row] = node.call("run.list", job="shops", progress=True)
            assert row["progress"]["tasks_done"] == 2
            assert "█" in watched(node.socket)
        with socket.create_connection(("127.0.0.1", int(seen["ui"].rpartition(":")[2])), timeout=30):
            pass  # somebody listens there
        until(lambda: "(shops 33 %)" in drained(notified), why="STATUS= says how far the run is")

        go.write_text("")
        row = cluster.becomes("shops#1", "failure", limit_s=SPARK_LIMIT_S)
        assert row["reason"] == (
            "exit code 1: ValueError: there are no rows in the table of shops; asked with password=***"
        )
        after = cluster.nodes[0].call("run.show", id="shops#1")
        assert (after["progress"], after["no_progress"]) == (None, None)


def shown(cluster: Cluster, name: str) -> dict[str, Any]:
    """Wait until two tasks are done, as this node says."""

    def look() -> dict[str, Any] | None:
        said = cluster.node(name).call("run.show", id="shops#1")
        assert said["state"] in ("pending", "received", "started"), said
        seen: dict[str, Any] | None = said["progress"]
        return seen if seen is not None and seen["tasks_done"] == 2 else None

    return until(look, SPARK_LIMIT_S, why=f"{name} says that two tasks are done") or {}


def watched(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from coordd.cli.coordctl import main; main()", "watch", "--socket", str(path)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


def drained(sock: socket.socket) -> str:
    """The messages to systemd that have come since the last call."""
    said = ""
    while True:
        try:
            said += sock.recv(65536).decode() + "\n"
        except BlockingIOError:
            return said
