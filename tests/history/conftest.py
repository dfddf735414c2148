"""One Spark for all history tests: two threads, no UI, few partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

# A reader of bytes: see ``lines``.
Frame = Callable[[Iterable[bytes]], DataFrame]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    scratch = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("coordd-history-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.codegen.wholeStage", "false")  # compiling costs more than these few rows
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")  # many short queries: start fast
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def lines(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Frame:
    """Bytes as the pipeline meets them: through files, in as many as there are lists."""
    from coordd.history import transforms

    def read(data: Iterable[bytes]) -> DataFrame:
        path = tmp_path_factory.mktemp("segments") / "00000001.jsonl"
        path.write_bytes(b"".join(data))
        return transforms.lines(spark, [f"file://{path}"])

    return read


def at_rest(table: DataFrame) -> DataFrame:
    """The table as rows that are there: in the pipeline it is read back from Parquet, not computed again."""
    return table.localCheckpoint(eager=True)
