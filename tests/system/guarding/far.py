"""Another machine: a network namespace with one link to this one, and a driver in it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.netns import inside

from coordd import guard
from coordd.adapters.cluster import properties
from system.lab.cluster import Cluster, Node
from system.lab.processes import until

# The two ends of the link: addresses for documentation, which nobody routes.
HERE, THERE = "203.0.113.1", "203.0.113.2"

# A driver asks its JVM for the conf of its attempt. Here this stands in for PySpark and the JVM. (The nonce must not be
# in an environment: then the watcher would find this process, which is on its machine in fact, and end it.)
PYSPARK = """
import json, os
class SparkContext:
    @classmethod
    def _ensure_initialized(cls):
        assert os.environ["PYSPARK_GATEWAY_PORT"]
class SparkConf:
    def getAll(self):
        return list(json.load(open("conf.json")).items())
"""

DRIVER = """
import logging, os, sys, time
import guard
logging.basicConfig(level=logging.INFO)
target, go = sys.argv[1:]
guard.gate(float(os.environ["GATE_S"]))
staging = guard.staging(target)
with open(staging, "w") as file:
    file.write(os.environ["CONTAINER_ID"])
print("staged", flush=True)
while not os.path.exists(go):
    time.sleep(0.05)
print("owner:", guard.still_owner(20), flush=True)
guard.publish(staging, target, timeout_s=20)
print("published", flush=True)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@contextlib.contextmanager
def far_machine() -> Iterator[str]:
    """The name of a namespace that reaches this machine at HERE, and nothing else."""
    name = f"cdg{os.getpid()}"
    ip("netns", "add", name)
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", "up0", "netns", name)
        ip("addr", "add", f"{HERE}/30", "dev", name)
        ip("link", "set", name, "up")
        ip("-n", name, "addr", "add", f"{THERE}/30", "dev", "up0")
        ip("-n", name, "link", "set", "up0", "up")
        yield name
    finally:
        ip("netns", "del", name)


def conf_of(node: Node, run: str) -> Mapping[str, str]:
    """What spark-submit is given for the attempt of a run: a cluster manager hands it to the driver."""

    def look() -> Mapping[str, str]:
        for path in node.runtime_dir.glob("runs/*/secrets.properties"):
            conf = properties.parse(path.read_text())
            if conf.get("spark.coordd.run") == run:
                return conf
        return {}

    return until(look, why=f"{run} has its conf")


class FarDriver:
    """A driver in the namespace."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        conf: Mapping[str, str],
        application: str,
        name: str,
        gate_s: float = 30.0,
    ) -> None:
        place = cluster.path / name
        place.mkdir()
        self.target, self.go, self._log = cluster.path / "target", place / "go", place / "log"
        program = place / "driver.py"
        program.write_text(textwrap.dedent(DRIVER))
        (place / "pyspark.py").write_text(PYSPARK)
        (place / "conf.json").write_text(json.dumps(dict(conf)))
        container = application.replace("application", "container_e01") + "_01_000001"
        env = {"CONTAINER_ID": container, "PYSPARK_GATEWAY_PORT": "1"}
        env |= {"PYTHONPATH": str(Path(guard.__file__).parent), "GATE_S": str(gate_s)}
        with self._log.open("wb") as log, inside(namespace):
            command = [sys.executable, "-S", str(program), str(self.target), str(self.go)]
            self.process = subprocess.Popen(
                command, env=env, cwd=place, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def said(self) -> str:
        return self._log.read_text()

    def staged(self) -> None:
        until(lambda: "staged" in self.said() or self.process.poll() is not None, why="the driver has staged")
        assert "staged" in self.said(), self.said()

    def end(self) -> int:
        """Let it go on to its end; returns its exit code."""
        self.go.touch()
        return self.process.wait(90)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
