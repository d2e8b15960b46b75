"""The smallest stream from Python through Spark to Python: rows in memory, and a commit that does nothing.

What a batch of it costs, Spark and its Python workers cost: ours can cost no less.
"""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

FORMAT = "smallest"
FREEZES = 3


class Smallest(DataSource):
    """Batches of as many rows as its option `rows` says, one after the other, without an end."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> "Reader":  # noqa: N802
        freeze()
        return Reader(schema, int(self.options["rows"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "Writer":  # noqa: ARG002, N802
        freeze()
        return Writer()


class Rows(InputPartition):
    def __init__(self, count: int) -> None:
        self.count = count


class Reader(DataSourceStreamReader):
    def __init__(self, schema: StructType, rows: int) -> None:
        self._schema = schema
        self._rows = rows

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802
        return {"rows": start["rows"] + self._rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [Rows(end["rows"] - start["rows"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Rows)
        batch = rows(self._schema, partition.count)
        freeze()
        yield batch

    def commit(self, end: dict[str, int]) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Count(WriterCommitMessage):
    rows: int


class Writer(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> Count:
        freeze()
        return Count(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        freeze()


_frozen = 0


def freeze() -> None:
    """In each Python process: else Spark's workers walk over all their modules after each task. More than once, since
    some modules are imported by what comes after the first.
    """
    global _frozen  # noqa: PLW0603
    if _frozen < FREEZES:
        _frozen += 1
        gc.freeze()


@cache
def rows(schema: StructType, count: int) -> Any:
    """Made once in each Python worker."""
    from pyspark.sql.pandas.types import to_arrow_schema

    values = {"string": "a stream's name", "bigint": 7, "timestamp": 0, "binary": bytes(100)}
    arrow = to_arrow_schema(schema, timezone="UTC")
    columns = [
        pa.array([values[field.dataType.simpleString()]] * count, arrow.field(field.name).type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow)
