"""A real Standalone cluster on loop-back: one master, which remembers its drivers on the disk, and one worker.

The drivers' jar is compiled by the Scala compiler that Spark brings, so a Java runtime is enough.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Self

from coordd.adapters.cluster.http import request
from coordd.adapters.spark import pip_spark_home
from coordd.errors import UnavailableError
from support.servers.server import Server, free_port, wait

SOURCE = Path(__file__).with_name("Drivers.scala")
COMPILE_S = 240.0

# One compiler for all of the cluster's JVMs: they are short-lived, and share two processors with everything else.
QUICK = "-XX:TieredStopAtLevel=1"


class Daemon(Server):
    """A JVM of Spark's own."""

    program = "spark-class"
    package = "openjdk-17-jre-headless"
    options = ""

    def __init__(self) -> None:
        super().__init__()
        self.ui_port = free_port()

    @property
    def ui(self) -> str:
        return f"http://{self.host}:{self.ui_port}"

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "PATH": os.environ["PATH"],
            "JAVA_HOME": java_home(),
            "SPARK_HOME": pip_spark_home(),
            "SPARK_CONF_DIR": str(self.directory),
            "SPARK_LOCAL_IP": self.host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} {self.options}",
        }

    def json(self) -> dict[str, Any]:
        """What its web interface says; {} without an answer."""
        try:
            said = json.loads(request("GET", f"{self.ui}/json/").content)
        except (UnavailableError, ValueError):
            return {}
        return dict(said)


class Master(Daemon):
    def __init__(self) -> None:
        super().__init__()
        self.rest_port = free_port()
        self.options = (
            f"-Dspark.master.rest.host={self.host} -Dspark.master.rest.port={self.rest_port}"
            f" -Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self.directory}/recovery"
        )

    def argv(self) -> list[str]:
        name = "org.apache.spark.deploy.master.Master"
        ports = ["--port", str(self.port), "--webui-port", str(self.ui_port)]
        return [f"{pip_spark_home()}/bin/spark-class", name, "--host", self.host, *ports]

    def answers(self) -> bool:
        return self.json().get("status") == "ALIVE"


class Worker(Daemon):
    options = "-Dspark.worker.driverTerminateTimeout=3000"

    def __init__(self, master: Master) -> None:
        super().__init__()
        self.master = master
        self.work = self.directory / "work"

    def argv(self) -> list[str]:
        name = "org.apache.spark.deploy.worker.Worker"
        resources = ["--cores", "16", "--memory", "8g", "--work-dir", str(self.work)]
        ports = ["--port", str(self.port), "--webui-port", str(self.ui_port)]
        master = f"spark://{self.host}:{self.master.port}"
        return [f"{pip_spark_home()}/bin/spark-class", name, "--host", self.host, *ports, *resources, master]

    def answers(self) -> bool:
        return int(self.master.json().get("aliveworkers", 0)) == 1

    def output(self) -> str:
        return (self.directory / "output").read_text(errors="replace")


class StandaloneCluster:
    """Used as a context. It tells about drivers by the worker's disk, and about executors by the worker's JSON."""

    def __init__(self) -> None:
        self.master = Master()
        self.worker = Worker(self.master)
        self.jar = self.master.directory / "drivers.jar"

    def __enter__(self) -> Self:
        self.master.launch()
        self.worker.launch()
        compile_scala(SOURCE, self.jar)
        self.master.ready()
        self.worker.ready()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.worker.stop()  # it ends its drivers and executors
        mark = str(self.worker.work)
        for pid in [pid for pid in Path("/proc").glob("[0-9]*") if mark in _command(pid)]:
            os.kill(int(pid.name), signal.SIGKILL)
        self.worker.close()
        self.master.close()

    @property
    def url(self) -> str:
        return f"spark://{self.master.host}:{self.master.port}"

    @property
    def conf(self) -> dict[str, str]:
        """What a job must say about this cluster, and what keeps its JVMs small."""
        return {
            "spark.master.ui.port": str(self.master.ui_port),
            "spark.master.rest.port": str(self.master.rest_port),
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": "1",
            "spark.driver.host": self.master.host,
            "spark.driver.bindAddress": self.master.host,
            "spark.driver.extraJavaOptions": QUICK,
            "spark.executor.extraJavaOptions": QUICK,
        }

    @property
    def rest(self) -> str:
        return f"http://{self.master.host}:{self.master.rest_port}"

    def restart_master(self) -> None:
        """Kill it, and start it again: it reads its drivers and applications from the disk."""
        self.master.kill()
        self.master.start()
        wait(self.worker.answers, "the worker has come back to the master", self.master.said)

    def drivers(self, mark: str = "") -> list[str]:
        """The drivers that were ever started with this text in their command."""
        return sorted(path.name for path in self.worker.work.glob("driver-*") if mark in self._first_line(path.name))

    def of_mark(self, mark: str) -> list[str]:
        """As fakes have it."""
        return self.drivers(mark)

    def finish(self, ident: str, code: int = 0) -> None:
        """Let a driver end: it waits for the file that is its last argument."""

        def argument() -> str:
            words = re.findall(r'"([^"]*)"', self._first_line(ident))
            return words[-1] if words else ""

        wait(argument, f"{ident} is started")
        Path(argument()).write_text(str(code))

    def log(self, ident: str) -> str:
        path = self.worker.work / ident
        return "".join([file.read_text(errors="replace") for file in sorted(path.glob("std*"))])

    def states(self) -> dict[str, str]:
        """The state of each driver and application, as the master says."""
        said = self.master.json()
        kinds = ("activedrivers", "completeddrivers", "activeapps", "completedapps")
        return {one["id"]: one["state"] for kind in kinds for one in said.get(kind, ())}

    def processes_of(self, ident: str) -> list[int]:
        """The pids of a driver."""
        path = f"{self.worker.work}/{ident}/"
        return [int(process.name) for process in Path("/proc").glob("[0-9]*") if path in _command(process)]

    def executors(self, application: str = "") -> list[int]:
        """The pids of the executors of an application, "" of all."""
        commands = {int(path.name): _command(path).split("\0") for path in Path("/proc").glob("[0-9]*")}
        worker = f"spark://Worker@{self.worker.host}:{self.worker.port}"
        return [
            pid
            for pid, words in commands.items()
            if worker in words
            and application in ("", *words)
            and "org.apache.spark.executor.CoarseGrainedExecutorBackend" in words
        ]

    def close(self) -> None:
        """As fakes have it. The cluster goes on for the next test."""

    def _first_line(self, ident: str) -> str:
        path = self.worker.work / ident / "stderr"
        try:
            with path.open(errors="replace") as file:
                return file.readline()
        except OSError:
            return ""


def compile_scala(source: Path, to: Path, *more: Path) -> None:
    """Compile with the compiler that Spark ships. ``to``: a jar or a directory. ``more``: where other classes are."""
    classes = ":".join([f"{pip_spark_home()}/jars/*", *map(str, more)])
    command = ["java", QUICK, "-cp", classes, "scala.tools.nsc.Main", "-usejavacp", "-d", str(to), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_S)


def java_home() -> str:
    return os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("java") or "")))


def _command(path: Path) -> str:
    try:
        return (path / "cmdline").read_text(errors="replace")
    except OSError:
        return ""
