"""A Spark session for a benchmark, and a directory for what it writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench.rounds import base_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def bench_session(directory: Path | None, master: str) -> Iterator[tuple[SparkSession, Path]]:
    """Raises RequestError where PySpark or Java are missing."""
    from penstock.spark.run.driver import spark_driver
    from penstock.spark.run.java import check_installed, use_java

    check_installed()
    use_java()
    with base_directory(directory) as base:
        conf = {"spark.sql.warehouse.dir": str(base / "warehouse")}
        with spark_driver("penstock bench", master, conf, base / "spark.log") as spark:
            yield spark, base
