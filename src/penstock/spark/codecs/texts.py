"""Codecs that take the value as it is: text, and bytes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError
from penstock.core.kinds import STRING, Field, Fields
from penstock.spark.codecs.api import Codec, Columns, Decode, Encode
from penstock.spark.codecs.arrow_texts import valid_texts
from penstock.spark.codecs.codec import CODECS, TEXT


class String(Codec):
    about = CODECS["string"]

    def fields(self, schema: Fields | None) -> Fields:  # noqa: ARG002  it takes none
        return (Field(TEXT, STRING),)

    def decoder(self, schema: Fields | None) -> Decode:  # noqa: ARG002
        return _texts

    def encoder(self, columns: pa.Schema) -> Encode:
        if len(columns) != 1 or not pa.types.is_string(columns[0].type):
            raise RequestError(
                f"string writes one text column, but the rows have: {', '.join(columns.names)}",
                f"Add a column `{TEXT}` (string), and drop the others.",
            )
        return lambda rows: pc.fill_null(rows.column(0).cast(pa.binary()), b"")


class Binary(Codec):
    about = CODECS["binary"]

    def fields(self, schema: Fields | None) -> Fields:  # noqa: ARG002
        return ()

    def decoder(self, schema: Fields | None) -> Decode:  # noqa: ARG002
        return lambda values: Columns([])  # noqa: ARG005

    def encoder(self, columns: pa.Schema) -> Encode:
        raise RequestError(
            f"binary writes bytes only, and cannot write {', '.join(columns.names)}",
            "Add a column `value`, or use another codec for the connector.",
        )


class Null(Codec):
    about = CODECS["null"]

    def fields(self, schema: Fields | None) -> Fields:  # noqa: ARG002
        return ()

    def decoder(self, schema: Fields | None) -> Decode:  # noqa: ARG002
        return lambda values: Columns([])  # noqa: ARG005

    def encoder(self, columns: pa.Schema) -> Encode:  # noqa: ARG002
        return lambda rows: pa.array([b""] * len(rows), pa.binary())


def _texts(values: pa.BinaryArray) -> Columns:
    found = valid_texts(values)
    return Columns([found.texts], dict.fromkeys(found.bad, "is not valid UTF-8"))
