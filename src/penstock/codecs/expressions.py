"""Bytes to columns and back, as Spark's own expressions: only MessagePack goes through Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.core.errors import RequestError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

CORRUPT = "__corrupt"

_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
_JSON = {"ignoreNullFields": "false"}
"""Every row has all columns."""

_CSV = {"escape": '"', "quote": '"'}
"""A quote inside a value is doubled (RFC 4180)."""


def decoded(codec: str, value: Column, schema: StructType | None) -> Column:
    """Null for bytes that are not what they should be. With a schema a struct; it has one more field, CORRUPT, which is
    set where only a part of them is. Otherwise a VARIANT, or text.
    """
    from pyspark.sql import functions

    match codec:
        case "json":
            return _json(_text(value), schema)
        case "msgpack":
            return _json(_unpacked(value), schema)
        case "string":
            return _text(value)
        case "csv" if schema is not None:
            return functions.from_csv(_text(value), _marked(schema).toDDL(), _PERMISSIVE | _CSV)
    raise RequestError(f"{codec} cannot be decoded without a schema", "Give the connector one: schema: id int, …")


def is_bad(parsed: Column, schema: StructType | None) -> Column:
    return parsed.isNull() if schema is None else parsed.isNull() | parsed[CORRUPT].isNotNull()


def _text(value: Column) -> Column:
    from pyspark.sql import functions

    text = value.cast("string")
    return functions.when(functions.is_valid_utf8(text), text)


def _json(text: Column, schema: StructType | None) -> Column:
    """Spark's parsers stop behind the first document. So it is put into a list, before a text that nobody can guess: if
    that is the second and last of it, all was one document.
    """
    from pyspark.sql import functions

    end = uuid4().hex
    listed = functions.try_parse_json(functions.concat(functions.lit("["), text, functions.lit(f',"{end}"]')))
    is_whole = functions.try_variant_get(listed, "$[1]", "string") == functions.lit(end)
    if schema is None:
        return functions.when(is_whole, functions.try_variant_get(listed, "$[0]", "variant"))
    return functions.when(is_whole, functions.from_json(text, _marked(schema), _PERMISSIVE))


def _marked(schema: StructType) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([*schema.fields, StructField(CORRUPT, StringType())])


def _unpacked(value: Column) -> Column:
    from penstock.codecs.packing import unpacked

    return _in_python(unpacked, "string", value)


def packed(row: Column, *, is_json: bool) -> Column:
    """As MessagePack: a column of any type that Arrow has, or JSON text."""
    from penstock.codecs.packing import packed as pack
    from penstock.codecs.packing import packed_json

    return _in_python(packed_json if is_json else pack, "binary", row)


def packed_metadata(metadata: Column, content_type: Column) -> Column:
    """A map in MessagePack: of a struct or a map, or of JSON text."""
    from pyspark.sql import functions

    from penstock.codecs.packing import packed_metadata as pack

    row = functions.struct(metadata.alias("metadata"), content_type.alias("content_type"))
    return _in_python(pack, "binary", row)


def _in_python(function: Callable[[Any], Any], kind: str, column: Column) -> Column:
    """Its hints, of Arrow's arrays, say how it is to be called."""
    from pyspark.sql.pandas.functions import arrow_udf

    made: Column = arrow_udf(function, kind)(column)  # type: ignore[call-overload]
    return made


def as_json(row: Column) -> Column:
    """Of a struct, an array, a map or a VARIANT."""
    from pyspark.sql import functions

    return functions.coalesce(functions.to_json(row, _JSON), functions.lit("null"))


def as_csv(row: Column) -> Column:
    """Of a struct."""
    from pyspark.sql import functions

    return functions.to_csv(row, _CSV)
