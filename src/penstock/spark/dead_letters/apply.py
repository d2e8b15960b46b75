"""A Python function over a frame: rows for which it raises become dead letters, the others continue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from penstock.core.errors import RequestError
from penstock.protocol.stored.dead_letters import ERR
from penstock.spark.pipeline_context import current_pipeline
from penstock.spark.side_outputs import side_outputs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType


BatchFunction: TypeAlias = "Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table]"
RowFunction: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any] | Iterable[Mapping[str, Any]] | None]

OnError: TypeAlias = Literal["keep", "fail"]
"""A row that cannot be processed becomes a dead letter ("keep") or ends the query ("fail")."""


def apply(
    frame: DataFrame,
    function: BatchFunction | RowFunction,
    schema: str | StructType,
    *,
    per: Literal["batch", "row"] = "batch",
    keep: Sequence[str] = (),
    on_error: OnError = "keep",
) -> DataFrame:
    """The function's result for the frame's rows: the columns of `schema`, and the frame's columns that `keep` names.

    `per="batch"`: the function receives Arrow batches, and returns a batch or a table for each. It must treat rows
    independently: a batch for which it raises is halved until the failing rows are alone, and these become dead
    letters. With `keep` it must return as many rows as it receives, in the same order. `per="row"`: the function
    receives each row as a dict, and returns a dict, several, or None. `on_error="fail"` ends the query instead.

    Dead letters leave through the port `err` with the epoch, each event once. Keep `segment` and `offset` up to here,
    so that they are the stored events with their original bytes; other rows leave as JSON, marked as derived. The
    function must decide the same whenever it sees the same row. Raises RequestError.
    """
    from penstock.spark.dead_letters.batches import Applied  # here: it needs pyarrow

    check_on_error(on_error)
    returned, kept_fields = _schemas(frame, schema, keep)
    if per not in ("batch", "row"):
        raise RequestError(f"per={per!r} is not valid", 'Write "batch" or "row".')
    applied = Applied(function, per == "row", _arrow(returned), tuple(keep))
    if on_error == "fail":
        return frame.mapInArrow(applied.all_or_fail, _struct([*returned, *kept_fields]))
    context = current_pipeline("dead_letters.apply")
    name, origin = context.operator(f"apply {getattr(function, '__name__', 'function')}", ERR), context.origin()

    def rejecting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with side_outputs(origin, name) as sides:
            yield from applied.rejecting(batches, sides)

    return frame.mapInArrow(rejecting, _struct([*returned, *kept_fields]))


def check_on_error(given: OnError) -> None:
    if given not in get_args(OnError):
        raise RequestError(f"on_error={given!r} is not valid", 'Write "keep" (the rows become dead letters) or "fail".')


def fields_of(schema: str | StructType) -> StructType:
    """The columns of a schema in either form. Raises RequestError for a schema without columns."""
    from pyspark.sql.types import StructType

    fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(fields, StructType) or not fields.fields:
        raise RequestError(
            f"{schema!r} is not a schema of columns", 'Write "user string, amount double", or a StructType.'
        )
    return fields


def _schemas(
    frame: DataFrame, schema: str | StructType, keep: Sequence[str]
) -> tuple[list[StructField], list[StructField]]:
    returned = fields_of(schema).fields
    names = {field.name.lower() for field in returned}
    for name in keep:
        if name not in frame.columns:
            raise RequestError(
                f"keep names `{name}`, which the frame does not have", f"It has: {', '.join(frame.columns)}."
            )
        if name.lower() in names:
            raise RequestError(f"the column `{name}` would appear twice", "Leave it out of keep, or of the schema.")
    return list(returned), [frame.schema[name] for name in keep]


def _struct(fields: Sequence[StructField]) -> StructType:
    """All fields are nullable: a function may return nulls."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType) for field in fields])


def _arrow(fields: Sequence[StructField]) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(_struct(fields))
