"""Avro: one value for each event, by a schema that is given here, or whose number in a registry precedes the value."""

from __future__ import annotations

import io
import json
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pyarrow as pa

from penstock.connectors.secrets import NoSecret, resolve
from penstock.core.errors import PenstockError, RequestError
from penstock.core.kinds import STRING, Field, Fields, Kind, arrow_type
from penstock.core.plugins import needed
from penstock.spark.codecs.api import Codec, Columns, Decode, Encode
from penstock.spark.codecs.by_json import JSON, decoded_by_json, json_of
from penstock.spark.codecs.codec import CODECS, DATA
from penstock.spark.codecs.codec_options import AvroOptions
from penstock.spark.codecs.documents import without
from penstock.spark.codecs.json_writer import is_json
from penstock.spark.codecs.packing import python_values
from penstock.spark.codecs.scalars import Misfit

_MAGIC = b"\x00"
_HEADER_BYTES = 5

_ANSWER_SECONDS = 10.0
"""How long a registry may take. Then the task fails, and Spark tries it again."""

_MISSING_SECONDS = 60.0
"""How long a schema that the registry does not have is not asked for again: events with its number may be many."""

_MISSING_MAX = 10_000
"""Numbers that are remembered as missing: any event can have another one."""

_REFERENCES_MAX = 1000
"""Schemas that one schema may refer to, directly or through others: what refers to itself would never end."""

_PLAIN = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "enum": "string",
    "bytes": "binary",
    "fixed": "binary",
}
_LOGICAL: dict[tuple[str, str | None], str] = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
}

_HINT = "Add a schema to the connector: it is then decoded like JSON."


class Avro(Codec):
    """Columns are those of the Avro schema if it is a record that Spark has types for; with a registry alone, or a
    schema in DDL, it is decoded like JSON.
    """

    about = CODECS["avro"]

    def fields(self, schema: Fields | None) -> Fields:
        own = self._own_fields() if schema is None else None
        return own or JSON.fields(schema)

    def decoder(self, schema: Fields | None) -> Decode:
        read, own = self._reader(), self._own_fields() if schema is None else None
        if own is not None:
            return lambda values: _columns(values, read, own)
        decode = JSON.decoder(schema)
        return lambda values: decoded_by_json(values, lambda value: json_of(read(value)), decode, "Avro")

    def encoder(self, columns: pa.Schema) -> Encode:
        write = self._writer()
        names, is_whole = columns.names, columns.names == [DATA]

        def encode(rows: pa.RecordBatch) -> pa.BinaryArray:
            values = [_python_values(*pair) for pair in zip(rows.columns, columns, strict=True)]
            given = values[0] if is_whole else [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
            return pa.array([*map(write, given)], pa.binary())

        return encode

    def check(self) -> None:
        _library()
        if self.options.avro_schema is not None:
            _parsed(self.options.avro_schema)
        if self.options.registry is not None:
            Registry(self.options)  # only its address

    def _own_fields(self) -> Fields | None:
        if self.options.avro_schema is None:
            return None
        schema = _parsed(self.options.avro_schema)
        if not isinstance(schema, dict) or schema.get("type") != "record":
            return None
        return _fields(schema, {})

    def _reader(self) -> Callable[[bytes], Any]:
        library, own = _library(), None if self.options.avro_schema is None else _parsed(self.options.avro_schema)
        registry = None if self.options.registry is None else Registry(self.options)

        def read(value: bytes) -> Any:
            stream = io.BytesIO(value)
            written = own
            if registry is not None:
                if len(value) < _HEADER_BYTES or not value.startswith(_MAGIC):
                    raise Misfit("does not begin with the number of a schema")
                stream.seek(_HEADER_BYTES)
                written = registry.schema(int.from_bytes(value[1:_HEADER_BYTES], "big"))
            try:
                found = library.schemaless_reader(stream, written, own)
            except Exception as error:  # bytes that are not Avro make the library raise anything
                raise Misfit(f"is not valid Avro: {type(error).__name__}") from None
            if stream.tell() != len(value):
                raise Misfit(f"has {len(value) - stream.tell()} bytes after its Avro value")
            return found

        return read

    def _writer(self) -> Callable[[Any], bytes]:
        library, options = _library(), self.options
        if options.avro_schema is None:
            raise RequestError("avro cannot write rows without a schema", "Add avro_schema to codec_config.")
        schema, head = _parsed(options.avro_schema), b""
        if options.registry is not None:
            if options.subject is None:
                raise RequestError("avro cannot write with a registry alone", "Add subject to codec_config.")
            number = Registry(options).number(options.subject, options.avro_schema)
            head = _MAGIC + number.to_bytes(4, "big")

        def write(row: Any) -> bytes:
            stream = io.BytesIO()
            stream.write(head)
            try:
                library.schemaless_writer(stream, schema, row)
            except Exception as error:  # as above
                raise RequestError(f"a row does not fit the Avro schema: {error}") from None
            return stream.getvalue()

        return write


def _python_values(column: pa.Array, field: pa.Field) -> list[Any]:
    if is_json(field):
        return [None if text is None else json.loads(text) for text in column.to_pylist()]
    return python_values(column)


def _columns(values: pa.BinaryArray, read: Callable[[bytes], Any], fields: Fields) -> Columns:
    rows: list[Any] = []
    failed: dict[int, str] = {}
    for number, value in enumerate(values.to_pylist()):
        try:
            rows.append(read(value))
        except Misfit as error:
            rows.append(None)
            failed[number] = str(error)
    return without(rows, failed, lambda good: _arrays(good, fields))


def _arrays(rows: Sequence[Any], fields: Fields) -> Columns:
    """Columns at once; if a value does not fit (a time beyond the years of Spark), row by row."""
    try:
        return Columns([pa.array([row[field.name] for row in rows], arrow_type(field.kind)) for field in fields])
    except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        if len(rows) == 1:
            empty = [pa.array([], arrow_type(field.kind)) for field in fields]
            return Columns(empty, {0: f"has a value that its column cannot have: {error}"})
    parts = [_arrays([row], fields) for row in rows]
    arrays = [pa.concat_arrays([part.arrays[at] for part in parts]) for at in range(len(fields))]
    return Columns(arrays, {row: part.failed[0] for row, part in enumerate(parts) if part.failed})


def _library() -> Any:
    return needed("fastavro", "the codec avro", "avro")


@cache
def _parsed(text: str) -> Any:
    """Raises RequestError."""
    try:
        return _library().parse_schema(json.loads(text))
    except PenstockError:
        raise
    except Exception as error:  # a wrong schema makes the library raise anything
        raise RequestError(f"avro_schema is not a valid Avro schema: {error}", "Write it as JSON.") from None


def _parsed_beside(text: str, named: dict[str, Any]) -> Any:
    """A schema that may use these names, to which its own are added. Raises RequestError."""
    try:
        parsed = _library().parse_schema(json.loads(text), named_schemas=named)
        return _library().parse_schema(_whole(parsed, named, set()))
    except PenstockError:
        raise
    except Exception as error:  # as above
        raise RequestError(f"it is not a valid Avro schema: {error}") from None


def _whole(schema: Any, named: Mapping[str, Any], defined: set[str]) -> Any:
    """With the definition of each name where it is used first."""
    if isinstance(schema, list):
        return [_whole(one, named, defined) for one in schema]
    if isinstance(schema, str):
        return schema if schema in defined or schema not in named else _whole(named[schema], named, defined)
    found = {key: value for key, value in schema.items() if not key.startswith("__")}
    if "name" in found:
        defined.add(found["name"])
    if "fields" in found:
        fields = found["fields"]
        return found | {"fields": [{**one, "type": _whole(one["type"], named, defined)} for one in fields]}
    inner = {key: _whole(found[key], named, defined) for key in ("items", "values") if key in found}
    return found | inner


def _fields(record: dict[str, Any], named: dict[str, Any]) -> Fields:
    """`named`: the types that have a name; None while they are looked at."""
    named[record["name"]] = None
    found = tuple(Field(one["name"], *_kind(one["type"], named)) for one in record["fields"])
    named[record["name"]] = record
    return found


def _kind(schema: Any, named: dict[str, Any]) -> tuple[Kind, bool]:
    """The type, and whether it is nullable. Raises RequestError for a type that Spark has not."""
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise _no_type(schema)
        return _kind(others[0], named)[0], len(others) < len(schema)
    if isinstance(schema, str):
        if schema in named and named[schema] is None:
            raise RequestError(f"the Avro record {schema} contains itself, which no type of Spark can", _HINT)
        return _kind(named[schema], named) if schema in named else (_plain(schema, {}), False)
    match schema["type"]:
        case "record":
            return Kind("struct", fields=_fields(schema, named)), False
        case "array":
            return Kind("array", of=(_kind(schema["items"], named)[0],)), False
        case "map":
            return Kind("map", of=(STRING, _kind(schema["values"], named)[0])), False
        case "enum" | "fixed":
            named[schema["name"]] = schema
    return (_plain(schema["type"], schema), False) if isinstance(schema["type"], str) else _kind(schema["type"], named)


def _plain(name: str, schema: dict[str, Any]) -> Kind:
    logical = schema.get("logicalType")
    if logical == "decimal" and name in ("bytes", "fixed"):
        return Kind("decimal", (schema["precision"], schema.get("scale", 0)))
    if (name, logical) in _LOGICAL:
        return Kind(_LOGICAL[name, logical])
    if name not in _PLAIN or logical in ("time-millis", "time-micros", "uuid"):
        raise _no_type(schema or name)
    return Kind(_PLAIN[name])


def _no_type(schema: Any) -> RequestError:
    return RequestError(
        f"Spark has no type for {json.dumps(schema)[:100]} of the Avro schema",
        _HINT,
    )


class Registry:
    """A schema registry with Confluent's HTTP interface. A schema never changes: it is asked for once."""

    _schemas: dict[tuple[str, int], Any] = {}  # noqa: RUF012  of the process
    _missing: dict[tuple[str, int], tuple[float, str]] = {}  # noqa: RUF012  until when, and the reason
    _lock = threading.Lock()

    def __init__(self, options: AvroOptions) -> None:
        address = options.registry or ""
        if not address.startswith(("http://", "https://")):
            raise RequestError(f"{address} is not the address of a schema registry", "Write http://HOST:PORT.")
        self._address = address.rstrip("/")
        self._options = options

    def schema(self, number: int) -> Any:
        """Raises Misfit if there is none, or it is not Avro, and PenstockError if the registry does not answer."""
        key = (self._address, number)
        with self._lock:
            if key not in self._schemas:
                until, reason = self._missing.get(key, (0.0, ""))
                if time.monotonic() < until:
                    raise Misfit(reason)
                try:
                    self._schemas[key] = self._found(number)
                except Misfit as error:
                    self._remember_missing(key, str(error))
                    raise
            return self._schemas[key]

    def _found(self, number: int) -> Any:
        answer = self._asked(f"/schemas/ids/{number}")
        if answer is None:
            raise Misfit(f"has the schema {number}, which the registry does not have")
        named: dict[str, Any] = {}
        try:
            return self._parsed_with_references(answer, named, [])
        except Misfit:
            raise
        except (RequestError, KeyError, TypeError, ValueError, RecursionError):
            raise Misfit(f"has the schema {number}, which is not a valid Avro schema in the registry") from None

    def _parsed_with_references(
        self, answer: Mapping[str, Any], named: dict[str, Any], seen: list[tuple[str, int]]
    ) -> Any:
        """Schemas that it refers to are parsed before it, each once: their names are in `named`. Raises Misfit, and
        what `_found` calls not valid.
        """
        for reference in answer.get("references") or ():
            place = (str(reference["subject"]), int(reference["version"]))
            if place in seen:
                continue
            if len(seen) >= _REFERENCES_MAX:
                raise ValueError("too many references")
            seen.append(place)
            subject, version = place
            found = self._asked(f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true")
            if found is None:
                raise Misfit(
                    f"has a schema that refers to version {version} of {subject}, which the registry does not have"
                )
            self._parsed_with_references(found, named, seen)
        return _parsed_beside(answer["schema"], named)

    def _remember_missing(self, key: tuple[str, int], reason: str) -> None:
        if len(self._missing) >= _MISSING_MAX:
            self._missing.clear()
        self._missing[key] = (time.monotonic() + _MISSING_SECONDS, reason)

    def number(self, subject: str, schema: str) -> int:
        """That of the schema, which is registered if it is new. Raises PenstockError."""
        found = self._asked(f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})
        if found is None:
            raise RequestError(f"the registry {self._address} rejects the schema of {subject}")
        return int(found["id"])

    def _asked(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._address + path, data, {"Content-Type": "application/vnd.schemaregistry.v1+json"})  # noqa: S310
        self._authorize(request)
        try:
            with urlopen(request, timeout=_ANSWER_SECONDS, context=self._context()) as answer:  # noqa: S310
                return json.loads(answer.read())
        except HTTPError as error:
            error.close()
            if error.code in (404, 422):
                return None
            if error.code in (401, 403):
                raise PenstockError(
                    f"the registry {self._address} answers {error.code}: it does not accept the credentials",
                    "Set registry_user and registry_password, or registry_token, in codec_config.",
                ) from None
            raise PenstockError(f"the registry {self._address} answers {error.code}") from None
        except (URLError, OSError, ValueError) as error:
            raise PenstockError(f"the registry {self._address} cannot be reached: {error}") from None

    def _authorize(self, request: Request) -> None:
        """The header does not follow a redirection: the other server may be anybody's. Raises PenstockError."""
        options = self._options
        if options.registry_password is not None:
            pair = f"{options.registry_user}:{self._secret(options.registry_password)}"
            request.add_unredirected_header("Authorization", f"Basic {b64encode(pair.encode()).decode()}")
        elif options.registry_token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self._secret(options.registry_token).strip()}")

    def _secret(self, reference: str) -> str:
        """Not a RequestError: the next attempt of the task may find it."""
        try:
            return str(resolve(reference))
        except NoSecret as error:
            reason = str(error).replace("of the worker", "of this task")
            hint = "Set the variable, or put the file, where Spark's tasks run."
            raise PenstockError(f"the registry {self._address} needs credentials: {reason}", hint) from None

    def _context(self) -> ssl.SSLContext | None:
        path = self._options.registry_ca
        if path is None:
            return None
        try:
            return ssl.create_default_context(cafile=path)
        except OSError as error:
            raise RequestError(f"registry_ca {path} cannot be used: {error}", "It must be a PEM file.") from None
