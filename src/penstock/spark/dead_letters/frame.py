"""A letter made of a row, by Spark: of the columns of its event that are still there."""

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
"""What becomes of a row that cannot be processed: a letter, or the end of the query."""

_BYTES = ("binary", "string")


def check_on_error(given: OnError) -> None:
    if given not in get_args(OnError):
        raise RequestError(f"on_error={given!r} is not valid", 'Write "keep" (the rows become dead letters) or "fail".')


def fields_of(schema: str | StructType) -> StructType:
    """Columns, written down either way. Raises RequestError for a schema without any."""
    from pyspark.sql.types import StructType

    fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(fields, StructType) or not fields.fields:
        raise RequestError(
            f"{schema!r} is not a schema of columns", 'Write "user string, amount double", or a StructType.'
        )
    return fields


def checked(frame: DataFrame) -> DataFrame:
    """The frame, if no letters were lost on the way to it, and it can have some. Raises RequestError."""
    check_letters(frame)
    if LETTER in frame.columns and not has_letters(frame):
        raise RequestError(f"the frame has a column `{LETTER}` that holds something else", "Rename it.")
    return frame


def letter_of(frame: DataFrame, reason: Column) -> Column:
    """A row as a letter for the port `err`. Its value is the frame's `value`, or the JSON of the row where there is
    none: then its segment and offset are not told, for the bytes there are others.
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
    told = (fields.get(name, absent).cast(kind).alias(name) for name, kind in LETTER_FIELDS.items())
    return functions.struct(*told).cast(LETTER_DDL)


def taken(names: Iterable[str], given: Iterable[str]) -> str | None:
    """The first of the names that is among those given, in whatever case: Spark does not tell them apart."""
    lower = {name.lower() for name in given}
    return next((name for name in names if name.lower() in lower), None)


def letter_before(frame: DataFrame) -> Column:
    """The letter that a row is already, null if it is none."""
    from pyspark.sql import functions

    return frame[LETTER] if has_letters(frame) else functions.lit(None).cast(LETTER_DDL)


# Filters that know of letters.


def where(frame: DataFrame, condition: Column | str) -> DataFrame:
    """The rows for which the condition holds, and all letters. Of a frame without letters, as its own `where`."""
    from pyspark.sql import functions

    wanted = functions.expr(condition) if isinstance(condition, str) else condition
    return frame.where(frame[LETTER].isNotNull() | wanted) if has_letters(frame) else frame.where(wanted)


def split(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The rows that are no letters, without the column `letter`, and a frame of nothing but letters: for what cannot be
    done to both, as joins and aggregates. Return the second beside what becomes of the first, as
    `{"out": …, "err": letters}`; each goes to the port that it names. What makes the frame is then done twice.
    """
    if not has_letters(frame):
        raise RequestError("the frame has no dead letters", f"It has no column `{LETTER}`: use it as it is.")
    letter = frame[LETTER]
    return frame.where(letter.isNull()).drop(LETTER), frame.where(letter.isNotNull()).select(LETTER)
