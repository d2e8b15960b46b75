"""A letter made of a row, by Spark: of the columns of its event that are still there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from penstock.core.errors import RequestError
from penstock.spark.leaving_rows import JSON, quoted
from penstock.spark.letter import ERR, LETTER, LETTER_DDL, LETTER_FIELDS, REASON_CHARACTERS_MAX
from penstock.spark.lettered import check_letters, has_letters

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

OnError: TypeAlias = Literal["keep", "fail"]
"""What becomes of a row that cannot be processed: a letter, or the end of the query."""

_BYTES = ("binary", "string")


def check_on_error(given: OnError) -> None:
    if given not in get_args(OnError):
        raise RequestError(f"there is no on_error={given!r}", 'Write "keep" (the rows become letters) or "fail".')


def fields_of(schema: str | StructType) -> StructType:
    """Columns, written down either way. Raises RequestError for a schema without any."""
    from pyspark.sql.types import StructType

    fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(fields, StructType) or not fields.fields:
        raise RequestError(
            f"{schema!r} is no schema of columns", 'Write "user string, amount double", or a StructType.'
        )
    return fields


def checked(frame: DataFrame) -> DataFrame:
    """The frame, if no letters were lost on the way to it, and it can have some. Raises RequestError."""
    check_letters(frame)
    if LETTER in frame.columns and not has_letters(frame):
        raise RequestError(f"the frame has a column `{LETTER}` that holds something else", "Give it another name.")
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
