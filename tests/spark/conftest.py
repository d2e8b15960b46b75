"""One Spark session for all tests that need one: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import RequestError
from penstock.spark.run.fork_server import fork_server
from penstock.spark.run.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2], with the settings of `penstock run`. Tests must stop the queries that they start."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    from penstock.spark.run.session import build_session

    try:
        use_java()
    except RequestError as error:
        pytest.skip(str(error))

    folder = tmp_path_factory.mktemp("spark")
    conf = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    # Each query starts several Python processes, which take half a second of CPU time each without the fork server.
    with TemporaryDirectory() as sockets, fork_server(Path(sockets)):
        session = build_session("tests", "local[2]", conf)
        yield session
        session.stop()
