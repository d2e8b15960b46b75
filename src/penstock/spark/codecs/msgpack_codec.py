"""MessagePack: one value for each event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.kinds import VARIANT, Field, Fields, Kind
from penstock.spark.codecs.api import Codec, Columns, Decode, Encode
from penstock.spark.codecs.codec import CODECS, DATA
from penstock.spark.codecs.documents import Documents, number_type, row_type, without
from penstock.spark.codecs.json_codec import JsonDocuments, checked
from penstock.spark.codecs.packing import Packing, as_json
from penstock.spark.codecs.scalars import Misfit
from penstock.spark.codecs.variants import any_documents

_NOT_MSGPACK = "is not valid MessagePack"


class MessagePack(Codec):
    """What JSON can represent is decoded as the same JSON would be. Bytes are bytes, and timestamps are instants."""

    about = CODECS["msgpack"]

    def fields(self, schema: Fields | None) -> Fields:
        return (Field(DATA, VARIANT),) if schema is None else checked(schema)

    def decoder(self, schema: Fields | None) -> Decode:
        if schema is None:
            return lambda values: _by_json(values, any_documents)
        documents = JsonDocuments(checked(schema))
        if any(field.kind.holds("variant") for field in schema):
            return lambda values: _by_json(values, documents.decode)
        return _Packed(schema, documents).decode

    def encoder(self, columns: pa.Schema) -> Encode:
        return Packing(columns).encode


class _Packed:
    def __init__(self, schema: Fields, documents: JsonDocuments) -> None:
        self._as_json = documents
        decode = msgspec.msgpack.Decoder(row_type(schema, _packed_type)).decode
        self._documents = Documents(schema, decode, self._closely)

    def decode(self, values: pa.BinaryArray) -> Columns:
        return self._documents.columns(values.to_pylist())

    def _closely(self, document: bytes) -> list[Any]:
        text = as_json(document)
        if text is None:
            raise Misfit(_NOT_MSGPACK)
        return self._as_json.closely(text.encode())


def _packed_type(kind: Kind) -> Any:
    match kind.name:
        case "binary":
            return bytes
        case "decimal" | "timestamp":
            return Any  # a text or a number, or an instant, which `column` distinguishes
        case "date" | "timestamp_ntz":
            return str
    return number_type(kind)


def _by_json(values: pa.BinaryArray, decode: Decode) -> Columns:
    """For what only JSON can express: VARIANT is parsed from it."""
    texts = [as_json(value) for value in values.to_pylist()]
    failed = {row: _NOT_MSGPACK for row, text in enumerate(texts) if text is None}

    def columns(given: Sequence[str | None]) -> Columns:
        found = decode(pa.array(given, pa.string()).cast(pa.binary()))
        return Columns(
            found.arrays, {row: reason.replace("JSON", "MessagePack") for row, reason in found.failed.items()}
        )

    return without(texts, failed, columns)
