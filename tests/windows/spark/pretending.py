"""Frames that look like a pipeline's loads, without a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.source.control import pretend
from penstock.spark.source.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def pretended(spark: SparkSession, source: str) -> DataFrame:
    options = pretend({"pipeline": "p", "input": source, "source": source})
    columns = [f"cast(null as {kind}) as {name}" for name, kind in COLUMNS.items()]
    return spark.readStream.format("rate").options(**options).load().selectExpr(*columns)
