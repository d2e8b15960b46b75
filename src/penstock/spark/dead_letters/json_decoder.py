"""JSON in a column, decoded: a row that cannot be decoded becomes a dead letter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import RequestError
from penstock.protocol.stored.dead_letters import ERR
from penstock.spark.dead_letters.apply import OnError, check_on_error, fields_of
from penstock.spark.outputs import PLACE, quoted
from penstock.spark.pipeline_context import current_pipeline
from penstock.spark.side_outputs import Rejected, SideOutputs, side_outputs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.spark.codecs.api import Columns


def decode_json(
    frame: DataFrame,
    schema: str | StructType,
    *,
    column: str = "value",
    into: str | None = None,
    on_error: OnError = "keep",
) -> DataFrame:
    """The frame with the fields of the JSON in `column` as further columns, or as one struct column `into`.

    A row whose text is not exactly one JSON object with fields of these types becomes a dead letter: its event goes to
    the port `err`. A missing field is null. `on_error="fail"` ends the query instead. A load with a codec does the same
    in the source, which is faster. Raises RequestError for names that are already taken.
    """
    from pyspark.sql.types import StructField, StructType

    check_on_error(on_error)
    fields = fields_of(schema)
    added = fields.fields if into is None else [StructField(into, fields)]
    _check_names(frame, column, [field.name for field in added])
    decoded = StructType([StructField(field.name, field.dataType) for field in (*frame.schema.fields, *added)])
    ddl = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in fields)
    decoding = _Decoding(ddl, column, into)
    if on_error == "fail":
        return frame.mapInArrow(decoding.all_or_fail, decoded)
    context = current_pipeline("dead_letters.decode_json")
    name, origin = context.operator(f"decode_json {column}", ERR), context.origin()

    def rejecting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with side_outputs(origin, name) as sides:
            yield from decoding.rejecting(batches, sides)

    return frame.mapInArrow(rejecting, decoded)


@dataclass(frozen=True, slots=True)
class _Decoding:
    """What the tasks do. A task creates its decoder: it is not sent there."""

    ddl: str
    column: str
    into: str | None

    def rejecting(self, batches: Iterator[pa.RecordBatch], sides: SideOutputs) -> Iterator[pa.RecordBatch]:
        """Rows that cannot be decoded become dead letters."""
        import pyarrow as pa

        for batch, decoded in self._decoded(batches):
            bad = sorted(decoded.failed)
            if bad:
                reasons = [f"`{self.column}` {decoded.failed[row]}" for row in bad]
                sides.stage(pa.Table.from_batches([batch]).take(bad), Rejected(ERR, reasons))
            yield self._joined(batch, decoded)

    def all_or_fail(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch, decoded in self._decoded(batches):
            if decoded.failed:
                row, reason = min(decoded.failed.items())
                names = batch.schema.names
                place = [str(batch.column(name)[row]) for name in PLACE] if {*PLACE} <= {*names} else []
                raise RequestError(f"`{self.column}` {reason}" + (f", at {'@'.join(place)}" if place else ""))
            yield self._joined(batch, decoded)

    def _decoded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Columns]]:
        import pyarrow as pa

        from penstock.core.ddl import parse_ddl
        from penstock.spark.codecs.registry import codec

        decode = codec("json").decoder(parse_ddl(self.ddl))
        for batch in batches:
            yield batch, decode(batch.column(self.column).cast(pa.binary()).fill_null(b""))

    def _joined(self, batch: pa.RecordBatch, decoded: Columns) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        from penstock.core.ddl import parse_ddl

        if decoded.failed:
            batch = batch.take(pa.array(np.setdiff1d(np.arange(batch.num_rows), [*decoded.failed])))
        names = [field.name for field in parse_ddl(self.ddl)]
        arrays = [*decoded.arrays]
        if self.into is not None:
            names, arrays = [self.into], [pa.StructArray.from_arrays(arrays, names)]
        return pa.RecordBatch.from_arrays([*batch.columns, *arrays], names=[*batch.schema.names, *names])


def _check_names(frame: DataFrame, column: str, names: list[str]) -> None:
    if column not in frame.columns:
        raise RequestError(f"the frame has no column `{column}`", f"It has: {', '.join(frame.columns)}.")
    lower = {name.lower() for name in frame.columns}
    found = next((name for name in names if name.lower() in lower), None)
    if found is not None:
        raise RequestError(
            f"the frame has a column `{found}` already",
            'Put the decoded fields into a struct: decode_json(…, into="data").',
        )
