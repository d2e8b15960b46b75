"""Rows as JSON, a whole column at once: the fields in their order, null ones too."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.codecs.arrow_texts import is_binary, is_text, plain_texts
from penstock.spark.codecs.codec import DATA

IS_JSON = {b"penstock": b"json"}
"""The metadata of a column of JSON texts: what Spark has written of a VARIANT. It is not quoted again."""

_ESCAPED = r'["\\\x00-\x1f]'
"""Characters that cannot stand in a JSON string."""

_encoded = msgspec.json.Encoder().encode


class JsonWriter:
    """A single column `data` that is nested, or JSON itself, is the document; other columns are its fields."""

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns
        self._is_whole = columns.names == [DATA] and (is_json(columns[0]) or pa.types.is_nested(columns[0].type))

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        texts = [_texts(array, field) for array, field in zip(rows.columns, self._columns, strict=True)]
        return (texts[0] if self._is_whole else _object(self._columns.names, texts, len(rows))).cast(pa.binary())


def is_json(field: pa.Field) -> bool:
    """Whether the column's texts are JSON already."""
    return bool((field.metadata or {}).items() >= IS_JSON.items())


def _texts(column: pa.Array, field: pa.Field) -> pa.StringArray:
    """Each value as JSON; `null` for null."""
    kind = column.type
    if is_json(field):
        found = column.cast(pa.string())
    elif is_text(kind):
        found = strings(column.cast(pa.string()))
    elif is_binary(kind):
        found = _each(column)  # base64
    elif pa.types.is_struct(kind):
        found = _structs(column)
    elif pa.types.is_map(kind):
        found = _maps(column, field.name)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        found = _lists(column)
    else:
        found = _plain(column, field.name)
    return pc.fill_null(found, "null") if found.null_count else found


def strings(texts: pa.StringArray) -> pa.StringArray:
    """As strings of JSON; null for null."""
    if pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
        return _each(texts)
    return pc.binary_join_element_wise('"', texts, '"', "")


def _each(column: pa.Array) -> pa.StringArray:
    return pa.array([None if one is None else _encoded(one).decode() for one in column.to_pylist()], pa.string())


def _plain(column: pa.Array, name: str) -> pa.StringArray:
    texts = plain_texts(column, name, "json")
    is_bare = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type) or pa.types.is_decimal(column.type)
    if is_bare:
        return texts
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    return pc.if_else(pc.is_finite(column), texts, quoted) if pa.types.is_floating(column.type) else quoted


def _object(names: list[str], texts: list[pa.StringArray], count: int) -> pa.StringArray:
    parts: list[pa.StringArray | str] = []
    for number, (name, array) in enumerate(zip(names, texts, strict=True)):
        parts += [f"{',' if number else '{'}{_encoded(name).decode()}:", array]
    return pc.binary_join_element_wise(*parts, "}", "") if parts else pa.array(["{}"] * count, pa.string())


def _structs(column: pa.StructArray) -> pa.StringArray:
    """Null for null."""
    fields = [column.type.field(number) for number in range(column.type.num_fields)]
    texts = [_texts(array, field) for array, field in zip(column.flatten(), fields, strict=True)]
    found = _object([field.name for field in fields], texts, len(column))
    return pc.if_else(column.is_valid(), found, None) if column.null_count else found


def _lists(column: pa.ListArray) -> pa.StringArray:
    return joined(column, _texts(column.flatten(), column.type.value_field), "[", "]")


def _maps(column: pa.MapArray, name: str) -> pa.StringArray:
    lists, keys, items = map_parts(column)
    names = strings(plain_texts(keys, name, "json"))
    return joined(lists, pc.binary_join_element_wise(names, _texts(items, column.type.item_field), ":"), "{", "}")


def map_parts(column: pa.MapArray) -> tuple[pa.ListArray, pa.Array, pa.Array]:
    """The map as lists, and all keys and values of these."""
    lists = column.cast(pa.list_(pa.struct([column.type.key_field, column.type.item_field])))
    keys, items = lists.flatten().flatten()
    return lists, keys, items


def joined(
    column: pa.Array, texts: pa.StringArray, opening: str = "", closing: str = "", between: str = ","
) -> pa.StringArray:
    """The texts of each list's values, which follow each other in `texts`, between brackets. Null for null."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    inside = pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), texts), between)
    found = pc.binary_join_element_wise(opening, inside, closing, "")
    return pc.if_else(column.is_valid(), found, None) if column.null_count else found
