"""All tables of the run history. Your own datasets may read them: name one more file in the spec."""

from __future__ import annotations

from pyspark.sql import SparkSession

from coordd.history.declared import declare

spark: SparkSession

declare(spark)  # noqa: F821 - Spark sets it before it runs this file
