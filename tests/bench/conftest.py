"""Spark's session is that of the tests in `tests/spark`."""

from tests.spark.conftest import spark

__all__ = ["spark"]
