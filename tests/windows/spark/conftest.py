"""The session of the tests on Spark, and a scene with a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.spark.pipeline_context import PipelineContext
from penstock.spark.pipeline_context import in_pipeline as in_context
from tests.spark.conftest import spark  # noqa: F401  the fixture
from tests.support.running_worker import RunningWorker
from tests.windows.spark.pretending import pretended
from tests.windows.spark.running import Bench
from tests.windows.spark.scene import Scene

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def scene(worker: RunningWorker, spark: SparkSession, tmp_path: Path) -> Scene:  # noqa: F811
    return Scene(worker, spark, tmp_path)


@pytest.fixture
def bench(worker: RunningWorker, spark: SparkSession, tmp_path: Path) -> Bench:  # noqa: F811
    return Bench(worker, spark, tmp_path)


@pytest.fixture
def in_pipeline() -> Iterator[None]:
    """The test is a pipeline's function, called with placeholder streams."""
    options = {"pipeline": "p", "input": "sensors", "source": "sensors"}
    with in_context(PipelineContext(options, is_pretended=True)):
        yield


@pytest.fixture
def events(spark: SparkSession) -> DataFrame:  # noqa: F811
    return pretended(spark, "sensors")
