"""Formats with columns of their own, whatever the events are: helpers that build these columns from texts."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError
from penstock.core.kinds import STRING, Fields, Kind, arrow_type
from penstock.spark.codecs.api import Codec, Columns, Decode, Encode
from penstock.spark.codecs.arrow_texts import without_empty
from penstock.spark.codecs.json_writer import joined, map_parts
from penstock.spark.codecs.scalars import Misfit

BIGINT, DOUBLE, INT, TIMESTAMP = (Kind(name) for name in ("bigint", "double", "int", "timestamp"))
TAGS = Kind("map", of=(STRING, STRING))

_UNITS = {"s": "second", "ms": "millisecond", "us": "microsecond"}
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


class FixedColumns(Codec):
    """`of` are its columns. It takes no schema."""

    of: Fields

    def fields(self, schema: Fields | None) -> Fields:  # noqa: ARG002
        return self.of

    def decoder(self, schema: Fields | None) -> Decode:  # noqa: ARG002
        return self.decode

    def encoder(self, columns: pa.Schema) -> Encode:
        unknown = [name for name in columns.names if name not in {field.name for field in self.of}]
        if unknown:
            raise RequestError(
                f"{self.about.name} cannot write {', '.join(unknown)}",
                f"Its columns are: {', '.join(field.name for field in self.of)}.",
            )
        return lambda rows: self.write(Given(self.about.name, rows)).cast(pa.binary())

    @abstractmethod
    def decode(self, values: pa.BinaryArray) -> Columns: ...

    @abstractmethod
    def write(self, rows: Given) -> pa.StringArray:
        """Raises RequestError for a row that the format cannot represent."""


class Given:
    """Rows to write: their columns as texts."""

    def __init__(self, codec: str, rows: pa.RecordBatch) -> None:
        self._codec = codec
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> pa.Array:
        """Nulls if the rows do not have it."""
        return self._rows.column(name) if name in self._rows.schema.names else pa.nulls(len(self._rows))

    def texts(self, name: str) -> pa.StringArray:
        """Null for null. Numbers have no point if they are whole."""
        return self._as_texts(name, self.column(name))

    def needed(self, name: str) -> pa.StringArray:
        """As `texts`. Raises RequestError for null."""
        return self.complete(name, self.texts(name))

    def complete(self, name: str, texts: pa.StringArray) -> pa.StringArray:
        """Returns the texts. Raises RequestError if one is null: its row has no `name`."""
        if texts.null_count:
            raise RequestError(f"{self._codec} cannot write a row without `{name}`", "Set it, or drop the row.")
        return texts

    def instants(self, name: str) -> pa.TimestampArray:
        """In UTC, and in microseconds."""
        try:
            return self.column(name).cast(pa.timestamp("us", "UTC"), safe=False)
        except pa.ArrowException:
            raise self._wrong(name, "a timestamp") from None

    def since_1970(self, name: str, unit: str) -> pa.StringArray:
        """A time as a whole number of units."""
        instants = self.instants(name)
        if unit == "ns":
            try:
                return pc.multiply_checked(instants.cast(pa.int64()), 1000).cast(pa.string())
            except pa.ArrowException:
                raise self._wrong(name, "a time of 1677 to 2262") from None
        whole = pc.floor_temporal(instants, unit=_UNITS[unit])
        return whole.cast(pa.timestamp(unit, "UTC")).cast(pa.int64()).cast(pa.string())

    def pairs(self, name: str, write: Callable[[pa.StringArray, pa.StringArray], pa.StringArray], between: str) -> Any:
        """What `write` makes of the keys and values of maps; "" for none. Keys without a value are left out."""
        column = self.column(name)
        if pa.types.is_struct(column.type):
            column = _as_maps(column)
        if pa.types.is_null(column.type):
            return pa.array([""] * len(column), pa.string())
        if not pa.types.is_map(column.type):
            raise self._wrong(name, "a map")
        lists, keys, items = _without_nulls(*map_parts(column))
        written = write(self._as_texts(name, keys), self._as_texts(name, items))
        return pc.fill_null(joined(lists, written, between=between), "")

    def elements(self, name: str, between: str) -> pa.StringArray:
        """Those of a list; null for none."""
        column = self.column(name)
        if pa.types.is_null(column.type):
            return column.cast(pa.string())
        if not pa.types.is_list(column.type) and not pa.types.is_large_list(column.type):
            raise self._wrong(name, "an array")
        return without_empty(joined(column, self._as_texts(name, column.flatten()), between=between))

    def fitting(self, texts: pa.StringArray, pattern: str, hint: str) -> pa.StringArray:
        """Returns them. Raises RequestError if one, as a whole, is not what the pattern of RE2 describes: this format's
        decoder would read something else.
        """
        self.refuse(texts, pc.invert(pc.match_substring_regex(texts, rf"(?s)\A(?:{pattern})\z")), hint)
        return texts

    def refuse(self, texts: pa.StringArray, are_bad: pa.BooleanArray, hint: str) -> None:
        """Raises RequestError with the first text that is bad. Null never is."""
        if texts.null_count:
            are_bad = pc.and_(are_bad, texts.is_valid())
        if (at := pc.index(are_bad, value=True).as_py()) >= 0:
            raise RequestError(f"{self._codec} cannot write {texts[at].as_py()[:100]!r}", hint)

    def _as_texts(self, name: str, column: pa.Array) -> pa.StringArray:
        if pa.types.is_nested(column.type):
            raise self._wrong(name, "a text or a number")
        return column.cast(pa.string())

    def _wrong(self, name: str, wanted: str) -> RequestError:
        return RequestError(f"{self._codec} cannot write `{name}`, which is not {wanted}", "Convert the column.")


def concat(*parts: pa.StringArray | str) -> pa.StringArray:
    """The parts of each row without anything between them; null if one of them is."""
    return pc.binary_join_element_wise(*parts, "")


def optional(*parts: pa.StringArray | str) -> pa.StringArray:
    """As `concat`; "" if a part is null."""
    return pc.fill_null(concat(*parts), "")


def escaped(texts: pa.StringArray, signs: str) -> pa.StringArray:
    """With a backslash before each of the signs, of which it is the first."""
    if not pc.any(pc.match_substring_regex(texts, f"[{re.escape(signs)}]")).as_py():
        return texts
    return pc.replace_substring_regex(texts, f"([{re.escape(signs)}])", r"\\\1")


def _as_maps(column: pa.StructArray) -> pa.MapArray:
    """Without the fields that are null."""
    rows = [
        None if one is None else [pair for pair in one.items() if pair[1] is not None] for one in column.to_pylist()
    ]
    return pa.array(
        [None if one is None else [(key, str(value)) for key, value in one] for one in rows], arrow_type(TAGS)
    )


def _without_nulls(lists: pa.ListArray, keys: pa.Array, items: pa.Array) -> tuple[pa.ListArray, pa.Array, pa.Array]:
    """The parts of maps without the keys whose value is null. A map that is null may become an empty one."""
    if not items.null_count:
        return lists, keys, items
    is_set = items.is_valid().to_numpy(zero_copy_only=False)
    before = np.concatenate(([0], np.cumsum(is_set)))
    ends = np.cumsum(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False))
    keys, items = keys.filter(pa.array(is_set)), items.filter(pa.array(is_set))
    return pa.ListArray.from_arrays(pa.array(before[np.concatenate(([0], ends))], pa.int32()), keys), keys, items


def row_by_row(values: pa.BinaryArray, parse: Callable[[bytes], Sequence[Any]], fields: Fields) -> Columns:
    """What `parse` returns for each event, by field; it raises Misfit."""
    rows: list[Sequence[Any]] = []
    failed: dict[int, str] = {}
    for number, value in enumerate(values.to_pylist()):
        try:
            rows.append(parse(value))
        except Misfit as error:
            failed[number] = str(error)
    columns = zip(*rows, strict=True) if rows else [()] * len(fields)
    return Columns([pa.array(of, arrow_type(f.kind)) for of, f in zip(columns, fields, strict=True)], failed)


def only(found: Columns, rows: Rows, are_good: pa.BooleanArray, reason: str) -> Columns:
    """The rows that are good. The others, whose events have the numbers `rows`, have failed for this reason."""
    if pc.all(are_good).as_py():
        return found
    bad = rows[~are_good.to_numpy(zero_copy_only=False)].tolist()
    return Columns([array.filter(are_good) for array in found.arrays], {**found.failed, **dict.fromkeys(bad, reason)})


def in_range(numbers: pa.DoubleArray) -> pa.BooleanArray:
    """False for infinity, which is what a double is whose digits are beyond its range."""
    return pc.fill_null(pc.invert(pc.is_inf(numbers)), True)


def maps(texts: pa.StringArray, parse: Callable[[str], dict[str, str]]) -> pa.MapArray:
    """What `parse` makes of each text, and nothing of null. Equal texts, which tags usually are, are parsed once."""
    coded = texts.dictionary_encode()
    parsed = [parse(text) for text in coded.dictionary.to_pylist()]
    kind = arrow_type(TAGS)
    found = pa.array([[*one.items()] for one in (*parsed, {})], kind)
    return found.take(coded.indices.fill_null(len(parsed)))


def instants(texts: pa.StringArray, unit: str) -> pa.TimestampArray:
    """Whole numbers since 1970, of at most 18 digits; null for null."""
    whole = texts.cast(pa.int64())
    micros = pc.divide(whole, 1000) if unit == "ns" else pc.multiply(whole, _MICROSECONDS[unit])
    return micros.cast(pa.timestamp("us", "UTC"))


def decoded_rows(values: pa.BinaryArray, rows: Rows, decode: Decode) -> tuple[Columns, Rows]:
    """Decodes these events alone. Failures have the numbers that events have in `values`; also the rows that have not
    failed.
    """
    found = decode(values.take(pa.array(rows)))
    failed = {int(rows[row]): reason for row, reason in found.failed.items()}
    return Columns(found.arrays, failed), np.setdiff1d(rows, [*failed]) if failed else rows


def merged(parts: Sequence[tuple[Columns, Rows]], failed: Mapping[int, str]) -> Columns:
    """The columns of several parts in the order of their rows, with their failures and these."""
    failures = {**failed, **{row: reason for columns, _ in parts for row, reason in columns.failed.items()}}
    if len(parts) == 1:
        return Columns(parts[0][0].arrays, failures)
    order = pa.array(np.argsort(np.concatenate([rows for _, rows in parts])))
    arrays = [
        pa.concat_arrays([columns.arrays[at] for columns, _ in parts]).take(order)
        for at in range(len(parts[0][0].arrays))
    ]
    return Columns(arrays, failures)
