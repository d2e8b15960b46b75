"""Protocol Buffers: one message for each event, whose type is in a descriptor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from penstock.core.errors import RequestError
from penstock.core.kinds import INTEGERS, TEXTS, Fields, Kind, arrow_type
from penstock.core.plugins import needed
from penstock.spark.codecs.api import Columns, Decode, Encode, NotHere
from penstock.spark.codecs.arrow_texts import is_binary, is_text
from penstock.spark.codecs.by_json import JSON, ByJson, decoded_by_json, json_of
from penstock.spark.codecs.codec import CODECS, DATA
from penstock.spark.codecs.json_writer import is_json
from penstock.spark.codecs.packing import python_values
from penstock.spark.codecs.scalars import Misfit, number_or_name


class Protobuf(ByJson):
    """Names are those of the `.proto`, enums are the names of their values, and bytes are base64. A field without
    presence has its default if it is not in the message, and others are null.
    """

    about = CODECS["protobuf"]
    title = "Protocol Buffers"

    def reader(self) -> Callable[[bytes], bytes]:
        return self._reader(None)

    def _by_json(self, schema: Fields | None) -> Decode:
        decode, to_json = JSON.decoder(schema), self._reader(schema)
        return lambda values: decoded_by_json(values, to_json, decode, self.title)

    def _reader(self, wanted: Fields | None) -> Callable[[bytes], bytes]:
        """Of these fields alone: what others have is no reason to refuse a message."""
        message = self._message()
        errors: tuple[type[Exception], ...] = (
            *self._errors(),
            ValueError,
        )  # ValueError: a time beyond the years that its text has

        def read(value: bytes) -> bytes:
            try:
                return json_of(_plain(message.FromString(value), wanted))
            except errors as error:
                raise Misfit(f"is not a valid message {self.options.message}: {error}") from None

        return read

    def decoder(self, schema: Fields | None) -> Decode:
        """A batch of good messages without a detour by JSON, if the schema has the message's own types."""
        by_json = self._by_json(schema)
        message, errors = self._message(), self._errors()
        getters = None if schema is None else _getters(message.DESCRIPTOR, schema)
        if schema is None or getters is None:
            return by_json
        types = [arrow_type(field.kind) for field in schema]

        def decode(values: pa.BinaryArray) -> Columns:
            found: list[Any] = []
            failed: dict[int, str] = {}
            for row, value in enumerate(values.to_pylist()):
                try:
                    found.append(message.FromString(value))
                except errors as error:
                    failed[row] = f"is not a valid message {self.options.message}: {error}"
            try:
                arrays = [pa.array([*map(get, found)], kind) for get, kind in zip(getters, types, strict=True)]
            except _MISFITS:
                return by_json(values)
            is_complete = all(
                field.nullable or not array.null_count for field, array in zip(schema, arrays, strict=True)
            )
            return Columns(arrays, failed) if is_complete else by_json(values)

        return decode

    def encoder(self, columns: pa.Schema) -> Encode:
        """As `decoder`: JSON finds the reason for a row that does not fit."""
        by_json = super().encoder(columns)
        message, errors = self._message(), self._errors()
        is_whole = columns.names == [DATA] and pa.types.is_nested(columns[0].type)
        if is_whole or not _takes(message.DESCRIPTOR, [*columns]):
            return by_json

        def encode(rows: pa.RecordBatch) -> pa.BinaryArray:
            try:
                columns_of = dict(zip(rows.schema.names, map(python_values, rows.columns), strict=True))
                made = (
                    message(**dict(zip(columns_of, row, strict=True))) for row in zip(*columns_of.values(), strict=True)
                )
                return pa.array([one.SerializeToString(deterministic=True) for one in made], pa.binary())
            except (*_MISFITS, *errors):
                return by_json(rows)

        return encode

    def writer(self) -> Callable[[bytes], bytes]:
        message, parse, errors = self._message(), self._json().Parse, self._errors()

        def write(text: bytes) -> bytes:
            try:
                found: bytes = parse(text, message()).SerializeToString(deterministic=True)
            except errors as error:
                raise RequestError(f"a row does not fit the message {self.options.message}: {error}") from None
            return found

        return write

    def check(self) -> None:
        self._message()

    def _json(self) -> Any:
        return needed("google.protobuf.json_format", "the codec protobuf", "protobuf")

    def _errors(self) -> tuple[type[Exception], ...]:
        return (needed("google.protobuf.message", "the codec protobuf", "protobuf").Error, self._json().Error)

    def _message(self) -> Any:
        return _message_class(self.options.descriptor, self.options.message)


def _plain(message: Any, wanted: Fields | None) -> Any:
    """The message as plain values: of these fields, or of all."""
    if message.DESCRIPTOR.full_name in _TEXTS:
        return message.ToJsonString()
    kinds = None if wanted is None else {field.name: field.kind for field in wanted}
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if kinds is not None and field.name not in kinds:
            continue
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        inner = None if kinds is None else _members(kinds[field.name])
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of = field.message_type.fields_by_name["value"]
            found[field.name] = {_key(key): _value(of, each, inner) for key, each in value.items()}
        elif _is_repeated(field):
            found[field.name] = [_value(field, each, inner) for each in value]
        else:
            found[field.name] = _value(field, value, inner)
    return found


def _members(kind: Kind) -> Fields | None:
    """Those of the structs in it; None if there are none."""
    if kind.name == "struct":
        return kind.fields
    return _members(kind.of[-1]) if kind.of else None


# Messages whose fields have the types of the columns.

_MISFITS = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""What a value raises that does not fit into its column, or its field."""

_TIMESTAMP = "google.protobuf.Timestamp"
_STRING = 9
_KINDS: Mapping[int, tuple[str, ...]] = {
    1: ("double",),
    2: ("float", "double"),
    **dict.fromkeys((3, 4, 5, 6, 7, 13, 15, 16, 17, 18), (*INTEGERS,)),
    8: ("boolean",),
    _STRING: (*TEXTS,),
    12: ("binary",),
    14: (*TEXTS,),  # the name of an enum's value
}
"""Types of fields, by their numbers in `descriptor.proto`, and those of Spark that have the same values."""

_Get = Callable[[Any], Any]


def _getters(message: Any, fields: Fields) -> list[_Get] | None:
    """What takes the fields' values out of a message; None if a value has to be converted."""
    found = [_getter(message.fields_by_name.get(field.name), field.kind) for field in fields]
    return None if None in found else cast("list[_Get]", found)


def _getter(field: Any, kind: Kind) -> _Get | None:
    if field is None:
        return lambda message: None  # noqa: ARG005
    get = attrgetter(field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = _value_of(field.message_type.fields_by_name["value"], kind.of[1]) if kind.name == "map" else None
        return value and (lambda message: [(_key(key), value(one)) for key, one in get(message).items()])
    if _is_repeated(field):
        element = _value_of(field, kind.of[0]) if kind.name == "array" else None
        return element and (lambda message: [*map(element, get(message))])
    convert = _value_of(field, kind)
    if convert is None or (convert is _same and not field.has_presence):
        return convert and get
    if not field.has_presence:
        return lambda message: convert(get(message))
    return lambda message: convert(get(message)) if message.HasField(field.name) else None


def _same(value: Any) -> Any:
    return value


def _value_of(field: Any, kind: Kind) -> _Get | None:
    """From one value of a field to what Arrow takes; None if it has to be converted."""
    if field.message_type is not None:
        inner = _getters(field.message_type, kind.fields) if kind.name == "struct" and not _is_known(field) else None
        names = [member.name for member in kind.fields]
        if inner is None or not all(member.nullable for member in kind.fields):
            return None
        return lambda message: {name: get(message) for name, get in zip(names, inner, strict=True)}
    if kind.name not in _KINDS.get(field.type, ()):
        return None
    if field.enum_type is not None:
        names_by_number = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        return lambda number: names_by_number.get(number) or str(number)
    return _same


def _is_known(field: Any) -> bool:
    """Whether JSON has a form of its own for it."""
    return bool(field.message_type.full_name.startswith("google.protobuf."))


def _takes(message: Any, columns: Sequence[pa.Field]) -> bool:
    """Whether the message can be made of the columns' values as they are."""
    fields = [(message.fields_by_name.get(column.name), column) for column in columns]
    return all(field is not None and not is_json(column) and _fits(field, column.type) for field, column in fields)


def _fits(field: Any, kind: pa.DataType) -> bool:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        has_texts = pa.types.is_map(kind) and entry["key"].type == _STRING and is_text(kind.key_type)
        return has_texts and entry["value"].message_type is None and _holds(entry["value"], kind.item_type)
    if _is_repeated(field):
        return bool(pa.types.is_list(kind)) and not is_json(kind.value_field) and _holds(field, kind.value_type)
    return _holds(field, kind)


def _holds(field: Any, kind: pa.DataType) -> bool:
    if field.message_type is not None and field.message_type.full_name == _TIMESTAMP:
        return bool(pa.types.is_timestamp(kind)) and kind.tz is not None and kind.unit != "ns"
    if field.message_type is not None:
        is_struct = pa.types.is_struct(kind) and not _is_known(field)
        return is_struct and _takes(field.message_type, [kind.field(number) for number in range(kind.num_fields)])
    return any(fits(kind) for name, fits in _ARROW.items() if name in _KINDS.get(field.type, ()))


_ARROW: Mapping[str, Callable[[pa.DataType], bool]] = {
    "bigint": pa.types.is_integer,
    "float": pa.types.is_float32,
    "double": pa.types.is_float64,
    "boolean": pa.types.is_boolean,
    "string": is_text,
    "binary": is_binary,
}
"""By one of the types of `_KINDS`, whether a column has its values."""


_TEXTS = ("google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.FieldMask")
"""Messages that JSON has as texts."""


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _value(field: Any, value: Any, wanted: Fields | None) -> Any:
    if field.message_type is not None:
        return _plain(value, wanted)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return number_or_name(value) if isinstance(value, float) else value


@cache
def _message_class(path: str, name: str) -> Any:
    """Raises RequestError."""
    descriptors = needed("google.protobuf.descriptor_pb2", "the codec protobuf", "protobuf")
    pools = needed("google.protobuf.descriptor_pool", "the codec protobuf", "protobuf")
    factory = needed("google.protobuf.message_factory", "the codec protobuf", "protobuf")
    hint = "Write it with protoc --include_imports --descriptor_set_out=FILE."
    try:
        if Path(path).exists() and not Path(path).is_file():  # a device may never end
            raise OSError(None, "it is not a file")
        found = descriptors.FileDescriptorSet.FromString(Path(path).read_bytes())
        pool = pools.DescriptorPool()
        for file in found.file:
            pool.Add(file)
        return factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except FileNotFoundError:
        raise NotHere(f"the descriptor {path} cannot be read: there is no such file", hint) from None
    except OSError as error:
        raise RequestError(f"the descriptor {path} cannot be read: {error.strerror}", hint) from None
    except KeyError:
        raise RequestError(
            f"the descriptor {path} has no message {name}", "Write its full name, as in shop.Order."
        ) from None
    except Exception as error:  # the library raises its own error, TypeError and others for a broken descriptor
        raise RequestError(f"{path} is not a valid descriptor set: {error}", hint) from None
