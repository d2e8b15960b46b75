"""Bytes to columns and back, as Spark's own expressions: only MessagePack goes through Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.core.errors import RequestError
from penstock.spark.dead_letters.json_decoder import mismatch, one_document

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_END = uuid4().hex
"""An unguessable end marker after the text: if the parser finds it, it has read the whole text."""

_CORRUPT = "__corrupt"

_JSON = {"ignoreNullFields": "false"}
"""Every row has all columns."""

_CSV = {"escape": '"', "quote": '"'}
"""A quote inside a value is doubled (RFC 4180)."""

_READ_CSV = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "nullValue": _END}
"""An empty field between two commas is null, and `""` is an empty text."""

_WRITE_CSV = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}

_READ_JSON = {"allowSingleQuotes": "false"}

_SHOWN = {"json": "JSON", "msgpack": "MessagePack", "csv": "CSV", "string": "UTF-8"}
"""Names of codecs for messages."""


def prepared(codec: str, value: Column, schema: StructType | None) -> Column:
    """The input of `decoded`, in a column of its own so that Spark computes it once. Null for bytes that are not valid
    text.
    """
    from pyspark.sql import functions

    match codec:
        case "msgpack":
            return _unpacked(value)
        case "json" if schema is None:
            return _listed(_text(value))
        case "csv":
            return functions.regexp_replace(_text(value), r"\r?\n\z", "")
    return _text(value)


def decoded(codec: str, given: Column, schema: StructType | None) -> Column:
    """Null for bytes that cannot be decoded. With a schema a struct, which may have an extra field without meaning;
    otherwise a VARIANT, or text.
    """
    from pyspark.sql import functions

    match codec:
        case "string":
            return given
        case "json" if schema is None:
            is_whole = functions.try_variant_get(given, "$[1]", "string") == functions.lit(_END)
            return functions.when(is_whole, functions.try_variant_get(given, "$[0]", "variant"))
        case "msgpack" if schema is None:
            return functions.try_parse_json(given)
        case "json" | "msgpack" if schema is not None:
            return _with_all(one_document(given, schema, _READ_JSON), schema)
        case "csv" if schema is not None:
            return _with_all(_csv(given, schema), schema)
    raise RequestError(f"{codec} cannot be decoded without a schema", "Add one to the connector: schema: id int, …")


def wrong(codec: str, given: Column, schema: StructType | None) -> Column:
    """Why `decoded` returns null for this input."""
    from pyspark.sql import functions

    broken = functions.lit(f"is not valid {_SHOWN.get(codec, codec)}")
    if schema is None:
        return broken
    reason = _wrong_csv(given, schema) if codec == "csv" else mismatch(given, schema, _READ_JSON)
    return functions.when(given.isNull(), broken).otherwise(reason)


def _wrong_csv(record: Column, schema: StructType) -> Column:
    """The first column that does not fit. Each is checked with all others as text."""
    from pyspark.sql import functions
    from pyspark.sql.types import StringType, StructField, StructType

    texts = StructType([StructField(field.name, StringType()) for field in schema])
    as_text = _csv(record, texts)
    reason = functions.when(as_text.isNull(), f"is not one CSV record of {len(schema)} columns")
    for number, field in enumerate(schema):
        alone = StructType([*texts.fields[:number], field, *texts.fields[number + 1 :]])
        prefix = f"has the wrong type at `{field.name}`: expected {field.dataType.simpleString()}, found "
        value = functions.coalesce(as_text.getField(field.name), functions.lit("nothing"))
        reason = reason.when(
            _with_all(_csv(record, alone), alone).isNull(), functions.concat(functions.lit(prefix), value)
        )
    return reason.otherwise(f"is not one CSV record of {schema.simpleString()}")


def _text(value: Column) -> Column:
    from pyspark.sql import functions

    text = value.cast("string")
    return functions.when(functions.is_valid_utf8(text), text)


def _listed(text: Column) -> Column:
    """Spark's parser stops after the first document, so the text is put into a list, followed by _END."""
    from pyspark.sql import functions

    return functions.try_parse_json(functions.concat(functions.lit("["), text, functions.lit(f',"{_END}"]')))


def _csv(record: Column, schema: StructType) -> Column:
    """One record: its quotes are closed, and line ends occur only inside quotes."""
    from pyspark.sql import functions
    from pyspark.sql.types import StringType, StructField, StructType

    marked = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    found = functions.from_csv(record, marked.toDDL(), _CSV | _READ_CSV)
    unquoted = functions.regexp_replace(record, '"[^"]*"', "")
    is_record = ~unquoted.rlike(r'["\r\n]')
    if len(schema) > 1:
        is_record = is_record & (record != "")
    return functions.when(is_record & found[_CORRUPT].isNull(), found)


def _with_all(found: Column, schema: StructType) -> Column:
    """Null if a field is null that must not be: Spark's parsers do not check that."""
    from pyspark.sql import functions

    needed = [found.getField(field.name).isNotNull() for field in schema if not field.nullable]
    return functions.when(reduce(lambda one, other: one & other, needed), found) if needed else found


def _unpacked(value: Column) -> Column:
    from penstock.spark.codecs.packing import unpacked

    return _in_python(unpacked, "string", value)


def packed(row: Column, *, is_json: bool) -> Column:
    """As MessagePack: a column of any type that Arrow has, or JSON text."""
    from penstock.spark.codecs.packing import packed as pack
    from penstock.spark.codecs.packing import packed_json

    return _in_python(packed_json if is_json else pack, "binary", row)


def packed_metadata(metadata: Column, content_type: Column) -> Column:
    """A map in MessagePack: of a struct or a map, or of JSON text."""
    from pyspark.sql import functions

    from penstock.spark.codecs.packing import packed_metadata as pack

    row = functions.struct(metadata.alias("metadata"), content_type.alias("content_type"))
    return _in_python(pack, "binary", row)


def _in_python(function: Callable[[Any], Any], kind: str, column: Column) -> Column:
    """The function's type hints, which name Arrow arrays, determine how Spark calls it."""
    from pyspark.sql.pandas.functions import arrow_udf

    result: Column = arrow_udf(function, kind)(column)  # type: ignore[call-overload]
    return result


def as_json(row: Column) -> Column:
    """A struct, an array, a map or a VARIANT as JSON text."""
    from pyspark.sql import functions

    return functions.coalesce(functions.to_json(row, _JSON), functions.lit("null"))


def as_csv(row: Column) -> Column:
    """A struct as a CSV record."""
    from pyspark.sql import functions

    return functions.to_csv(row, _CSV | _WRITE_CSV)
