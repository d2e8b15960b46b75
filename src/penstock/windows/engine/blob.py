"""Tables as bytes: a header, then an Arrow stream for each table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import pyarrow as pa

_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Blob:
    """Tables by name, and facts about them."""

    tables: Mapping[str, pa.Table]
    facts: Mapping[str, Any]


def pack(tables: Mapping[str, pa.Table], facts: Mapping[str, Any], compression: str | None = None) -> bytes:
    """As `unpack` reads it."""
    header = msgpack.packb({"tables": list(tables), "facts": dict(facts)})
    sink = pa.BufferOutputStream()
    sink.write(len(header).to_bytes(_LENGTH_BYTES, "little"))
    sink.write(header)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    for table in tables.values():
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def unpack(data: bytes) -> Blob:
    """Without copying: the tables refer to `data` unless they were compressed."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    header = msgpack.unpackb(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
    reader = pa.BufferReader(data)
    reader.seek(_LENGTH_BYTES + length)
    tables = {}
    for name in header["tables"]:
        with pa.ipc.open_stream(reader) as stream:
            tables[name] = stream.read_all()
    return Blob(tables, header["facts"])
