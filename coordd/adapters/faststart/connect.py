"""Programs that are clients of Spark Connect: what starts their server, what starts them, and what they need.

A declarative pipeline is one: its client is the program that comes with Spark (spark-pipelines calls the same). That
script is not used, because it puts every setting into an argv, where all users of the machine can read it.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import sys
from collections.abc import Mapping

from coordd.core.jobs.job import SparkSubmit
from coordd.errors import UnavailableError

SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"

# Spark's word for "no program but the class".
NO_PROGRAM = "spark-internal"

# The server is for processes of this machine.
SERVER_CONF = {"spark.connect.grpc.binding.address": "127.0.0.1"}

# Where the program of pipelines is, below the home of Spark: in a distribution, and in the pip package.
PIPELINES = ("python/pyspark/pipelines/cli.py", "pipelines/cli.py")

# What PySpark needs for Spark Connect, and who brings it; PyYAML is for pipelines.
MODULES = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc": "googleapis-common-protos",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "zstandard": "zstandard",
    "yaml": "PyYAML",
}
ONLY_PIPELINES = ("yaml",)


def is_client(launch: SparkSubmit) -> bool:
    """True if the job's program is a client with a server of its own."""
    return bool(launch.pipeline or launch.connect)


def client_argv(launch: SparkSubmit, env: dict[str, str]) -> list[str]:
    """The argv of the client; ``env`` (with SPARK_HOME) gets the way to its Python modules.

    Raises:
        UnavailableError: this Spark has no Spark Connect or no pipelines, or this Python lacks a module.
    """
    home = env.get("SPARK_HOME", "")
    if not glob.glob(f"{glob.escape(home)}/jars/spark-connect_*.jar"):
        raise UnavailableError(
            f"the Spark at {home or '(unknown)'} has no Spark Connect (jars/spark-connect_*.jar): it comes with Spark"
            " 4.0 and newer"
        )
    python = env.get("PYSPARK_DRIVER_PYTHON") or env.get("PYSPARK_PYTHON") or "python3"
    absent = _absent(launch) if python == sys.executable else []
    if absent:
        raise UnavailableError(
            f"{python} lacks {', '.join(absent)}, which PySpark needs for Spark Connect: install coordd[connect], or"
            " name a Python that has them (PYSPARK_PYTHON in [spark] env)"
        )
    env["PYTHONPATH"] = ":".join([*launch.py_files, *_modules(home), *env.get("PYTHONPATH", "").split(":")]).strip(":")
    if not launch.pipeline:
        return [python, launch.application, *launch.args]
    return [python, _pipelines(home), "run", "--spec", launch.pipeline, *launch.args]


def _pipelines(home: str) -> str:
    for name in PIPELINES:
        if os.path.exists(f"{home}/{name}"):
            return f"{home}/{name}"
    raise UnavailableError(
        f"the Spark at {home} has no declarative pipelines ({' or '.join(PIPELINES)}): they come with Spark 4.1 and"
        " newer"
    )


def _modules(home: str) -> list[str]:
    """Where a distribution of Spark has PySpark; in the pip package it is installed."""
    if not os.path.isdir(f"{home}/python/pyspark"):
        return []
    return [f"{home}/python", *sorted(glob.glob(f"{glob.escape(home)}/python/lib/py4j-*.zip"))]


def _absent(launch: SparkSubmit) -> list[str]:
    """The packages that this Python does not have."""
    wanted: Mapping[str, str] = MODULES
    return [
        package
        for module, package in wanted.items()
        if (launch.pipeline or module not in ONLY_PIPELINES) and not _is_there(module)
    ]


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent
        return False
