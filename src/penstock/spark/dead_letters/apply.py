"""A Python function over a frame: rows for which it raises become dead letters, the others continue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from penstock.core.errors import RequestError
from penstock.spark.dead_letters.column import LETTER, LETTER_DDL, has_letters
from penstock.spark.dead_letters.frame import OnError, check_on_error, checked, fields_of, taken

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

BatchFunction: TypeAlias = "Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table]"
RowFunction: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any] | Iterable[Mapping[str, Any]] | None]


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
    receives each row as a dict, and returns a dict, several, or None. `on_error="fail"` ends the query instead. Rows
    that are dead letters already bypass the function. Keep `value`, `segment` and `offset` up to here, so that dead
    letters contain the event's own bytes and its position. Raises RequestError.
    """
    from penstock.spark.dead_letters.batches import Applied  # here: it needs pyarrow

    check_on_error(on_error)
    returned, kept_fields = _schemas(frame, schema, keep)
    if per not in ("batch", "row"):
        raise RequestError(f"per={per!r} is not valid", 'Write "batch" or "row".')
    lettered = has_letters(checked(frame))
    applied = Applied(function, per == "row", _arrow(returned), tuple(keep), lettered, on_error == "keep")
    letter = fields_of(f"{LETTER} {LETTER_DDL}").fields if lettered or on_error == "keep" else []

    def apply_with_letters(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return applied.batches(batches)

    return frame.mapInArrow(apply_with_letters, _struct([*returned, *kept_fields, *letter]))


def _schemas(
    frame: DataFrame, schema: str | StructType, keep: Sequence[str]
) -> tuple[list[StructField], list[StructField]]:
    returned = fields_of(schema).fields
    names = [field.name for field in returned]
    for name in keep:
        if name not in frame.columns:
            raise RequestError(
                f"keep names `{name}`, which the frame does not have", f"It has: {', '.join(frame.columns)}."
            )
    found = taken([*keep, LETTER], names) or taken([LETTER], keep)
    if found is not None:
        raise RequestError(f"the column `{found}` would be there twice", f"`{LETTER}` is added by itself.")
    return list(returned), [frame.schema[name] for name in keep]


def _struct(fields: Sequence[StructField]) -> StructType:
    """All fields are nullable: they are null in rows that are dead letters."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType) for field in fields])


def _arrow(fields: Sequence[StructField]) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(_struct(fields))
