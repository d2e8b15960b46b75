"""Arrow columns as texts, a whole column at once: numbers and times as Spark's `to_json` and `to_csv` write them; and
the texts of events.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError

_WHOLE = r"^-?\d+$"
_SPECIAL = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def plain_texts(column: pa.Array, name: str, codec: str) -> pa.StringArray:
    """The values as texts, null for null. Timestamps have milliseconds, and those that are instants are in UTC. Raises
    RequestError for a type that has no text.
    """
    kind = column.type
    if pa.types.is_floating(kind):
        return _floating(column)
    if pa.types.is_timestamp(kind):
        return _timestamps(column)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind) or is_text(kind):
        return column.cast(pa.string())
    if pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    raise RequestError(
        f"{codec} cannot write `{name}`, which is {kind}", "Convert the column to a string in the function."
    )


def _floating(column: pa.Array) -> pa.StringArray:
    """With a point or an exponent: readers that guess types see a floating-point number."""
    texts = column.cast(pa.string())
    if pc.any(pc.equal(pc.floor(column), column)).as_py():
        texts = pc.if_else(pc.match_substring_regex(texts, _WHOLE), pc.binary_join_element_wise(texts, ".0", ""), texts)
    if not pc.all(pc.is_finite(column)).as_py():
        for found, written in _SPECIAL.items():
            texts = pc.if_else(pc.equal(texts, found), written, texts)
    return texts


def _timestamps(column: pa.Array) -> pa.StringArray:
    local = pc.floor_temporal(column.cast(pa.timestamp(column.type.unit)), unit="millisecond")
    texts = pc.replace_substring(local.cast(pa.timestamp("ms")).cast(pa.string()), " ", "T")
    return texts if column.type.tz is None else pc.binary_join_element_wise(texts, "Z", "")


# The texts of events.

_LINE_END = r"\r?\n\z"


class ValidTexts(NamedTuple):
    """The events that are valid UTF-8."""

    texts: pa.StringArray
    rows: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Their numbers."""
    bad: list[int]
    """The numbers of the others."""


def valid_texts(values: pa.BinaryArray) -> ValidTexts:
    try:
        return ValidTexts(values.cast(pa.string()), np.arange(len(values)), [])
    except pa.ArrowInvalid:
        bad = [row for row, document in enumerate(values.to_pylist()) if not _is_utf8(document)]
    rows = np.setdiff1d(np.arange(len(values)), bad)
    return ValidTexts(values.take(pa.array(rows)).cast(pa.string()), rows, bad)


def _is_utf8(document: bytes) -> bool:
    try:
        document.decode()
        return True
    except UnicodeDecodeError:
        return False


def without_line_ends(texts: pa.StringArray) -> pa.StringArray:
    """Each without one line end after it."""
    if not pc.any(pc.ends_with(texts, "\n")).as_py():  # most have none, and looking is cheaper than replacing
        return texts
    return pc.replace_substring_regex(texts, _LINE_END, "")


def without_empty(texts: pa.StringArray) -> pa.StringArray:
    """With null for an empty one."""
    return pc.if_else(pc.equal(texts, ""), None, texts)
