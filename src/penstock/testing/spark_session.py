"""One Spark session for all tests of a process: it takes seconds to start."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER = "local[2]"
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM lives for a minute: optimizing its code would take longer than running it."""

_ours = ExitStack()
"""Stops the session that was started here."""


def spark_session() -> SparkSession:
    """The active session of this process. If there is none, one is started with the settings of `penstock run`; it is
    shared by everybody, and stopped when the process ends. Raises RequestError if Spark does not start.
    """
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or _started()


def stop_spark_session() -> None:
    """Stops the session that `spark_session` has started, if it has."""
    _ours.close()


def _started() -> SparkSession:
    from penstock.spark.run.driver import spark_driver
    from penstock.spark.run.java import use_java
    from penstock.spark.run.session import JAVA_OPTIONS

    stop_spark_session()  # somebody else has stopped the last one
    use_java()
    folder = Path(_ours.enter_context(tempfile.TemporaryDirectory(prefix="penstock-testing-")))
    conf = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        JAVA_OPTIONS: _QUICK_JAVA,
    }
    atexit.register(stop_spark_session)
    with _importable():
        return _ours.enter_context(spark_driver("tests", _MASTER, conf, folder / "spark.log")).session


@contextmanager
def _importable() -> Iterator[None]:
    """Spark's Python workers that are started by a JVM from here can import what this process can."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
