"""A dialect is a table: type number → the message's class and its fields, in the order of the wire."""

import struct
from collections.abc import Mapping
from enum import Enum
from typing import Any

from penstock.core.errors import LimitExceeded, ProtocolError, RequestError
from penstock.core.types import Buffer
from penstock.protocol.segment.frame import pack_header
from penstock.protocol.segment.messages import Message, Reply, Request
from penstock.protocol.segment.primitives import Field

JOIN_BELOW = 4096
"""Parts smaller than this are copied together: a copy is cheaper than one more buffer on its way to the socket."""


class Role(Enum):
    """Which side we are: a server takes requests, a client replies."""

    SERVER = "server"
    CLIENT = "client"


class Layout:
    """How one message lies in its payload."""

    __slots__ = ("fields", "message")

    def __init__(self, message: type[Message], *fields: Field) -> None:
        self.message = message
        self.fields = fields

    def encode(self, message: Message) -> list[Buffer]:
        parts: list[Buffer] = []
        for field in self.fields:
            try:
                field.write(message, parts)
            except struct.error as error:
                raise RequestError(f"{type(message).__name__}: {field.name}: {error}") from None
            except RequestError as error:
                raise type(error)(f"{type(message).__name__}: {field.name}: {error}", error.hint) from None
        return parts

    def decode(self, payload: memoryview) -> tuple[Message, int]:
        """The message, and how many bytes follow its last field."""
        values: dict[str, Any] = {}
        size = len(payload)
        at = 0
        for field in self.fields:
            if field.optional and size - at < field.size_min:
                break
            try:
                at = field.read(payload, at, values)
            except ProtocolError as error:
                raise ProtocolError(f"{field.name}: {error}") from None
        return self.message(**values), size - at


class Dialect:
    """Messages to bytes and back. `grows`: bytes after a message's last field are a later version's, and skipped."""

    def __init__(self, name: str, table: Mapping[int, Layout], *, grows: bool) -> None:
        self.name = name
        self.table = table
        self._grows = grows
        self._kinds = {layout.message: kind for kind, layout in table.items()}

    def __repr__(self) -> str:
        return f"<the {self.name} dialect>"

    def encode(self, message: Message) -> bytes:
        """The whole message, header included. RequestError when a value does not fit its field."""
        return b"".join(self._encode(message))

    def encode_parts(self, message: Message) -> list[Buffer]:
        """The same bytes as `encode`, in a few buffers: a message's data is not copied, unless it is small."""
        return _join_small(self._encode(message))

    def _encode(self, message: Message) -> list[Buffer]:
        kind = self._kinds.get(type(message))
        if kind is None:
            raise RequestError(f"the {self.name} dialect has no {type(message).__name__}")
        parts = self.table[kind].encode(message)
        try:
            return [pack_header(kind, sum(map(len, parts))), *parts]
        except LimitExceeded as error:
            raise LimitExceeded(f"{type(message).__name__}: {error}", error.hint) from None

    def decode(self, kind: int, payload: memoryview) -> Message:
        """The message of this type and payload. ProtocolError, naming both, for whatever is wrong with it."""
        layout = self._layout(kind)
        try:
            message, left = layout.decode(payload)
        except ProtocolError as error:
            raise ProtocolError(f"{self.describe(kind)}: {error}") from None
        if left and not self._grows:
            raise ProtocolError(f"{self.describe(kind)}: {left} bytes after the last field")
        return message

    def check_receiver(self, kind: int, role: Role) -> None:
        """ProtocolError when messages of this type are unknown, or are not for this side."""
        wrong: type[Message] = Reply if role is Role.SERVER else Request
        if issubclass(self._layout(kind).message, wrong):
            raise ProtocolError(f"{self.describe(kind)}: a {wrong.__name__.lower()}, sent to a {role.value}")

    def _layout(self, kind: int) -> Layout:
        layout = self.table.get(kind)
        if layout is None:
            raise ProtocolError(f"{self.describe(kind)}: the {self.name} dialect has no such message")
        return layout

    def describe(self, kind: int) -> str:
        """A type in words, for errors."""
        layout = self.table.get(kind)
        return f"type {kind}" if layout is None else f"{layout.message.__name__} (type {kind})"


def _join_small(parts: list[Buffer]) -> list[Buffer]:
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < JOIN_BELOW:
            small.append(part)
            continue
        joined += (b"".join(small), part)
        small = []
    return [*joined, b"".join(small)] if small else joined
