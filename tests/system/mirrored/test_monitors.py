"""Flower and `celery events --dump`, as installed from PyPI, show a real cluster on a real RabbitMQ."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.servers.rights import rabbit_monitor
from support.servers.server import free_port

from system.lab.cluster import Cluster, cluster_of
from system.lab.processes import LIMIT_S, until
from system.lab.secured import TIMING, Doors, trigger

pytestmark = pytest.mark.production

# The whole configuration that docs/operate.md gives to Celery's tools.
APP = """\
from celery import Celery
app = Celery(broker={url!r})
app.conf.event_exchange = {exchange!r}
"""


@contextlib.contextmanager
def program(path: Path, *argv: str, **env: str) -> Iterator[Path]:
    """A program of Celery in the background; yields the file with its output."""
    output = path / f"{argv[1]}.out"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "monitors", *argv[1:]],
            cwd=path,
            env={"PATH": os.environ["PATH"], "HOME": str(path), "PYTHONUNBUFFERED": "1", **env},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield output
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(LIMIT_S)


def asked(port: int, path: str) -> Any:
    """Flower's JSON; None while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ValueError, OSError):
        return None


def mirrored(cluster: Cluster, path: Path) -> None:
    """Turn the mirror on, on all nodes, and write the configuration of the monitors.

    The users of nodes and monitors have the rights of deploy/acl.
    """
    rabbit, vhost = Doors(cluster, "of-the-nodes").rabbit, cluster.path.name
    user = f"{vhost}-monitor"
    rabbit.ctl("add_user", user, "looks")
    rabbit.ctl("set_permissions", "-p", vhost, user, *[rabbit_monitor(vhost)] * 3)
    for node in cluster.nodes:
        node.settings += '\n[mirror]\nurl = "bus"\n'
    url = f"amqp://{user}:looks@{rabbit.host}:{rabbit.port}/{vhost}"
    (path / "monitors.py").write_text(APP.format(url=url, exchange=f"coordd.{vhost}:mirror"))


def dumped(output: Path) -> list[tuple[str, str, str]]:
    """(worker, type, run) of each event that `celery events --dump` has printed."""
    found = re.findall(r"^(\S+) \[.*?\] (\w[\w -]*?)(?:: | \{|$)(.*)$", output.read_text(), re.MULTILINE)
    return [(worker, kind, rest) for worker, kind, rest in found]


def test_flower_and_celery_events_show_the_cluster(tmp_path: Path) -> None:
    port = free_port()
    with cluster_of(2, backend="production", **TIMING) as cluster:
        cluster.job("short", "sleep", 0, overlap="allow")
        cluster.job("bad", "sleep", 0, overlap="allow", code=3)
        cluster.job("long", "until", cluster.go("go"))
        mirrored(cluster, tmp_path)
        cluster.start()
        flower = ["celery", "flower", f"--port={port}", "--address=127.0.0.1"]
        with (
            program(tmp_path, "celery", "events", "--dump") as dump,
            program(tmp_path, *flower, FLOWER_UNAUTHENTICATED_API="true") as log,
        ):
            until(lambda: asked(port, "/api/tasks") is not None, why=f"Flower answers: {log}")
            until(lambda: len(set(re.findall(r"coordd@\S+", dump.read_text()))) == 2, why="both nodes beat")
            runs = [trigger(cluster.nodes[0], name, "1") for name in ("short", "bad")]
            long = trigger(cluster.nodes[1], "long", "1")
            cluster.becomes(runs[0], "success")
            cluster.becomes(runs[1], "failure")
            owner = cluster.owner(long)
            owner.kill_family()
            cluster.started(long, attempt=1)
            cluster.go("go").touch()
            cluster.becomes(long, "success")

            def tasks() -> dict[str, dict[str, Any]]:
                return {task["args"]: task for task in (asked(port, "/api/tasks") or {}).values()}

            wanted = {f"('{runs[0]}',)": "SUCCESS", f"('{runs[1]}',)": "FAILURE", f"('{long}',)": "SUCCESS"}
            until(
                lambda: {args: task["state"] for args, task in tasks().items()} == wanted, why="Flower knows all ends"
            )
            (left,) = cluster.others(owner)
            done = tasks()[f"('{long}',)"]
            assert done["name"] == "long"
            assert done["worker"] == f"coordd@{left.name}"
            assert done["retries"] == 1
            assert "exit code 3" in tasks()[f"('{runs[1]}',)"]["exception"]

            def workers() -> dict[str, Any]:
                said = asked(port, "/workers?json=1") or {"data": []}
                return {worker["hostname"]: worker["status"] for worker in said["data"]}

            names = {f"coordd@{left.name}": True, f"coordd@{owner.name}": False}
            until(lambda: workers() == names, why="Flower knows who is alive")
            left.stop()
            until(lambda: workers().get(f"coordd@{left.name}") is False, why="it said goodbye")

        text = dump.read_text()
        assert "ACCESS_REFUSED" not in text + log.read_text()
        for run in runs:
            kinds = Counter(re.findall(rf"(task-\w+|task \w+)[^\n]*{re.escape(run)}", text))
            assert kinds, text[-2000:]
            assert set(kinds.values()) == {1}, f"one copy of each event: {kinds}"
