"""Dead letters from rows, as Spark expressions: from those columns of the event that the row still has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from penstock.core.errors import RequestError
from penstock.spark.dead_letters.column import (
    ERR,
    LETTER,
    LETTER_DDL,
    LETTER_FIELDS,
    REASON_CHARACTERS_MAX,
    check_letters,
    has_letters,
)
from penstock.spark.outputs import JSON, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

OnError: TypeAlias = Literal["keep", "fail"]
"""A row that cannot be processed becomes a dead letter ("keep") or ends the query ("fail")."""

_BYTES = ("binary", "string")


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


def checked(frame: DataFrame) -> DataFrame:
    """Returns the frame. Raises RequestError if it has lost dead letters, or if its `letter` is an unrelated column."""
    check_letters(frame)
    if LETTER in frame.columns and not has_letters(frame):
        raise RequestError(f"the frame has a column `{LETTER}` of another type", "Rename it.")
    return frame


def letter_of(frame: DataFrame, reason: Column) -> Column:
    """A row as a dead letter for the port `err`. Its value is the frame's `value`. Without one it is the row as JSON,
    and segment and offset are null: the bytes stored there are different ones.
    """
    from pyspark.sql import functions

    kinds = dict(frame.dtypes)
    fields = {name: frame[name] for name, kind in LETTER_FIELDS.items() if kinds.get(name) == kind}
    fields |= {name: frame[name].cast("binary") for name in ("value", "key") if kinds.get(name) in _BYTES}
    if "value" not in fields:
        whole = functions.struct(*(frame[quoted(name)] for name in frame.columns if name != LETTER))
        fields["value"] = functions.to_json(whole, JSON).cast("binary")
        fields = {name: column for name, column in fields.items() if name not in ("segment", "offset")}
    fields["value"] = functions.coalesce(fields["value"], functions.lit(b""))
    fields["port"] = functions.lit(ERR)
    fields["reason"] = functions.substring(reason, 1, REASON_CHARACTERS_MAX)
    absent = functions.lit(None)
    columns = (fields.get(name, absent).cast(kind).alias(name) for name, kind in LETTER_FIELDS.items())
    return functions.struct(*columns).cast(LETTER_DDL)


def taken(names: Iterable[str], given: Iterable[str]) -> str | None:
    """The first of the names that is among those given, ignoring case as Spark does."""
    lower = {name.lower() for name in given}
    return next((name for name in names if name.lower() in lower), None)


def letter_before(frame: DataFrame) -> Column:
    """The row's existing `letter`; null if the row is not a dead letter."""
    from pyspark.sql import functions

    return frame[LETTER] if has_letters(frame) else functions.lit(None).cast(LETTER_DDL)


# Filters that preserve dead letters.


def where(frame: DataFrame, condition: Column | str) -> DataFrame:
    """The rows for which the condition is true, and all dead letters. Without dead letters, the frame's own `where`."""
    from pyspark.sql import functions

    wanted = functions.expr(condition) if isinstance(condition, str) else condition
    return frame.where(frame[LETTER].isNotNull() | wanted) if has_letters(frame) else frame.where(wanted)


def split(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Two frames: the rows that are not dead letters, without the column `letter`, and the dead letters alone. For
    operations that cannot preserve dead letters, such as joins and aggregates. Return the second frame beside the
    result of the first, as `{"out": …, "err": letters}`; each dead letter goes to the port that it names. Spark then
    computes the frame twice.
    """
    if not has_letters(frame):
        raise RequestError("the frame has no dead letters", f"It has no column `{LETTER}`: use it as it is.")
    letter = frame[LETTER]
    return frame.where(letter.isNull()).drop(LETTER), frame.where(letter.isNotNull()).select(LETTER)
