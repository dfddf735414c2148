"""A driver of PySpark finds its right in its conf, before it makes a context."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from coordd import guard
from coordd.adapters.spark import find_submit

SPARK_LIMIT_S = 240.0  # a JVM starts, on a machine that does other work too

DRIVER = """
import json, os
import guard
print("GRANT", json.dumps(guard.Grant.of(os.environ)._asdict()), flush=True)
from pyspark import SparkContext
assert SparkContext._active_spark_context is None
guard.gate(0.5)
print("it went on")
"""


def test_the_conf_of_a_real_driver_is_read_before_its_context(tmp_path: Path) -> None:
    program, settings = tmp_path / "driver.py", tmp_path / "settings.properties"
    program.write_text(DRIVER)
    pem = "-----BEGIN CERTIFICATE-----\\nMII\\n-----END CERTIFICATE-----\\n"
    settings.write_text(
        "spark.coordd.run=sales#1\nspark.coordd.job=sales\nspark.coordd.attempt=2\nspark.coordd.token=7\n"
        "spark.coordd.token.nonce=abc\nspark.coordd.guard=tcp://127.0.0.1:1\n"
        f"spark.coordd.guard.authority={pem}\nspark.yarn.app.id=application_1_0001\n"
    )
    command = [find_submit("", os.environ), "--master", "local[1]", "--properties-file", str(settings)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("COORDD_")}

    done = subprocess.run(
        [*command, "--py-files", guard.__file__, str(program)],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SPARK_LIMIT_S, check=False,
    )  # fmt: skip

    said = next((line for line in done.stdout.splitlines() if line.startswith("GRANT ")), "")
    assert said, done.stdout[-3000:]
    grant = guard.Grant(**json.loads(said.removeprefix("GRANT ")))
    assert grant == guard.Grant(
        "sales#1", "sales", 2, 7, "abc", "tcp://127.0.0.1:1", pem.replace("\\n", "\n"), "application_1_0001"
    )
    assert "coordd.guard: sales#1, attempt 2: nobody can tell who owns the run" in done.stdout
    assert "it went on" not in done.stdout
    assert done.returncode == 1
