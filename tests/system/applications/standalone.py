"""A real Standalone cluster in the place of a fake."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.servers.spark import StandaloneCluster, java_home

from system.applications.tracked import Place

KIND = "standalone"

# Drivers of the jar, which wait until the test lets them end.
IN_CLUSTER = """
[spark]
application = "{application}"
class = "org.example.{main}"
args = ["{go}/{{run}}"]
deploy_mode = "cluster"
"""
IN_CLIENT = """
[spark]
application = "{application}"
args = ["{go}/{{run}}"]
"""


class RealPlace(Place):
    """``fake`` is the real cluster."""

    def __init__(self, spark: StandaloneCluster, directory: Path) -> None:
        super().__init__(KIND, directory, spark)
        self.spark = spark
        self.go = directory / "end"
        self.go.mkdir()

    @property
    def master(self) -> str:
        return self.spark.url

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "SUBMIT_TO": self.spark.rest, "JAVA_HOME": java_home()}

    def job(self) -> str:
        """Its drivers have no Spark application, and are submitted by the stand-in."""
        return self._job(IN_CLUSTER.format(application=self.spark.jar, main="Waits", go=self.go), {
            "spark.driver.memory": "128m"
        })  # fmt: skip

    def counting(self) -> str:
        """Its drivers have an application, and are submitted by the real spark-submit."""
        text = self._job(IN_CLUSTER.format(application=self.spark.jar, main="Counts", go=self.go), {})
        return f'{text}[spark.env]\nSUBMIT_REAL = "1"\n'

    def in_client_mode(self, application: Path) -> str:
        """PySpark, whose driver runs on the node."""
        text = self._job(IN_CLIENT.format(application=application, go=self.go), {})
        return f'{text}[spark.env]\nSUBMIT_REAL = "1"\nPYSPARK_PYTHON = "{sys.executable}"\n'

    def ends(self, run: str, code: int = 0) -> None:
        """Let the driver of a run end."""
        (self.go / run).write_text(str(code))

    def _job(self, text: str, changes: dict[str, str]) -> str:
        conf = {**self.spark.conf, **changes}
        said = ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in conf.items())
        return f"{text}conf = {{ {said} }}\n"
