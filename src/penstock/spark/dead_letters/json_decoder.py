"""JSON decoded by Spark itself: a row that cannot be decoded becomes a dead letter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from penstock.core.errors import RequestError
from penstock.spark.dead_letters.column import LETTER
from penstock.spark.dead_letters.frame import (
    OnError,
    check_on_error,
    checked,
    fields_of,
    letter_before,
    letter_of,
    taken,
)
from penstock.spark.outputs import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

# JSON read by Spark in one pass: whether a whole text is one document that fits a schema, and if not, why.

_CORRUPT = "__corrupt"
_MODE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}

_FIELDS_MAX = 64
"""The most fields of a schema that are checked one by one for a mismatch: each is an expression in the plan."""

_FOUND_CHARS = 60
"""The most characters that are shown of a value that does not fit."""


def one_document(text: Column, fields: StructType, options: Mapping[str, str]) -> Column:
    """A struct with the fields, and a last field without meaning. Null unless the text is one JSON object with fields
    of these types, and nothing else; a missing field is null.

    Spark's parser stops after the first document, and does not report where. So the text is put into a list, before an
    object with an unguessable field name: if that is the second and last element, the text was exactly one document.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    end = uuid4().hex
    listed = StructField(end, ArrayType(StructType([*fields.fields, StructField(end, StringType())])))
    opening, closing = functions.lit(f'{{"{end}":['), functions.lit(f',{{"{end}":""}}]}}')
    whole = StructType([listed, StructField(_CORRUPT, StringType())])
    found = functions.from_json(functions.concat(opening, text, closing), whole, {**options, **_MODE})
    documents = found[end]
    is_one = (functions.size(documents) == 2) & documents[1][end].isNotNull() & functions.is_valid_utf8(text)
    return functions.when(is_one & found[_CORRUPT].isNull(), documents[0])


def mismatch(text: Column, fields: StructType, options: Mapping[str, str]) -> Column:
    """Why `one_document` returns null for a text: the first field that does not fit, what was found there, and what was
    expected. Only for such rows: it parses the text again for each field.
    """
    from pyspark.sql import functions

    document = functions.try_parse_json(text)
    kind = functions.lower(functions.schema_of_variant(document))
    reason = functions.when(text.isNull() | ~functions.is_valid_utf8(text), "is not valid UTF-8")
    reason = reason.when(document.isNull(), "is not valid JSON")
    reason = reason.when(~kind.startswith("object<"), functions.concat(functions.lit("is not an object, but "), kind))
    for path, expected in [*_leaves(fields)][:_FIELDS_MAX]:
        is_bad = functions.from_json(text, _only(path, expected), {**options, **_MODE})[_CORRUPT].isNotNull()
        reason = reason.when(is_bad, _wrong_type(path, expected, _found(text, document, path)))
    found = one_document(text, fields, options)
    for field in fields:
        if not field.nullable:
            is_missing = found.isNotNull() & found[field.name].isNull()
            reason = reason.when(is_missing, _wrong_type([field.name], field.dataType, functions.lit("nothing")))
    return reason.otherwise(f"is more than one JSON document, or none of {fields.simpleString()}")


def _leaves(fields: StructType, above: Sequence[str] = ()) -> Iterator[tuple[list[str], DataType]]:
    """The fields of all structs, with their paths. Skips fields whose names cannot be written in a path."""
    from pyspark.sql.types import StructType

    for field in fields:
        path = [*above, field.name]
        if "'" in field.name:
            continue
        if isinstance(field.dataType, StructType):
            yield from _leaves(field.dataType, path)
        else:
            yield path, field.dataType


def _only(path: Sequence[str], kind: DataType) -> StructType:
    """A schema with only the field at this path."""
    from pyspark.sql.types import StringType, StructField, StructType

    for name in reversed(path[1:]):
        kind = StructType([StructField(name, kind)])
    return StructType([StructField(path[0], kind), StructField(_CORRUPT, StringType())])


def _wrong_type(path: Sequence[str], expected: DataType, found: Column) -> Column:
    from pyspark.sql import functions

    prefix = f"has the wrong type at `{'.'.join(path)}`: expected {expected.simpleString()}, found "
    return functions.concat(functions.lit(prefix), found)


def _found(text: Column, document: Column, path: Sequence[str]) -> Column:
    """The type of the value at the path, and its first characters."""
    from pyspark.sql import functions

    value = functions.substring(functions.get_json_object(text, _written(path)), 1, _FOUND_CHARS)
    return functions.concat_ws(" ", _type_at(document, path), value)


def _type_at(document: Column, path: Sequence[str]) -> Column:
    from pyspark.sql import functions

    return functions.lower(functions.schema_of_variant(functions.try_variant_get(document, _written(path), "variant")))


def _written(path: Sequence[str]) -> str:
    return "$" + "".join(f"['{name}']" for name in path)


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

    A row whose text is not exactly one JSON object with fields of these types becomes a dead letter: its event goes to
    the port `err`. A missing field is null. `on_error="fail"` ends the query instead. `options` are those of Spark's
    `from_json`. Rows that are dead letters already pass through. Raises RequestError for names that are already taken.
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
    """Null for a dead letter, and for a text that cannot be decoded."""
    from pyspark.sql import functions

    text = frame[quoted(column)].cast("string")
    found = one_document(text, fields, options)
    if on_error == "fail":
        found = functions.coalesce(found, functions.raise_error(_reason(column, text, fields, options, _place(frame))))
    return functions.when(letter_before(frame).isNull(), found)


def _letter(
    frame: DataFrame, decoded: DataFrame, column: str, fields: StructType, options: Mapping[str, str]
) -> Column:
    """A new dead letter for a row that cannot be decoded, otherwise the row's existing one."""
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
    """Where the event is stored, if the frame still has these columns."""
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
            'Put the decoded fields into a struct: decode_json(…, into="data").',
        )
