"""The real spark-submit against an API server of Kubernetes that is ours."""

from __future__ import annotations

import os
import shutil

import pytest
from support.clusters.kube_login import Plugin
from support.clusters.kubernetes import FakeKubernetes

from coordd.adapters.spark import pip_spark_home
from coordd.core.jobs.applications import run_mark
from system.applications.tracked import Cluster
from system.lab.processes import until

RUN = "nightly#1"
CONF = """spark.kubernetes.container.image=spark:4
spark.kubernetes.submission.waitAppCompletion=false
"""
JVM_S = 120.0


@pytest.mark.parametrize("cluster", ["kubernetes"], indirect=True)
def test_spark_submit_hands_its_driver_over(cluster: Cluster) -> None:
    """Spark and the tracker are let in by the same log-in command of a kubeconfig."""
    fake = cluster.place.fake
    assert isinstance(fake, FakeKubernetes)
    plugin = Plugin(cluster.place.directory)
    plugin.configure(fake.url)
    plugin.answers("let me in")
    fake.bearer = "let me in"
    spark = (f"{pip_spark_home()}/bin/spark-submit", "--master", f"k8s://{fake.url}", "--deploy-mode", "cluster")
    java = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("java") or "")))
    more = {"JAVA_HOME": java, "SPARK_HOME": pip_spark_home(), "KUBECONFIG": str(plugin.config)}

    attempt = cluster.start(spark=spark, conf=CONF, env=more)
    name = f"{run_mark('prod', RUN)}-0"
    until(lambda: attempt.row().application_id == name, JVM_S)
    until(lambda: "spark-submit ended with 0" in cluster.log(attempt), JVM_S)
    pod = fake.pods[name]
    arguments = pod["spec"]["containers"][0]["args"]
    assert arguments[-1] == "local:///opt/app.py"
    assert {path.split("/")[-2] for path in fake.others} >= {"services", "configmaps"}
    fake.finish(name)

    row = attempt.over()
    assert (row.state, row.application_id) == ("success", name)
    assert plugin.told()["kind"] == "ExecCredential", "only coordd tells the command what it wants"
