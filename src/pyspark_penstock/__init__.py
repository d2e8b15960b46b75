"""Registers `format("penstock")`: Spark looks for `DefaultSource` in every module whose name begins with `pyspark_`."""

from penstock.spark.datasource import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
