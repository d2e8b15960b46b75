"""Protocol Buffers: one message for each event, whose type is in a descriptor."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from penstock.core.errors import RequestError
from penstock.core.plugins import needed
from penstock.spark.codecs.api import NotHere
from penstock.spark.codecs.by_json import ByJson, json_of, number_or_name
from penstock.spark.codecs.codec import CODECS
from penstock.spark.codecs.scalars import Misfit


class Protobuf(ByJson):
    """Names are those of the `.proto`, enums are the names of their values, and bytes are base64. A field without
    presence has its default if it is not in the message, and others are null.
    """

    about = CODECS["protobuf"]
    title = "Protocol Buffers"

    def reader(self) -> Callable[[bytes], bytes]:
        message = self._message()
        errors: tuple[type[Exception], ...] = (
            *self._errors(),
            ValueError,
        )  # ValueError: a time beyond the years that its text has

        def read(value: bytes) -> bytes:
            try:
                return json_of(_plain(message.FromString(value)))
            except errors as error:
                raise Misfit(f"is not a valid message {self.options.message}: {error}") from None

        return read

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


def _plain(message: Any) -> Any:
    """The message as plain values."""
    if message.DESCRIPTOR.full_name in _TEXTS:
        return message.ToJsonString()
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of = field.message_type.fields_by_name["value"]
            found[field.name] = {_key(key): _value(of, each) for key, each in value.items()}
        elif _is_repeated(field):
            found[field.name] = [_value(field, each) for each in value]
        else:
            found[field.name] = _value(field, value)
    return found


_TEXTS = ("google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.FieldMask")
"""Messages that JSON has as texts."""


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _plain(value)
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
