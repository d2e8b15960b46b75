"""The fields that only messages about tables have: lists of keys, entries and versions.

A key is `i32 length of what follows · i32 length · bytes · i64 version`, a value `i32 length of what follows · i32
length · bytes`.
"""

from abc import abstractmethod
from struct import Struct
from typing import Any

from penstock.core.errors import LimitExceeded, ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.segment.primitives import Field, end_of
from penstock.protocol.segment.table_messages import TableEntry, TableKey

TABLE_ENTRIES_MAX = 4096
"""Keys or entries in one message: as objects they are far larger than on the wire."""

_I32 = Struct(">i")
_I64 = Struct(">q")
_LENGTHS = Struct(">ii")


def _key(key: Buffer, version: int) -> tuple[Buffer, ...]:
    size = _I32.size + len(key) + _I64.size
    return _LENGTHS.pack(size, len(key)), key, _I64.pack(version)


def _value(value: Buffer) -> tuple[Buffer, ...]:
    return _LENGTHS.pack(_I32.size + len(value), len(value)), value


def _read_bytes(payload: memoryview, at: int) -> tuple[bytes, int]:
    """They are kept for long, so they are copied. The length of what follows is redundant, and not looked at."""
    start = end_of(payload, at, _LENGTHS.size)
    end = end_of(payload, start, _LENGTHS.unpack_from(payload, at)[1])
    return bytes(payload[start:end]), end


def _read_key(payload: memoryview, at: int) -> tuple[TableKey, int]:
    key, at = _read_bytes(payload, at)
    end = end_of(payload, at, _I64.size)
    return TableKey(key, _I64.unpack_from(payload, at)[0]), end


class _List(Field):
    """i32 count, and as many."""

    __slots__ = ()

    def write(self, message: Any, parts: list[Buffer]) -> None:
        values = getattr(message, self.name)
        if len(values) > TABLE_ENTRIES_MAX:
            raise LimitExceeded(f"{len(values)} of them are over the limit of {TABLE_ENTRIES_MAX}")
        parts.append(_I32.pack(len(values)))
        for value in values:
            parts += self._write_one(value)

    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        at, start = end_of(payload, at, _I32.size), at
        count = _I32.unpack_from(payload, start)[0]
        if not 0 <= count <= TABLE_ENTRIES_MAX:
            raise ProtocolError(f"{count} of them are over the limit of {TABLE_ENTRIES_MAX}")
        found = []
        for _ in range(count):
            one, at = self._read_one(payload, at)
            found.append(one)
        values[self.name] = tuple(found)
        return at

    @abstractmethod
    def _write_one(self, value: Any) -> tuple[Buffer, ...]: ...

    @abstractmethod
    def _read_one(self, payload: memoryview, at: int) -> tuple[Any, int]: ...


class TableKeys(_List):
    __slots__ = ()

    def _write_one(self, value: TableKey) -> tuple[Buffer, ...]:
        return _key(*value)

    def _read_one(self, payload: memoryview, at: int) -> tuple[TableKey, int]:
        return _read_key(payload, at)


class TableEntries(_List):
    __slots__ = ()

    def _write_one(self, value: TableEntry) -> tuple[Buffer, ...]:
        return (*_key(value.key, value.version), *_value(value.value))

    def _read_one(self, payload: memoryview, at: int) -> tuple[TableEntry, int]:
        key, at = _read_key(payload, at)
        value, at = _read_bytes(payload, at)
        return TableEntry(key.key, key.version, value), at


class Versions(_List):
    __slots__ = ()

    def _write_one(self, value: int) -> tuple[Buffer, ...]:
        return (_I64.pack(value),)

    def _read_one(self, payload: memoryview, at: int) -> tuple[int, int]:
        end = end_of(payload, at, _I64.size)
        return _I64.unpack_from(payload, at)[0], end
