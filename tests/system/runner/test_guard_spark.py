"""Spark drivers that publish: the example of docs/spark.md, and a driver that is frozen and thaws after a takeover."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from coordd import guard
from coordd.adapters.disk.files import write_atomic
from coordd.adapters.spark import AttemptInfo, SparkDefaults, build
from coordd.config.jobfile import load_job
from coordd.config.sections import Config
from coordd.core.jobs.job import Job, SparkSubmit
from coordd.core.ledger.rows import Row
from system.lab.cluster import Cluster, Node, cluster_of
from system.lab.processes import exists, send, until
from system.lab.runner_lab import world_in

DOCS = Path(__file__).parents[3] / "docs/spark.md"
SPARK_LIMIT_S = 240.0  # JVMs load their classes, on a machine that does other work too

CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def example(language: str, heading: str = "An example") -> str:
    """The first block of code in that language under that heading."""
    section = DOCS.read_text().partition(f"\n### {heading}\n")[2]
    found = re.search(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def parts(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.parquet"))


def driven(place: Path, launch: SparkSubmit, *, granted: bool = True) -> tuple[Row, str]:
    """Run a driver under a real runner; returns its row and its log. ``granted``: it is told its own token."""
    with world_in(place) as world:
        spec, attempt = world.spec([])
        grant = (spec["run"], 0, spec["token"] + (not granted), spec["nonce"])
        info = AttemptInfo(*grant, "edge-1", spec["fire_at"], "", attempt.directory)
        of = Job(name=spec["job"], digest="d", launch=launch)
        program = build(of, launch, SparkDefaults(master="local[1]"), info)
        os.makedirs(attempt.directory, mode=0o700, exist_ok=True)
        write_atomic(program.secrets_path, program.secrets.encode())
        world.launcher.start({**spec, "argv": program.argv, "env": {**program.env, "MARK": spec["env"]["MARK"]}})
        return attempt.over(SPARK_LIMIT_S), Path(attempt.directory, "log").read_text()


def test_the_example_of_the_documentation_publishes(tmp_path: Path) -> None:
    application, target = tmp_path / "shops.py", tmp_path / "shops"
    application.write_text(example("python"))
    (tmp_path / "sales.csv").write_text("shop\nberlin\nberlin\nrome\n")
    (tmp_path / "shops.toml").write_text(example("toml"))
    target.mkdir()
    (target / "old.parquet").write_text("old")
    job, problems = load_job(str(tmp_path / "shops.toml"), Config())
    assert job is not None, problems
    assert isinstance(job.launch, SparkSubmit)
    assert job.launch.py_files[0].endswith("coordd/guard.py")
    args = (str(tmp_path / "sales.csv"), str(target))
    row, log = driven(tmp_path, SparkSubmit(str(application), args=args, conf=CONF, py_files=(guard.__file__,)))

    assert (row.state, row.commit_token) == ("success", row.token), log[-3000:]
    assert f"{target} is published: now" in log
    assert not (target / "old.parquet").exists()
    assert parts(target)
    assert sorted(os.listdir(tmp_path / ".shops.coordd")) == ["lock", "published.json"]


# The owner waits before it publishes; the one that takes over does not.
DRIVER = """
import logging, os, sys, time
import guard
from pyspark.sql import SparkSession
logging.basicConfig(level=logging.INFO)
target, ready = sys.argv[1:]
node = os.environ["COORDD_NODE"].partition(".")[0]
spark = SparkSession.builder.getOrCreate()
hidden = [row.value for row in spark.sql("SET spark.coordd.token.nonce").collect()]
print("the nonce is shown as", hidden, flush=True)
staging = guard.staging(target)
spark.createDataFrame([(node,)], ["node"]).write.parquet(staging)
if os.environ["COORDD_ATTEMPT"] == "0":
    with open(ready + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(ready + ".part", ready)
    while os.path.exists(ready):
        time.sleep(0.05)
print("owner:", guard.still_owner(3), flush=True)
guard.publish(staging, target, timeout_s=5)
"""


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_a_frozen_driver_that_thaws_after_a_takeover_leaves_the_target_unchanged(backend: str) -> None:
    with cluster_of(2, backend=backend) as cluster:
        application, target, ready = (cluster.path / name for name in ("driver.py", "out", "ready"))
        application.write_text(DRIVER)
        for node in cluster.nodes:
            node.env = {"JAVA_HOME": os.environ.get("JAVA_HOME", ""), "PATH": os.environ["PATH"]}
        spark_job(cluster, application, [str(target), str(ready)])
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="zombie", id="1")
        until(ready.exists, SPARK_LIMIT_S, why="the first driver has staged its output")
        driver = int(ready.read_text())
        first = cluster.node(cluster.row("zombie#1")["node"].partition(".")[0])
        frozen = freeze(first)
        assert driver in frozen
        cluster.becomes("zombie#1", "success", limit_s=SPARK_LIMIT_S)
        published = sorted(os.listdir(target))
        log = thawed_log(first, driver, ready)

        assert sorted(os.listdir(target)) == published
        assert "owner: False" in log
        assert "not the owner: zombie#1, attempt 0: nobody can tell who owns the run" in log
        assert f"LeaseLostError: {target} has the output of a later attempt, of zombie#1" in log
        assert "redacted" in log
        row = cluster.row("zombie#1")
        assert (row["state"], row["attempt"]) == ("success", 1)
        record = json.loads((cluster.path / ".out.coordd/published.json").read_text())
        assert (record["token"], record["done"]) == (row["token"], True)


def spark_job(cluster: Cluster, application: Path, args: list[str]) -> None:
    conf = "\n".join(f'"{key}" = "{value}"' for key, value in CONF.items())
    cluster.job_file(
        "zombie",
        f'on_lost = "relaunch"\n[spark]\nmaster = "local[1]"\napplication = "{application}"\n'
        f"args = {json.dumps(args)}\n"
        f"py_files = {json.dumps([guard.__file__])}\n[spark.conf]\n{conf}\n",
    )


def freeze(node: Node) -> set[int]:
    """Stop the daemon, the runner, the watcher, Spark and everything else of a node; returns their pids."""
    frozen: set[int] = set()
    while more := node.family() - frozen:
        for pid in sorted(more):  # the daemon first: it lets stopped guards go on
            send(pid, signal.SIGSTOP)
        frozen |= more
    return frozen


def thawed_log(node: Node, driver: int, ready: Path) -> str:
    """Let the driver alone go on until it has ended, then the JVM that passes its output on, then its runner, then the
    rest; returns what the driver printed. If all went on at once, the watcher would end them before that.
    """
    ready.unlink()
    directory = next((node.runtime_dir / "runs").glob("*"))
    log = Path(json.loads((directory / "spec.json").read_text())["log_path"])
    os.kill(driver, signal.SIGCONT)
    until(lambda: not exists(driver), why="the driver has ended")
    facts = {fact["fact"]: fact for fact in map(json.loads, (directory / "facts").read_text().splitlines())}
    jvm, runner = facts["started"]["program"], facts["adopted"]["pid"]
    os.kill(jvm, signal.SIGCONT)
    until(lambda: not exists(jvm), why="spark-submit has ended")
    os.kill(runner, signal.SIGCONT)
    until(lambda: "LeaseLostError" in log.read_text(), why="the runner has written the driver's last lines")
    for pid in node.family():
        send(pid, signal.SIGCONT)
    return log.read_text()
