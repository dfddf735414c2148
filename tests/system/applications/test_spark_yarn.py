"""The real spark-submit and `yarn application` over Hadoop's RPC, against a ResourceManager that is ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.clusters.yarn import FakeYarn
from support.clusters.yarn_rpc import rpc_of, yarn_application
from support.servers.spark import java_home

from coordd.adapters.spark import pip_spark_home
from coordd.core.jobs.applications import run_mark, yarn_tags
from system.applications.tracked import Cluster
from system.lab.processes import until

RUN = "nightly#1"
JVM_S = 120.0


def conf(staging: Path) -> str:
    """Spark's own jars are not copied to the staging directory: they are 400 MB."""
    return (
        f"spark.yarn.submit.waitAppCompletion=false\nspark.yarn.stagingDir=file://{staging}\n"
        "spark.yarn.jars=local:/opt/spark/jars/*.jar\n"
    )


@pytest.mark.parametrize("cluster", ["yarn"], indirect=True)
def test_spark_submit_hands_its_driver_over_and_a_person_ends_it(cluster: Cluster, tmp_path: Path) -> None:
    fake = cluster.place.fake
    assert isinstance(fake, FakeYarn)
    spark = (f"{pip_spark_home()}/bin/spark-submit", "--master", "yarn", "--deploy-mode", "cluster")
    more = {"JAVA_HOME": java_home(), "SPARK_HOME": pip_spark_home()}
    with rpc_of(fake):
        attempt = cluster.start(spark=spark, conf=conf(tmp_path / "staging"), env=more)
        (ident,) = until(fake.alive, JVM_S)
        until(lambda: attempt.row().application_id == ident, JVM_S)
        until(lambda: "spark-submit ended with 0" in cluster.log(attempt), JVM_S)
        grant = attempt.row()
        assert set(fake.apps[ident]["applicationTags"].split(",")) == set(
            yarn_tags("prod", RUN, grant.attempt, grant.token)
        )
        env = cluster.place.environment()
        assert ident in yarn_application(env, "-list", "-appStates", "ALL", "-appTags", run_mark("prod", RUN))

        yarn_application(env, "-kill", ident)  # a person ends it

        row = attempt.over()
    assert (row.state, row.application_id) == ("retry", ident)
    assert "killed by user" in row.reason
