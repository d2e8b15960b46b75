"""Formats with columns of their own, whatever the events are: helpers that build these columns from texts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError
from penstock.core.kinds import STRING, Fields, Kind, arrow_type
from penstock.spark.codecs.api import Codec, Columns, Decode, Encode
from penstock.spark.codecs.scalars import Misfit

BIGINT, DOUBLE, INT, TIMESTAMP = (Kind(name) for name in ("bigint", "double", "int", "timestamp"))
TAGS = Kind("map", of=(STRING, STRING))

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


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
        empty = dict.fromkeys((field.name for field in self.of), None)

        def encode(rows: pa.RecordBatch) -> pa.BinaryArray:
            found = [self.write(empty | row) for row in rows.to_pylist(maps_as_pydicts="lossy")]
            return pa.array([text.encode() for text in found], pa.binary())

        return encode

    @abstractmethod
    def decode(self, values: pa.BinaryArray) -> Columns: ...

    @abstractmethod
    def write(self, row: Mapping[str, Any]) -> str:
        """Raises RequestError for a row that the format cannot represent."""

    def needed(self, row: Mapping[str, Any], name: str) -> Any:
        if row[name] is None:
            raise RequestError(f"{self.about.name} cannot write a row without `{name}`", "Set it, or drop the row.")
        return row[name]


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


def micros_of(instant: Any) -> int:
    """Of a datetime with a time zone."""
    found: int = pa.scalar(instant, pa.timestamp("us", "UTC")).value
    return found


def shown(number: float) -> str:
    """Without a point if it is whole."""
    return str(int(number)) if float(number).is_integer() and abs(number) < 1 << 53 else repr(float(number))


Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


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
