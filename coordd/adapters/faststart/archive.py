"""Class archives (AppCDS): the classes that a Spark driver loads at its start, parsed once for one Spark and one Java.

The Java machine maps such a file instead of reading and checking ten thousand classes out of Spark's jars. It refuses a
file that does not fit, and starts without it. It does not check what is in a file that fits, so the file is code: it
is used only if nobody but root and the daemon's user can write it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coordd.config import ownership
from coordd.errors import UnavailableError

# A part of every name: another format or training makes other archives.
FORMAT = "1"

SUFFIX = ".jsa"
PART = ".part"
DIRECTORY = "archives"

# One archive of Spark 4.3 has 150 MB. An older one than this many is removed when another is made.
KEPT_MAX = 4

# Without this much room (bytes) no archive is made.
ROOM_MIN = 1 << 30

# A Spark has a few hundred jars.
JARS_MAX = 5000

# Where a Java machine keeps what an archive depends on, below its home.
OF_JAVA = ("release", "lib/modules", "lib/server/libjvm.so", "lib/server/classes.jsa")

# What a driver does at its start, for the archive to have its classes: a session, a query with a shuffle, a table that
# is written and read. It ends by itself, whatever happens to who started it.
TRAINING = """
import signal, sys
signal.alarm(int(sys.argv[2]))
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
frame = spark.range(1000).selectExpr("id", "id % 7 AS rest", "cast(id AS string) AS text")
frame.groupBy("rest").count().orderBy("rest").collect()
frame.write.mode("overwrite").parquet(sys.argv[1] + "/parquet")
spark.read.parquet(sys.argv[1] + "/parquet").join(frame, "id").count()
frame.select("text").coalesce(1).write.mode("overwrite").csv(sys.argv[1] + "/csv")
spark.read.csv(sys.argv[1] + "/csv", header=True).count()
spark.stop()
"""

# Variables that add to Spark's class path, at its end. An archive is made without them; it fits with and without.
ADDED_PATHS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")


class Archive(NamedTuple):
    """The archive of one Spark and one Java on this machine; the file may not exist."""

    path: str
    submit: str
    env: Mapping[str, str]
    spark: str  # for people
    java: str

    def usable(self) -> str:
        """Why it cannot be used; "" if it can."""
        try:
            found = os.lstat(self.path)
        except OSError as exc:
            return f"{self.path} is not there ({exc.strerror})"
        if not os.path.isfile(self.path) or os.path.islink(self.path) or not found.st_size:
            return f"{self.path} is not a file with content"
        return ownership.fault(self.path)

    def obstacle(self) -> str:
        """Why none can be made here; "" if one can."""
        conf_dir = _conf_dir(self.env)
        with contextlib.suppress(OSError):
            if os.listdir(conf_dir):
                return (
                    f"{conf_dir} has files, and Java makes no archive of a class path that begins with such a"
                    " directory: keep Spark's settings elsewhere ([spark] properties_file and env)"
                )
        room = shutil.disk_usage(os.path.dirname(self.path)).free
        return f"only {room >> 20} MiB are free, {ROOM_MIN >> 20} are needed" if room < ROOM_MIN else ""

    def training(self, work: str, limit_s: float) -> tuple[list[str], dict[str, str]]:
        """The command that makes the file ``part``, and its environment. ``work``: an empty directory for it."""
        program = f"{work}/training.py"
        with open(program, "w", encoding="utf-8") as file:
            file.write(TRAINING)
        options = java_option(f"-XX:ArchiveClassesAtExit={self.part}")
        conf = {"spark.ui.enabled": "false", "spark.local.dir": work, "spark.sql.warehouse.dir": f"{work}/warehouse"}
        argv = self._submit(options, {**conf, "spark.driver.host": "127.0.0.1"}, "--master", "local[1]")
        return [*argv, program, work, str(int(limit_s))], self._environment()

    def trial(self, path: str = "") -> tuple[list[str], dict[str, str]]:
        """The command that fails if the Java machine refuses the file (default: the finished one)."""
        options = f"-Xshare:on {java_option(f'-XX:SharedArchiveFile={path or self.path}')}"
        return self._submit(options, {}, "--version"), self._environment()

    @property
    def part(self) -> str:
        """The unfinished file."""
        return self.path.removesuffix(SUFFIX) + PART

    def accept(self) -> None:
        """The unfinished file has passed its trial: it is the archive now. Older ones go. Raises OSError."""
        os.chmod(self.part, 0o400)
        os.rename(self.part, self.path)
        for path in _oldest(os.path.dirname(self.path))[KEPT_MAX:]:
            if path != self.path:
                os.unlink(path)

    def made(self) -> bool:
        """True if the training has written the unfinished file."""
        return os.path.exists(self.part)

    def discard(self) -> None:
        """Remove the file and the unfinished one."""
        for path in (self.path, self.part):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _submit(self, options: str, conf: Mapping[str, str], *rest: str) -> list[str]:
        settings = [f"{key}={value}" for key, value in {**conf, "spark.driver.defaultJavaOptions": options}.items()]
        return [self.submit, *[word for setting in settings for word in ("--conf", setting)], *rest]

    def _environment(self) -> dict[str, str]:
        return {name: value for name, value in self.env.items() if name not in ADDED_PATHS}


def archive_of(directory: str, submit: str, java: str, env: Mapping[str, str]) -> Archive:
    """The archive for this spark-submit and this java. ``env``: the driver's, with SPARK_HOME.

    Raises:
        UnavailableError: this Spark has no directory of jars, or it cannot be read.
    """
    home = env.get("SPARK_HOME", "")
    try:
        jars = _listed(f"{home}/jars")
    except OSError as exc:
        raise UnavailableError(f"{home}/jars: {exc.strerror}") from exc
    machine = os.path.dirname(os.path.dirname(os.path.realpath(java)))
    parts = [FORMAT, os.path.realpath(home), _conf_dir(env), *jars, os.path.realpath(java)]
    parts += [_stamp(f"{machine}/{name}") for name in OF_JAVA]
    key = hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return Archive(f"{directory}/{key}{SUFFIX}", submit, env, home, machine)


def java_option(text: str) -> str:
    """An option as one word of spark.driver.…JavaOptions, which Spark splits like a shell."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def make_directory(directory: str) -> None:
    """Raises UnavailableError: it cannot be made, or others can write it."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as exc:
        raise UnavailableError(f"{directory}: {exc.strerror}") from exc
    if why := ownership.fault(directory, all_in_it=True):
        raise UnavailableError(why)


def _conf_dir(env: Mapping[str, str]) -> str:
    return env.get("SPARK_CONF_DIR") or f"{env.get('SPARK_HOME', '')}/conf"


def _listed(directory: str) -> list[str]:
    """Name, size and time of every jar. Java compares the same before it uses an archive."""
    with os.scandir(directory) as entries:
        jars = sorted([(entry.name, entry.path) for entry in entries if entry.name.endswith(".jar")])
    return [f"{name} {_stamp(path)}" for name, path in jars[:JARS_MAX]]


def _stamp(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return f"{path} -"
    return f"{path} {found.st_size} {found.st_mtime_ns}"


def _oldest(directory: str) -> Sequence[str]:
    """The archives, the newest first."""
    with os.scandir(directory) as entries:
        found = [(entry.stat().st_mtime, entry.path) for entry in entries if entry.name.endswith(SUFFIX)]
    return [path for _, path in sorted(found, reverse=True)]
