"""A driver in Java: compiled once for a session of tests, asked as often as they like."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
GUARD = HERE.parents[2] / "deploy/java/coordd/Guard.java"

# A JVM starts, on a machine that does other work too (seconds).
JAVA_LIMIT_S = 120.0

# The variables that say who a driver is: a test gives them.
OURS = ("COORDD_", "CONTAINER_ID", "HOSTNAME")


def compiled(directory: Path) -> Path:
    """The classes of the guard and of the test's driver, as for the oldest Java that it supports, without a warning."""
    command = ["javac", "-Xlint:all,-options", "-Werror", "--release", "8", "-d", str(directory), str(GUARD)]
    subprocess.run([*command, str(HERE / "Asks.java")], check=True, timeout=JAVA_LIMIT_S)
    return directory


def started(
    classes: Path, *words: str, environ: Mapping[str, str] | None = None, conf: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start the driver. ``conf``: of Spark, which the JVM of a driver on a cluster has as its system properties."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    properties = [f"-D{name}={value}" for name, value in (conf or {}).items()]
    command = ["java", "-XX:TieredStopAtLevel=1", *properties, "-cp", str(classes), "Asks", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={**env, **(environ or {})}, stdout=pipe, stderr=pipe, text=True)


def ask(classes: Path, *words: str, **about: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """The same, and wait for its end."""
    with started(classes, *words, **about) as driver:
        said, log = driver.communicate(timeout=JAVA_LIMIT_S)
    return subprocess.CompletedProcess(words, driver.returncode, said, log)
