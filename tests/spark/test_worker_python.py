"""Spark's Python processes import the installed PySpark, which is precompiled, and not the zip that Spark puts first.
Those of tasks are forked with what tasks need.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark.run.session import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("variable", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_python_workers_use_this_interpreter_without_the_zips_of_spark(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    prepare_environment("local[2]")
    paths = [
        "/spark/python/lib/pyspark.zip",
        "/mine",
        "/spark/python/lib/py4j-0.10.9.9-src.zip",
        "/spark/jars/core.jar",
    ]
    asked = [os.environ[variable], "-c", "import json, sys; print(json.dumps([sys.executable, sys.path]))"]
    environment = os.environ | {"PYTHONPATH": ":".join(paths)}
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True, timeout=60)
    executable, path = json.loads(done.stdout)
    assert executable == sys.executable
    assert [entry for entry in paths if entry in path] == ["/mine", "/spark/jars/core.jar"]


@pytest.mark.spark
def test_a_task_starts_with_its_modules_already_imported(spark: "SparkSession") -> None:
    def imported(batches: Iterable[Any]) -> Iterator[Any]:
        found = sorted({"pandas", "penstock.spark.source.arrow", "penstock.windows.stages"} & sys.modules.keys())
        import pyarrow as pa

        yield from (pa.RecordBatch.from_pydict({"module": found}) for _ in batches)

    rows = spark.range(1).coalesce(1).mapInArrow(imported, "module string").collect()
    assert [row.module for row in rows] == ["pandas", "penstock.spark.source.arrow", "penstock.windows.stages"]
