"""A driver whose function decides differently the second time. A program of its own: Spark runs a task again only if
its master says so.

    python -m tests.spark.undecided WORKER'S_HTTP_ADDRESS FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from penstock import dead_letters
from penstock.spark import Pipeline, pipeline

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

UNDECIDED = 4
"""The number of the row that is rejected the first time only."""

MASTER = "local[2,4]"
"""Four attempts at each task."""


def undecided_pipeline(folder: str) -> Pipeline:
    """The first attempt at the task rejects the row, registers that, and is lost before it ends."""

    is_lost = Path(folder, "lost")

    def share(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == UNDECIDED and not is_lost.exists():
            raise LookupError("not this time")
        return {"share": 12 // row["n"]}

    def lost(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not is_lost.exists():
            is_lost.touch()
            raise OSError("the task is lost")

    def shares(attic: DataFrame) -> DataFrame:
        rows = dead_letters.apply(dead_letters.decode_json(attic, "n int"), share, "share int", per="row")
        return rows.mapInArrow(lost, "share int")

    return pipeline(shares)


def main(http: str, folder: str) -> None:
    from penstock.spark.run.attempt import RestartPolicy, RunSettings
    from penstock.spark.run.fork_server import fork_server
    from penstock.spark.run.java import use_java
    from penstock.spark.run.runner import Runner
    from penstock.spark.run.session import build_session, prepare_environment

    use_java()
    prepare_environment()
    with TemporaryDirectory() as sockets, fork_server(Path(sockets)):
        spark = build_session("undecided", MASTER, {})
        restarts = RestartPolicy(restarts_max=1)
        settings = RunSettings(
            worker=http, checkpoints=f"{folder}/checkpoints", cores=2, available_now=True, restarts=restarts
        )
        Runner(spark, [undecided_pipeline(folder)], settings).run(200)
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
