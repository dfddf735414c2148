"""Hadoop's RPC in front of the fake ResourceManager: what the real spark-submit and `yarn application` speak.

The server, the client and the messages are Hadoop's own, from the jars of Spark (ResourceManager.java).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from coordd.adapters.spark import pip_spark_home
from support.clusters.yarn import FakeYarn

SOURCE = Path(__file__).with_name("ResourceManager.java")
START_S = 120.0
COMMAND_S = 120.0


@contextmanager
def rpc_of(fake: FakeYarn) -> Iterator[None]:
    """While it lasts, ``fake.configuration`` names this server, too."""
    argv = ["java", "-cp", f"{pip_spark_home()}/jars/*", str(SOURCE), fake.url]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        fake.rpc_port = int(process.stdout.readline())
        yield
    finally:
        fake.rpc_port = 0
        process.stdin.close()  # then it ends
        try:
            process.wait(START_S)
        finally:
            process.kill()
            process.stdout.close()


def yarn_application(env: Mapping[str, str], *words: str) -> str:
    """What `yarn application` prints: its class, without Hadoop's shell script."""
    classes = f"{env['HADOOP_CONF_DIR']}:{pip_spark_home()}/jars/*"
    argv = ["java", "-cp", classes, "org.apache.hadoop.yarn.client.cli.ApplicationCLI", "application", *words]
    done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, check=True, timeout=COMMAND_S)
    return done.stdout
