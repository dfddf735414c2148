"""Sections in a driver of PySpark: what fails for a moment is tried again, and an input that fails each time is skipped
by the next attempt, although that is another Spark."""

from __future__ import annotations

import json
import os

from coordd import guard, resilience
from system.lab.cluster import cluster_of

# A JVM starts, twice, on a machine that does other work too.
SPARK_LIMIT_S = 240.0

CONF = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.driver.memory": "512m"}

# Counts the lines of three inputs. The first is not there when it is looked for first, the second has no such column
# as its schema says.
DRIVER = """
import json, os, sys
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from resilience import optional, poisonous, retry
place, out = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

def tell(*words):
    with open(out, "a") as file:
        print(os.environ["COORDD_ATTEMPT"], *words, file=file)

@retry(on=AnalysisException, attempts=3, delay=0.1, backoff="fixed")
def late():
    tell("late", "begins")
    path = f"{place}/late.json"
    try:
        return spark.read.json(path).count()
    except AnalysisException:
        with open(path, "w") as file:
            file.write('{"amount": 1}')
        raise

@poisonous(key="{name}", attempts=1, skip=True)
def load(name):
    tell(name, "begins")
    rows = spark.read.schema("amount INT").json(f"{place}/{name}.json", mode="FAILFAST")
    tell(name, rows.groupBy().sum("amount").first()[0])

with optional(PySparkException):
    spark.sql("SELECT * FROM a_table_that_nobody_made")
tell("late", late())
for name in ("a", "bad", "c"):
    load(name)
"""


def test_a_driver_of_pyspark_tries_again_and_skips_a_poisonous_input() -> None:
    with cluster_of(1) as cluster:
        place = cluster.path / "inputs"
        place.mkdir()
        application, out = cluster.path / "driver.py", cluster.path / "out"
        application.write_text(DRIVER)
        for name, text in (("a", '{"amount": 2}\n{"amount": 3}'), ("bad", '{"amount": "a'), ("c", '{"amount": 7}')):
            (place / f"{name}.json").write_text(text)
        cluster.nodes[0].env = {"JAVA_HOME": os.environ.get("JAVA_HOME", ""), "PATH": os.environ["PATH"]}
        conf = "\n".join(f'"{key}" = "{value}"' for key, value in CONF.items())
        cluster.job_file(
            "loads",
            f'[retry]\nattempts = 3\ndelay = "0s"\n[spark]\nmaster = "local[1]"\napplication = "{application}"\n'
            f"args = {json.dumps([str(place), str(out)])}\n"
            f"py_files = {json.dumps([guard.__file__, resilience.__file__])}\n[spark.conf]\n{conf}\n",
        )
        cluster.start()

        cluster.nodes[0].call("run.trigger", job="loads", id="1")
        row = cluster.becomes("loads#1", "success", limit_s=SPARK_LIMIT_S)

        assert row["attempt"] == 1
        assert out.read_text().splitlines() == [
            "0 late begins", "0 late begins", "0 late 1", "0 a begins", "0 a 5", "0 bad begins",
            "1 late begins", "1 late 1", "1 a begins", "1 a 5", "1 c begins", "1 c 7",
        ]  # fmt: skip
        (letter,) = cluster.nodes[0].call("deadletter.list", job="loads")
        assert (letter["kind"], letter["attempts"]) == ("input", 1)
        assert letter["reason"].startswith("bad: Py4JJavaError: "), letter["reason"]
        assert "Unexpected end-of-input" in letter["reason"], letter["reason"]
