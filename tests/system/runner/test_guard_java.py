"""Spark drivers in Scala and Java: the example of docs/spark.md under a real runner, and the conf of a real driver."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from guard.java.driver import compiled
from support.servers.spark import compile_scala

from coordd.adapters.spark import find_submit
from coordd.core.jobs.job import SparkSubmit
from system.runner.test_guard_spark import CONF, SPARK_LIMIT_S, driven, example, parts


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drivers of this file, with the guard, as a build tool would make it."""
    place = tmp_path_factory.mktemp("jar")
    classes = compiled(place / "classes")
    source = place / "Shops.scala"
    source.write_text(example("scala", "Drivers in Java and Scala").replace('format("delta")', 'format("parquet")'))
    compile_scala(source, classes, classes)
    with zipfile.ZipFile(place / "drivers.jar", "w") as made:
        for path in classes.rglob("*.class"):
            made.write(path, path.relative_to(classes))
    return place / "drivers.jar"


@pytest.mark.parametrize("granted", [True, False])
def test_the_example_of_the_documentation_writes_under_its_commit(granted: bool, jar: Path, tmp_path: Path) -> None:
    target = tmp_path / "shops"
    (tmp_path / "sales.csv").write_text("shop\nberlin\nberlin\nrome\n")
    args = (str(tmp_path / "sales.csv"), str(target))
    launch = SparkSubmit(str(jar), args=args, conf=CONF, class_name="Shops")
    row, log = driven(tmp_path, launch, granted=granted)

    if granted:
        assert (row.state, row.commit_token) == ("success", row.token), log[-3000:]
        assert parts(target)
    else:
        assert (row.state, row.commit_token) == ("failure", 0), log[-3000:]
        assert "The program ends before it has done anything" in log
        assert not target.exists()


def test_the_conf_of_a_real_driver_is_its_right(jar: Path, tmp_path: Path) -> None:
    settings = tmp_path / "settings.properties"
    settings.write_text(
        "spark.coordd.run=sales#1\nspark.coordd.job=sales\nspark.coordd.attempt=2\nspark.coordd.token=7\n"
        "spark.coordd.token.nonce=abc\nspark.coordd.guard=tcp://127.0.0.1:1\n"
    )
    command = [find_submit("", os.environ), "--master", "local[1]", "--properties-file", str(settings)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("COORDD_")}

    done = subprocess.run(
        [*command, "--class", "Asks", str(jar), "gate", "0.5"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SPARK_LIMIT_S, check=False,
    )  # fmt: skip

    assert done.returncode == 1
    assert "coordd.guard: sales#1, attempt 2: nobody can tell who owns the run" in done.stdout, done.stdout[-3000:]
    assert "it went on" not in done.stdout
