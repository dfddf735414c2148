"""A real Standalone cluster (Spark 4.3; one master, one worker): drivers in cluster mode, PySpark in client mode."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.clusters.submit import CREATE, create_request, post
from support.servers.spark import StandaloneCluster

from coordd.core.jobs.applications import MARK, property_mark, run_mark
from system.applications.daemons import CLUSTER, application_of, daemons_on, followed
from system.applications.launch_path import POINTS, play
from system.applications.standalone import KIND, RealPlace
from system.lab.cluster import Cluster, Node
from system.lab.processes import until

SPARK_LIMIT_S = 240.0  # JVMs load their classes, on a machine that does other work too

# Four tasks, one after the other, of which two wait for a file.
APPLICATION = """
import os, sys, time
from pyspark import SparkContext

go = sys.argv[1]

def work(number):
    while number >= 2 and not os.path.exists(go):
        time.sleep(0.05)
    return number

spark = SparkContext()
print("the sum is", spark.parallelize(range(4), 4).map(work).sum())
spark.stop()
"""


@pytest.fixture(scope="module")
def real() -> Iterator[StandaloneCluster]:
    with StandaloneCluster() as real:
        yield real


class Site(NamedTuple):
    """Two daemons, and the Standalone cluster that their jobs run on."""

    nodes: Cluster
    place: RealPlace
    spark: StandaloneCluster

    def trigger(self, job: str, ident: str) -> str:
        self.up.call("run.trigger", job=job, id=ident)
        return f"{job}#{ident}"

    @property
    def up(self) -> Node:
        return next(node for node in self.nodes.nodes if node.up)

    def followed(self, run: str) -> str:
        return followed(self.nodes, run, SPARK_LIMIT_S)

    def becomes(self, run: str, state: str) -> None:
        row = self.nodes.becomes(run, "success", "failure", "lost", "revoked", limit_s=SPARK_LIMIT_S)
        said = self.spark.log(row["application_id"])[-4000:]
        assert row["state"] == state, f"{row['reason']}\n{said}"

    def owner_dies(self, run: str) -> None:
        """Kill the owner's daemon and everything that it has started on its machine; the daemon comes back later."""
        owner = self.nodes.node(self.nodes.row(run)["node"].split(".")[0])
        owner.kill_family()
        until(lambda: self.nodes.row(run)["attempt"] == 1, SPARK_LIMIT_S, why=f"the next attempt of {run}")
        owner.start()

    def half_done(self, run: str, attempt: int) -> str:
        """Wait until two tasks of an attempt are done, as any node says; returns the application's id."""

        def look() -> str:
            row = self.nodes.row(run)
            if row["attempt"] != attempt or row["state"] != "started":
                return ""
            seen = self.up.call("run.show", id=run)["progress"]
            return str(row["application_id"]) if seen and (seen["tasks"], seen["tasks_done"]) == (4, 2) else ""

        return until(look, SPARK_LIMIT_S, why=f"attempt {attempt} of {run} is half done")


@pytest.fixture(scope="module")
def site(real: StandaloneCluster) -> Iterator[Site]:
    with daemons_on(KIND, 2, real=real, lease=8.0, renew=1.0, ledger_timeout=1.0, kill_grace=4.0) as (nodes, place):
        assert isinstance(place, RealPlace)
        application = nodes.path / "shops.py"
        application.write_text(APPLICATION)
        nodes.job_file("waits", place.job() + "[retry]\nattempts = 1\n")
        nodes.job_file("counts", place.counting())
        nodes.job_file("shops", 'overlap = "allow"\n' + place.in_client_mode(application))
        nodes.start()
        yield Site(nodes, place, real)


def test_one_driver_wherever_the_submitter_is_killed(real: StandaloneCluster) -> None:
    assert play(KIND, 1, seed=7, real=real) == dict.fromkeys(POINTS, 1)


def test_a_driver_is_adopted_and_its_end_is_known_though_the_master_was_away(site: Site) -> None:
    run = site.trigger("waits", "adopted")
    ident = site.followed(run)

    site.owner_dies(run)
    assert site.followed(run) == ident
    site.spark.master.kill()
    site.place.ends(run)
    until(lambda: not site.spark.processes_of(ident), why="the driver has ended")
    site.spark.master.start()

    site.becomes(run, "success")
    assert site.spark.states().get(ident) != "FINISHED", "the worker alone knows its end"
    assert site.spark.drivers(run_mark(CLUSTER, run)) == [ident]
    assert site.nodes.attempts(run)[0]["reason"] == f"{ident} is alive: the next attempt adopts it"


def test_a_restarted_master_ends_a_driver_or_not_and_the_run_says_so(site: Site) -> None:
    run = site.trigger("waits", "restarted")
    ident = site.followed(run)

    site.spark.restart_master()
    site.place.ends(run)

    row = site.nodes.becomes(run, "success", "failure", "lost", "revoked", limit_s=SPARK_LIMIT_S)
    # A worker that registers again while the master recovers is told to kill its drivers: a race in Spark 4.3.
    killed = f"Driver {ident} was killed by user" in site.spark.worker.output()
    assert row["state"] == ("failure" if killed else "success"), row["reason"]
    assert killed == (f"{ident} killed" in row["reason"])
    assert site.spark.drivers(run_mark(CLUSTER, run)) == [ident]


def test_a_driver_that_no_run_knows_is_an_orphan(site: Site) -> None:
    mark = property_mark(CLUSTER, "gone#1", 0, 5)
    argv = ["--name", "gone", "--master", site.spark.url, "--class", "org.example.Waits", str(site.spark.jar)]
    conf = {**site.spark.conf, "spark.driver.memory": "128m", MARK: mark}
    said = post(site.spark.rest + CREATE, create_request([*argv, str(site.place.go / "gone")], conf))

    def look() -> list[dict[str, Any]]:
        return list(site.up.call("orphans")["applications"])

    (orphan,) = until(look, SPARK_LIMIT_S)
    assert (orphan["id"], orphan["problem"]) == (said["submissionId"], "no run of the ledger has its tag")
    site.place.ends("gone")
    until(lambda: look() == [], SPARK_LIMIT_S)


def test_a_cancel_ends_the_driver(site: Site) -> None:
    run = site.trigger("waits", "cancelled")
    ident = site.followed(run)

    site.up.call("run.cancel", id=run)

    site.becomes(run, "revoked")
    assert site.spark.states()[ident] == "KILLED"


def test_a_driver_that_fails(site: Site) -> None:
    run = site.trigger("waits", "failed")
    site.place.ends(run, -1)

    site.becomes(run, "failure")
    row = site.nodes.row(run)
    assert row["reason"] == (
        f"exit code 1: coordd: error: {row['application_id']} failed: Caused by: java.lang.IllegalStateException:"
        " boom, as the test wants; asked with password=***"
    )


def test_the_real_spark_submit_and_an_application(site: Site) -> None:
    run = site.trigger("counts", "1")
    ident = site.followed(run)
    until(lambda: "the sum is 10100" in site.spark.log(ident), SPARK_LIMIT_S)
    (executor,) = site.spark.executors()
    (driver,) = site.spark.processes_of(ident)
    everything = Path(f"/proc/{driver}/cmdline").read_text() + Path(f"/proc/{driver}/environ").read_text()
    assert site.nodes.row(run)["nonce"] not in everything
    told = until(lambda: site.up.call("run.show", id=run)["progress"], SPARK_LIMIT_S, why="its driver tells")
    assert (told["tasks"], told["tasks_done"], told["tasks_failed"]) == (2, 2, 0)

    site.place.ends(run)

    site.becomes(run, "success")
    assert application_of(site.place, run) == [ident]
    until(lambda: executor not in site.spark.executors())


def test_client_mode_has_progress_and_a_takeover_and_leaves_no_executor(site: Site) -> None:
    cancelled, run = site.trigger("shops", "cancelled"), site.trigger("shops", "1")
    stopped, first = site.half_done(cancelled, 0), site.half_done(run, 0)
    site.up.call("run.cancel", id=cancelled)
    site.becomes(cancelled, "revoked")
    until(lambda: site.spark.executors(stopped) == [])

    site.owner_dies(run)
    until(lambda: site.spark.executors(first) == [], why="executors end with their driver")
    until(lambda: site.spark.states().get(first) == "FINISHED", why="which proves nothing: its driver was killed")
    second = site.half_done(run, 1)
    (executor,) = until(lambda: site.spark.executors(second))
    os.kill(executor, signal.SIGKILL)
    until(lambda: set(site.spark.executors(second)) - {executor}, SPARK_LIMIT_S, why="another executor")
    site.spark.restart_master()
    site.place.ends(run)

    site.becomes(run, "success")
    assert [one["state"] for one in site.nodes.attempts(run)] == ["lost", "success"]
    until(lambda: site.spark.executors() == [])
