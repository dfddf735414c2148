"""spark-submit in a run's unit: a driver of another user, in the unit's sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from system.lab.systemd_lab import SystemdLab
from system.systemd.run_units import Runs

# Shuffles, forks Python, keeps a table where the site lets it; ends as the job says, not as the JVM does.
APPLICATION = """
import getpass, json, os, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
pairs = spark.sparkContext.parallelize(range(1000), 2).map(lambda number: (number % 7, getpass.getuser()))
counted = pairs.groupByKey().map(lambda pair: (pair[0], sorted(set(pair[1]))[0]))
counted.toDF(["key", "user"]).write.parquet(sys.argv[1])
said = {
    "rows": sorted(map(tuple, spark.read.parquet(sys.argv[1]).collect())),
    "java": spark.sparkContext.sparkUser(),
    "secret": spark.conf.get("spark.my.password"),
    "tmp": sorted({name.partition("-")[0] for name in os.listdir("/tmp")}),
}
spark.stop()
print("SAID " + json.dumps(said), flush=True)
sys.exit(7)
"""

JOB = """\
run_as = "etl"
[spark]
application = "/opt/site/app.py"
args = ["/data/reports/table"]
master = "local[2]"
[spark.conf]
"spark.ui.enabled" = "false"
"spark.driver.memory" = "512m"
"spark.driver.host" = "127.0.0.1"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"
"spark.sql.shuffle.partitions" = "2"
"spark.my.password" = "CANARY-51"
"""

# A JVM loads its classes, on a machine that does other work too.
SPARK_LIMIT_S = 240.0


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with SystemdLab() as lab:
        service = Runs(lab, {"report": JOB})
        site = lab.root / "opt/site"
        site.mkdir()
        (site / "app.py").write_text(APPLICATION)
        lab.run("sh", "-c", "mkdir -p /data/reports; chown etl: /data/reports")
        place = lab.root / "etc/systemd/system/coordd-run@.service.d/site.conf"
        place.write_text("[Service]\nReadWritePaths=/data/reports\n")
        lab.run("systemctl", "daemon-reload")
        service.systemctl("start")
        yield service
        service.systemctl("stop")
        service.kill_what_is_left()


def test_a_driver_is_the_jobs_user_and_leaves_only_its_table(runs: Runs) -> None:
    run = runs.trigger("report", "a")
    runs.lab.until(lambda: runs.run_of(run)["state"] != "started", timeout_s=SPARK_LIMIT_S)
    found, output = runs.run_of(run), runs.output(run)
    assert (found["state"], found["exit_code"], found["attempt"]) == ("failure", 7, 0), "\n".join(output)
    assert str(found["application_id"]).startswith("local-")

    [said] = [json.loads(line.removeprefix("SAID ")) for line in output if line.startswith("SAID ")]
    assert said["rows"] == [[key, "etl"] for key in range(7)]
    assert (said["java"], said["secret"]) == ("etl", "CANARY-51")
    assert "coordd" in said["tmp"], "the file of its secrets"
    assert "systemd" not in said["tmp"], "a /tmp of its own"
    assert runs.lab.run("stat", "-c", "%U", "/data/reports/table/_SUCCESS") == "etl"
    runs.lab.until(lambda: not runs.units())
    assert "coordd-run" not in runs.lab.run("ls", "/tmp", "/var/tmp"), "its /tmp has gone with it"
