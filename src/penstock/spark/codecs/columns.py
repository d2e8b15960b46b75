"""Python values to Arrow columns: a whole column at once where it is plain, value by value where its texts need a
closer look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.kinds import Kind, arrow_type
from penstock.spark.codecs.scalars import day, decimal, local_timestamp, timestamp
from penstock.spark.codecs.variants import variant_text

Values = Sequence[Any]

_BEYOND_MICROSECONDS = r"(\.\d{6})\d+"

_BY_TEXT = ("date", "timestamp", "timestamp_ntz")
"""Types that arrive as texts, which Arrow parses if all of them are written alike."""

_BY_VALUE = ("decimal", "variant")
"""Types that only Python can convert."""

_CHECKED = (*_BY_TEXT, *_BY_VALUE)


def column(values: Values, kind: Kind) -> pa.Array:
    """The values as an array of the type. Raises ValueError if one of them is not a value of it."""
    wanted = arrow_type(kind)
    if not kind.holds(*_CHECKED):
        return pa.array(values, wanted)
    if not kind.holds(*_BY_VALUE) and (found := all_alike(values, kind)) is not None:
        return found
    convert = converter(kind)
    assert convert is not None
    return pa.array([None if value is None else convert(value) for value in values], wanted)


def all_alike(values: Values, kind: Kind) -> pa.Array | None:
    """The texts as Arrow parses them, if all timestamps have offsets, or none has; None if Arrow cannot."""
    texts_type, naive = _text_types(kind)
    try:
        texts = pa.array(values, texts_type)
    except pa.ArrowException:  # not all are texts
        return None
    if kind.name == "timestamp" or kind.name == "timestamp_ntz":
        texts = pc.replace_substring_regex(texts, _BEYOND_MICROSECONDS, r"\1")
    for through in (arrow_type(kind), naive):
        with suppress(pa.ArrowException):
            return texts.cast(through).cast(arrow_type(kind))
    return None


@cache
def _text_types(kind: Kind) -> tuple[pa.DataType, pa.DataType]:
    """The type with texts in place of times, and with timestamps that have no offset."""
    times = (pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"))
    found = arrow_type(kind)
    return _replaced(found, dict.fromkeys(times, pa.string())), _replaced(found, {times[1]: times[2]})


def _replaced(kind: pa.DataType, by: dict[pa.DataType, pa.DataType]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_replaced(field.type, by)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _replaced(kind.item_type, by))
    if pa.types.is_list(kind):
        return pa.list_(_replaced(kind.value_type, by))
    return by.get(kind, kind)


@cache
def converter(kind: Kind) -> Callable[[Any], Any] | None:
    """Converts one value, which is not None, to what Arrow takes; None if nothing must be converted. It raises
    ValueError.
    """
    if not kind.holds(*_CHECKED):
        return None
    match kind.name:
        case "timestamp":
            return timestamp
        case "timestamp_ntz":
            return local_timestamp
        case "date":
            return day
        case "decimal":
            precision, scale = kind.numbers
            return lambda value: decimal(value, precision, scale)
        case "variant":
            return _variant
        case "array":
            inner = _nullable(kind.of[0])
            return lambda values: [inner(value) for value in values]
        case "map":
            of_values = _nullable(kind.of[1])
            return lambda pairs: {key: of_values(value) for key, value in pairs.items()}
    members = {field.name: _nullable(field.kind) for field in kind.fields}
    return lambda given: {name: convert(given.get(name)) for name, convert in members.items()}


def _nullable(kind: Kind) -> Callable[[Any], Any]:
    convert = converter(kind)
    return (lambda value: value) if convert is None else lambda value: None if value is None else convert(value)


def _variant(raw: msgspec.Raw) -> str:
    return variant_text(bytes(raw))
