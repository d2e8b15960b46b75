"""JSON: one document for each event, in UTF-8."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError
from penstock.core.kinds import INTEGERS, TEXTS, VARIANT, Field, Fields, Kind, arrow_type
from penstock.spark.codecs.api import Codec, Columns, Decode, Encode
from penstock.spark.codecs.arrow_texts import valid_texts
from penstock.spark.codecs.codec import CODECS, DATA
from penstock.spark.codecs.documents import Documents, number_type, row_type, without
from penstock.spark.codecs.json_writer import JsonWriter
from penstock.spark.codecs.scalars import (
    Misfit,
    day,
    decimal,
    from_base64,
    in_range,
    local_timestamp,
    single,
    special,
    timestamp,
)
from penstock.spark.codecs.variants import (
    BAD,
    FOUND_CHARS,
    LEVELS_MAX,
    NOT_JSON,
    TOO_DEEP,
    any_documents,
    is_deep,
    variant_text,
)


class Json(Codec):
    about = CODECS["json"]

    def fields(self, schema: Fields | None) -> Fields:
        return (Field(DATA, VARIANT),) if schema is None else checked(schema)

    def decoder(self, schema: Fields | None) -> Decode:
        if schema is None:
            return any_documents
        return JsonDocuments(checked(schema)).decode

    def encoder(self, columns: pa.Schema) -> Encode:
        return JsonWriter(columns).encode


def checked(schema: Fields) -> Fields:
    """Returns the schema. Raises RequestError for types that documents cannot have."""
    for field in schema:
        arrow_type(field.kind)
        _check_keys(field.name, field.kind)
    return schema


def _check_keys(name: str, kind: Kind) -> None:
    if kind.name == "map" and kind.of[0].name not in TEXTS:
        raise RequestError(f"`{name}` is {kind}, and keys of documents are strings", "Declare map<string, …>.")
    for part in kind.parts():
        _check_keys(name, part)


class JsonDocuments:
    """Decodes documents of a schema."""

    def __init__(self, schema: Fields) -> None:
        self._schema = schema
        decoder = msgspec.json.Decoder(row_type(schema, _json_type), float_hook=Decimal)
        self._documents = Documents(schema, decoder.decode, self.closely)

    def decode(self, values: pa.BinaryArray) -> Columns:
        documents = values.to_pylist()
        # msgspec does not look inside of the texts that it skips.
        failed = dict.fromkeys(valid_texts(values).bad, NOT_JSON)
        return without(documents, failed | _deep(values, documents), self._documents.columns)

    def closely(self, document: bytes) -> list[Any]:
        """The document's values as Arrow takes them. Raises Misfit."""
        try:
            members = _OBJECT(document)
        except msgspec.ValidationError:
            raise Misfit(f"is not an object, but {_shape(document.lstrip())}") from None
        except BAD:
            raise Misfit(NOT_JSON) from None
        return [_member(members, field, field.name) for field in self._schema]


def _deep(values: pa.BinaryArray, documents: Sequence[bytes]) -> dict[int, str]:
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    if longest <= 2 * LEVELS_MAX:
        return {}
    return {row: TOO_DEEP for row, document in enumerate(documents) if is_deep(document)}


def _json_type(kind: Kind) -> Any:
    match kind.name:
        case "binary":
            return bytes
        case "decimal":
            return Any  # numbers are exact by the decoder's hook; msgspec's own decimals take texts like "1_000", too
        case "timestamp":
            return str | int
        case "date" | "timestamp_ntz":
            return str
        case "variant":
            return msgspec.Raw
    return number_type(kind)


# Value by value, with the reason for one that does not fit.

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_LIST = msgspec.json.Decoder(list[msgspec.Raw]).decode
_TEXT = msgspec.json.Decoder(str).decode

_SHAPES = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


def _shape(value: bytes) -> str:
    return _SHAPES.get(chr(value[0]), "number")


def _member(members: dict[str, msgspec.Raw], field: Field, path: str) -> Any:
    raw = members.get(field.name)
    found = None if raw is None else _value(bytes(raw), field.kind, path)
    if found is None and not field.nullable:
        raise Misfit(f"has the wrong type at `{path}`: expected {field.kind}, found nothing")
    return found


def _value(raw: bytes, kind: Kind, path: str) -> Any:
    """None for null. Raises Misfit, which names the path."""
    if raw == b"null":
        return raw.decode() if kind.name == "variant" else None
    shape = _shape(raw)
    try:
        match kind.name, shape:
            case "array", "array":
                return [_value(bytes(one), kind.of[0], f"{path}[{at}]") for at, one in enumerate(_LIST(raw))]
            case "map", "object":
                return {key: _value(bytes(one), kind.of[1], f"{path}.{key}") for key, one in _OBJECT(raw).items()}
            case "struct", "object":
                members = _OBJECT(raw)
                return {field.name: _member(members, field, f"{path}.{field.name}") for field in kind.fields}
        return _leaf(raw, shape, kind)
    except Misfit as error:
        raise error if kind.name != "variant" else Misfit(f"{error}, at `{path}`") from None
    except (*BAD, ValueError):
        shown = _TEXT(raw) if shape == "string" else raw.decode()
        raise Misfit(
            f"has the wrong type at `{path}`: expected {kind}, found {shape} {shown[:FOUND_CHARS]}".rstrip()
        ) from None


def _leaf(raw: bytes, shape: str, kind: Kind) -> Any:
    """Raises ValueError."""
    if kind.name in TEXTS:
        return _TEXT(raw) if shape == "string" else raw.decode()
    if kind.name == "variant":
        return variant_text(raw)
    if shape == "string":
        return _from_text(_TEXT(raw), kind)
    if shape == "boolean" and kind.name == "boolean":
        return raw == b"true"
    if shape == "number":
        return _from_number(raw.decode(), kind)
    raise ValueError(shape)


def _from_text(text: str, kind: Kind) -> Any:
    match kind.name:
        case "double" | "float":
            return special(text)
        case "decimal":
            return decimal(text, *kind.numbers)
        case "timestamp":
            return timestamp(text)
        case "timestamp_ntz":
            return local_timestamp(text)
        case "date":
            return day(text)
        case "binary":
            return from_base64(text)
    raise ValueError(text)


def _from_number(text: str, kind: Kind) -> Any:
    if kind.name in INTEGERS:
        return in_range(int(text), INTEGERS[kind.name])
    match kind.name:
        case "double" | "float":
            number = float(text)
            if math.isinf(number):
                raise ValueError("out of range")
            return number if kind.name == "double" else single(number)
        case "decimal":
            return decimal(text, *kind.numbers)
        case "timestamp":
            return timestamp(int(text))
    raise ValueError(text)
