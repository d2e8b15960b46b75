"""Tests that start Spark are skipped where it cannot run."""

import pytest

from penstock.core.errors import RequestError
from penstock.spark.run.java import Java, find_java


def need_java() -> Java:
    """The one that Spark uses; skips without one."""
    try:
        return find_java()
    except RequestError as error:
        pytest.skip(str(error))


def need_spark() -> Java:
    """Skips without PySpark or Java."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    return need_java()
