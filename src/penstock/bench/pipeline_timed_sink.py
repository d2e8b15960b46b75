"""Our sink with a clock: when each merge began and ended, written down where the benchmark finds it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark.python_worker import hinted
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.writer import StreamSink

FORMAT = "penstock_timed"
TIMINGS = "timings"
"""The option that names the file."""


@dataclass(frozen=True, slots=True)
class Merge:
    """On the monotonic clock, which all processes of a machine share."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class TimedSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> "TimedWriter":  # noqa: ARG002, N802  Spark's name
        given = {name: value for name, value in self.options.items() if name != TIMINGS}
        with hinted():
            return TimedWriter(SinkOptions.parse(given), schema, self.options[TIMINGS])


class TimedWriter(StreamSink):
    def __init__(self, options: SinkOptions, schema: StructType, timings: str) -> None:
        super().__init__(options, schema)
        self._timings = timings

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        began = time.monotonic()
        super().commit(messages, batchId)
        with Path(self._timings).open("a") as file:
            file.write(f"{began} {time.monotonic()}\n")


def read_merges(timings: Path, since: float) -> list[Merge]:
    """Those that began since then."""
    lines = timings.read_text().splitlines()
    return [merge for line in lines if (merge := Merge(*map(float, line.split()))).began >= since]
