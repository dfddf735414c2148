"""The same pipeline as a stream: Spark finds the segments that are new, and each batch of them is one increment.

Only closed segments are followed: a stream of files never reads what is appended to one. Which segments a stream has
seen is in its checkpoint, beside the output. It may be removed: the output has its own list (segments.py), so nothing
is added twice. Without an output the checkpoint says nothing, and is removed.
"""

from __future__ import annotations

import argparse
import glob
import os
import shutil
from collections.abc import Callable

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from coordd.errors import ConfigError, CoorddError
from coordd.history.segments import LIST, SUFFIXES

# Segments in one batch: what is read and sorted at a time has a bound.
FILES_MAX = 2000

# The names of closed segments, also in a sink; not those of copies in progress (NAME.part).
CLOSED = "[0-9]*{.jsonl,.jsonl.gz}"

# Spark's default leaves out what is 7 days older than the newest file it has seen: a sink has such copies, too.
AGE_MAX = "36500d"

# The columns of Spark's files as rows; a stream must be given them.
FILES = "path string, modificationTime timestamp, length bigint, content binary"

# ``trigger``: what is there, and then the end.
NOW = 0.0


def trigger(text: str) -> float:
    """What --stream says: ``NOW``, or how often (seconds) to look. Raises argparse.ArgumentTypeError."""
    if text == "now":
        return NOW
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= 86_400.0:
        raise argparse.ArgumentTypeError(f"expected now, or a number of seconds from 1 to 86400, found {text!r}")
    return seconds


def follow(
    spark: SparkSession, journals: list[str], output: str, every_s: float, add: Callable[[list[str]], None]
) -> None:
    """Call ``add`` with the paths of new segments, batch by batch. Ends with ``NOW``, or with what ``add`` raises.

    ``output`` is an absolute path. A batch that failed is found again by the next stream. Raises ConfigError if the
    journals cannot be followed.
    """
    failed: list[CoorddError | OSError] = []

    def batch(files: DataFrame, _number: int) -> None:
        paths = sorted(row.path for row in files.select("path").collect())
        if paths:
            try:
                add([glob.escape(path[5:]) if path.startswith("file:") else path for path in paths])
            except (CoorddError, OSError) as exc:
                failed.append(exc)  # Spark wraps it in an exception of its own
                raise

    if not os.path.exists(os.path.join(output, LIST)):
        shutil.rmtree(checkpoint(output), ignore_errors=True)
    try:
        found = (
            spark.readStream.format("binaryFile")
            .schema(FILES)
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", CLOSED)
            .option("maxFilesPerTrigger", FILES_MAX)
            .option("maxFileAge", AGE_MAX)
            .load(_one(journals))
            .select("path")  # no byte of a file is read for this
        )
        writer = found.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint(output))
        timed = writer.trigger(processingTime=f"{every_s} seconds") if every_s else writer.trigger(availableNow=True)
        timed.start().awaitTermination()
    except AnalysisException as exc:
        raise ConfigError(f"--stream cannot follow {', '.join(journals)}: {exc}") from exc
    except StreamingQueryException:
        if failed:
            raise failed[0] from None
        raise


def find(spark: SparkSession, uri: str) -> list[str]:
    """The segments of a URI, as of a local place: in a directory and below, a file, or a glob of either."""
    files = (
        spark.read.format("binaryFile")
        .schema(FILES)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*{" + ",".join(SUFFIXES) + "}")
        .load(uri)
        .select("path")  # no byte of a file is read for this
    )
    return sorted(row.path for row in files.collect())


def checkpoint(output: str) -> str:
    """Where a stream into this output (an absolute path) keeps what it has seen."""
    return os.path.join(os.path.dirname(output), f".{os.path.basename(output)}.stream")


def _one(journals: list[str]) -> str:
    """Streams of files take one path; a glob names several directories."""
    paths = [_local(path) if "://" not in path or path.startswith("file://") else path for path in journals]
    missing = [path for path in paths if path.startswith("/") and not glob.glob(path)]
    if missing:
        raise ConfigError(
            f"--stream cannot follow {', '.join(missing)}: there is nothing; check the spelling and what is mounted"
        )
    if len(paths) == 1:
        return paths[0]
    if not all(path.startswith("/") for path in paths):
        raise ConfigError(
            f"--stream follows one URI or local directories, not {', '.join(journals)}: start one for each"
        )
    return "/{" + ",".join(path.removeprefix("/") for path in paths) + "}"


def _local(path: str) -> str:
    return os.path.abspath(path.removeprefix("file://"))
