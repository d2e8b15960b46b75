"""A pytest plugin with the Spark session that all tests share. In conftest.py:

    pytest_plugins = ["penstock.testing.pytest_plugin"]

It imports nothing of Spark's before a test uses it. It is not an entry point: pytest would load it in every run, and
rewrite the assertions of the whole package, which then takes a quarter longer to import.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOME = "penstock.testing.spark_session"


@pytest.fixture(scope="session")
def penstock_spark() -> SparkSession:
    """The session in which `penstock.testing.run_pipeline` runs pipelines. It is stopped at the end of the run."""
    from penstock.testing.spark_session import spark_session

    return spark_session()


def pytest_unconfigure() -> None:
    """Before the interpreter exits, where Spark's threads would be in the way."""
    if _HOME in sys.modules:
        sys.modules[_HOME].stop_spark_session()
