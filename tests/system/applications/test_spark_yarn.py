"""The real spark-submit and `yarn application` over Hadoop's RPC, against a ResourceManager that is ours."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from support.clusters.yarn import FakeYarn
from support.clusters.yarn_rpc import java, rpc_of, yarn_command
from support.servers.kdc import Kdc
from support.servers.spark import java_home

from coordd.adapters.cluster.yarn_command import YarnCommand
from coordd.adapters.spark import pip_spark_home
from coordd.core.jobs.applications import ALIVE, FAILED, run_mark, yarn_tags
from system.applications.tracked import Cluster
from system.lab.processes import until

RUN = "nightly#1"
MARK = run_mark("prod", RUN)
JVM_S = 120.0


def conf(staging: Path) -> str:
    """Spark's own jars are not copied to the staging directory: they are 400 MB."""
    return (
        f"spark.yarn.submit.waitAppCompletion=false\nspark.yarn.stagingDir=file://{staging}\n"
        "spark.yarn.jars=local:/opt/spark/jars/*.jar\n"
    )


@pytest.mark.parametrize("cluster", ["yarn"], indirect=True)
def test_an_application_is_submitted_followed_and_ended_by_hadoops_own_programs(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The REST interface is not asked at all. The ResourceManager wants Kerberos, and sees who has the ticket."""
    fake = cluster.place.fake
    assert isinstance(fake, FakeYarn)
    spark = (f"{pip_spark_home()}/bin/spark-submit", "--master", "yarn", "--deploy-mode", "cluster")
    cluster.place.yarn_command = str(yarn_command(cluster.place.directory))
    with Kdc(tmp_path / "kdc") as kdc, rpc_of(fake, kdc):
        ticket = kdc.ticket("cc", kdc.keytab("dora.keytab", "dora"), "dora")
        more = {"JAVA_HOME": java_home(), "SPARK_HOME": pip_spark_home(), "JAVA_TOOL_OPTIONS": java(kdc)}
        more |= {"KRB5CCNAME": f"FILE:{ticket}"}
        shutil.copytree(kdc.hadoop(), cluster.place.directory / "conf")
        attempt = cluster.start(spark=spark, conf=conf(tmp_path / "staging"), env=more)
        (ident,) = until(fake.alive, JVM_S)
        until(lambda: attempt.row().application_id == ident, JVM_S)
        row = attempt.row()
        assert fake.apps[ident]["user"] == "dora"
        assert {*fake.apps[ident]["applicationTags"].split(",")} == {*yarn_tags("prod", RUN, row.attempt, row.token)}

        way = YarnCommand(cluster.place.yarn_command, {}, {**cluster.place.environment(), **more})
        (found,) = way.find(MARK, tokens=[int(row.token)])
        assert (found.id, found.state, found.token, found.run_mark) == (ident, ALIVE, row.token, MARK)
        assert abs(found.started_at - time.time()) < JVM_S
        assert way.find(run_mark("prod", "another#1")) == []
        assert way.hidden(named="application_1_0001") == {}
        assert way.hidden(named=ident).keys() == {ident}
        assert "no application that ended" in way.keeps_since(time.time())
        way.end(ident)

        row = attempt.over()
        assert (row.state, row.application_id) == ("retry", ident)
        assert "killed by user dora" in row.reason
        fake.apps[ident] |= {"finalStatus": "FAILED", "state": "FINISHED", "finishedTime": 1_000_000}
        fake.apps[ident]["diagnostics"] = "User class threw exception:\nState : boom"
        (found,) = YarnCommand(cluster.place.yarn_command, {}, {**cluster.place.environment(), **more}).find(MARK)
        assert (found.state, found.token) == (FAILED, 0), "nobody has named its token"
        assert found.detail == "User class threw exception: State : boom"
        assert way.keeps_since(time.time()) == ""
