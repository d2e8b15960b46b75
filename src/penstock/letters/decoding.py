"""JSON decoded by Spark itself: what cannot be decoded becomes a letter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.core.errors import RequestError
from penstock.letters.json_documents import mismatch, one_document
from penstock.letters.making import OnError, check_on_error, checked, fields_of, letter_before, letter_of, taken
from penstock.spark.leaving_rows import quoted
from penstock.spark.letter import LETTER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_DECODED = "__decoded"


def decode_json(
    frame: DataFrame,
    schema: str | StructType,
    *,
    column: str = "value",
    into: str | None = None,
    on_error: OnError = "keep",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The frame with the fields of the JSON in `column` as further columns, or as one struct column `into`.

    A row whose text is not one JSON object with fields of these types, and nothing else, becomes a letter: its event
    goes to the port `err`. A field that is missing is null. `on_error="fail"` ends the query instead. `options` are
    those of Spark's `from_json`. Rows that are letters already pass through. Raises RequestError for names that are
    taken already.
    """
    check_on_error(on_error)
    fields = fields_of(schema)
    names = fields.fieldNames() if into is None else [into]
    _check_names(frame, column, names)
    checked(frame)
    decoded = frame.withColumn(_DECODED, _decoded(frame, column, fields, options or {}, on_error))
    given = _in_place([decoded[_DECODED].getField(name).alias(name) for name in fields.fieldNames()], into)
    if on_error == "fail":
        return decoded.select(*(decoded[quoted(name)] for name in frame.columns), *given)
    kept = [decoded[quoted(name)] for name in frame.columns if name != LETTER]
    return decoded.select(*kept, *given, _letter(frame, decoded, column, fields, options or {}))


def _decoded(
    frame: DataFrame, column: str, fields: StructType, options: Mapping[str, str], on_error: OnError
) -> Column:
    """Null for a letter, and for what is bad."""
    from pyspark.sql import functions

    text = frame[quoted(column)].cast("string")
    found = one_document(text, fields, options)
    if on_error == "fail":
        found = functions.coalesce(found, functions.raise_error(_reason(column, text, fields, options, _place(frame))))
    return functions.when(letter_before(frame).isNull(), found)


def _letter(
    frame: DataFrame, decoded: DataFrame, column: str, fields: StructType, options: Mapping[str, str]
) -> Column:
    """That of a row which is bad, and the one that a row has been before."""
    from pyspark.sql import functions

    before = letter_before(decoded)
    is_bad = before.isNull() & decoded[_DECODED].isNull()
    reason = _reason(column, decoded[quoted(column)].cast("string"), fields, options)
    return functions.when(is_bad, letter_of(frame, reason)).otherwise(before).alias(LETTER)


def _in_place(given: list[Column], into: str | None) -> list[Column]:
    from pyspark.sql import functions

    return given if into is None else [functions.struct(*given).alias(into)]


def _reason(
    column: str, text: Column, fields: StructType, options: Mapping[str, str], place: Sequence[Column] = ()
) -> Column:
    from pyspark.sql import functions

    return functions.concat(functions.lit(f"`{column}` "), mismatch(text, fields, options), *place)


def _place(frame: DataFrame) -> list[Column]:
    """Where the event is stored, if the frame still says so."""
    from pyspark.sql import functions

    if not {"segment", "offset"} <= set(frame.columns):
        return []
    return [functions.lit(", at "), frame["segment"], functions.lit("@"), frame["offset"].cast("string")]


def _check_names(frame: DataFrame, column: str, names: list[str]) -> None:
    if column not in frame.columns:
        raise RequestError(f"the frame has no column `{column}`", f"It has: {', '.join(frame.columns)}.")
    found = taken(names, [*frame.columns, LETTER])
    if found is not None:
        raise RequestError(
            f"the frame has a column `{found}` already",
            'Give the decoded fields a place of their own: decode_json(…, into="data").',
        )
