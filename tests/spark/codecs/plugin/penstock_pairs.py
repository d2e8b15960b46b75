"""A codec of another package: `name=value` pairs, separated by semicolons. All columns are texts."""

import pyarrow as pa

from penstock.core.errors import RequestError
from penstock.core.kinds import STRING, Fields
from penstock.spark.codecs.api import Codec, Columns, Decode, Encode, check_decoded
from penstock.spark.codecs.codec import About


class Pairs(Codec):
    about = About("pairs", "Pairs of names and values.", "", ("text/x-pairs",))

    def fields(self, schema: Fields | None) -> Fields:
        check_decoded(self, schema)
        assert schema is not None
        if any(field.kind != STRING for field in schema):
            raise RequestError("pairs have texts alone", "Declare all columns as STRING.")
        return schema

    def decoder(self, schema: Fields | None) -> Decode:
        names = [field.name for field in self.fields(schema)]
        return lambda values: _columns(values.to_pylist(), names)

    def encoder(self, columns: pa.Schema) -> Encode:
        def encode(rows: pa.RecordBatch) -> pa.BinaryArray:
            return pa.array([_written(row) for row in rows.to_pylist()], pa.binary())

        return encode


def _columns(values: list[bytes], names: list[str]) -> Columns:
    rows: list[dict[str, str]] = []
    failed: dict[int, str] = {}
    for number, value in enumerate(values):
        try:
            pairs = [pair.split("=") for pair in value.decode().split(";")]
            rows.append(dict(pairs))  # ValueError unless each has two parts
        except ValueError:
            failed[number] = "is not a list of pairs"
    return Columns([pa.array([row.get(name) for row in rows], pa.string()) for name in names], failed)


def _written(row: dict[str, str | None]) -> bytes:
    return ";".join(f"{name}={text}" for name, text in row.items() if text is not None).encode()
