"""The work of `script/bench connectors`: the same events through a codec or an interceptor, and through the plain
library that a program would use for it.

Both do the same. Of a codec's events, both make the same Arrow columns, which is checked, and an event that cannot be
decoded fails alone, with its reason; of rows, both make events that are decoded into the same rows. A contender is
what one would write by hand: the library's call for each event, its values as tuples, and `pa.array` for each column;
and `to_pylist`, with the library's call for each row. An interceptor's stream arrives in pieces, and its records are
bytes.
"""

from __future__ import annotations

import base64
import bz2
import csv
import gzip
import io
import json
import lzma
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import fastavro
import msgpack
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf import descriptor_pb2, message_factory

from penstock.connectors.registry import make_chains
from penstock.core.ddl import parse_ddl
from penstock.core.kinds import arrow_type
from penstock.protocol.api.deployment import InterceptorSpec
from penstock.spark.codecs.api import Decode
from penstock.spark.codecs.codec import with_options
from penstock.spark.codecs.registry import codec

DDL = "id BIGINT, name STRING, price DOUBLE, at STRING"
NAMES = ("id", "name", "price", "at")
AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "price", "type": "double"},
        {"name": "at", "type": "string"},
    ],
}
KEY = bytes(range(32))
_NS = 1767355200000000000
_F = descriptor_pb2.FieldDescriptorProto
FILE_ROWS = 100
"""Of an event that is a file or has many lines."""
PIECE_BYTES = 1 << 15
"""What a connection is read by."""


def _nothing(is_ours: bool) -> None:
    """Most cases need nothing around them."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    size: int
    """Bytes of encoded events."""
    ours: Callable[[], object]
    plain: Callable[[], object]
    before: Callable[[bool], object] = _nothing
    after: Callable[[bool], object] = _nothing
    """Around each of them, and not measured: they get whether it is ours."""
    events: int = 0
    """Of a connector, whose rate is also shown in events."""


def event_rows(count: int) -> list[dict[str, Any]]:
    return [
        {"id": n, "name": f"item {n % 97}", "price": n / 4, "at": f"2026-01-02T03:{n // 60 % 60:02}:{n % 60:02}Z"}
        for n in range(count)
    ]


# Codecs

Values = tuple[Any, ...]
"""Of one event: one for each column."""
Read = Callable[[bytes], Values]
Write = Callable[[dict[str, Any]], bytes]

_values_of: Callable[[Mapping[str, Any]], Values] = itemgetter(*NAMES)
_attributes_of: Callable[[Any], Values] = attrgetter(*NAMES)


def codec_cases(count: int, folder: Path) -> Iterator[Case]:
    rows = event_rows(count)
    avro = fastavro.parse_schema(AVRO)
    config = {"avro_schema": json.dumps(AVRO)}
    message, described = _protobuf(folder / "rows.desc")
    yield from _json_cases(rows)
    yield from _both("msgpack", {}, DDL, rows, lambda one: _values_of(msgpack.unpackb(one)), msgpack.packb)
    yield from _both("csv", {}, DDL, rows, _plain_csv, _write_csv)
    yield from _both("yaml", {}, DDL, rows[: count // 10], _plain_yaml, _write_yaml)
    yield from _both("avro", config, None, rows, lambda one: _plain_avro(one, avro), lambda row: _avro(row, avro))
    yield from _both(
        "protobuf",
        described,
        DDL,
        rows,
        lambda one: _attributes_of(message.FromString(one)),
        lambda row: message(**row).SerializeToString(),
    )
    yield from _file_cases(rows)
    yield from _line_cases(rows)
    yield from _metric_cases(rows)
    yield from _log_cases(rows)


def _both(
    name: str, config: dict[str, Any], ddl: str | None, rows: list[dict[str, Any]], read: Read, write: Write
) -> Iterator[Case]:
    """Decoding what the plain library has written, and encoding the same rows."""
    values = [*map(write, rows)]
    yield _decoding(name, config, ddl, values, read)
    yield _encoding(name, config, ddl, values, write)


def _decoding(name: str, config: dict[str, Any], ddl: str | None, values: list[bytes], read: Read) -> Case:
    kinds = [field.type for field in _schema(name, config, ddl)]
    return _decoding_by(name, config, ddl, values, lambda batch: _read_columns(batch, read, kinds))


Decoded = tuple[list[pa.Array], dict[int, str]]


def _decoding_by(
    name: str,
    config: dict[str, Any],
    ddl: str | None,
    values: list[bytes],
    plain: Callable[[pa.BinaryArray], Decoded],
    title: str = "",
) -> Case:
    decode, batch = _decoder(name, config, ddl), pa.array(values, pa.binary())
    found, (columns, failed) = decode(batch), plain(batch)
    assert not found.failed
    assert not failed
    for mine, theirs in zip(found.arrays, columns, strict=True):
        assert mine.equals(theirs), (name, mine[0], theirs[0])
    return Case(f"decode {title or name}", sum(map(len, values)), lambda: decode(batch), lambda: plain(batch))


def _decoder(name: str, config: dict[str, Any], ddl: str | None) -> Decode:
    return codec(with_options(name, config)).decoder(None if ddl is None else parse_ddl(ddl))


def _schema(name: str, config: dict[str, Any], ddl: str | None) -> pa.Schema:
    fields = codec(with_options(name, config)).fields(None if ddl is None else parse_ddl(ddl))
    return pa.schema([(field.name, arrow_type(field.kind)) for field in fields])


def _read_columns(batch: pa.BinaryArray, read: Read, kinds: Sequence[pa.DataType]) -> Decoded:
    """As a program does it that keeps what it cannot decode."""
    found: list[Values] = []
    failed: dict[int, str] = {}
    for row, value in enumerate(batch.to_pylist()):
        try:
            found.append(read(value))
        except Exception as error:
            failed[row] = str(error)
    return [pa.array(column, kind) for column, kind in zip(zip(*found, strict=True), kinds, strict=True)], failed


def _encoding(name: str, config: dict[str, Any], ddl: str | None, values: list[bytes], write: Write) -> Case:
    """Of the rows that these events are decoded into."""
    decode = _decoder(name, config, ddl)
    arrays, schema = decode(pa.array(values, pa.binary())).arrays, _schema(name, config, ddl)
    batch = pa.RecordBatch.from_arrays([*arrays], schema=schema)
    return _encoding_by(name, config, batch, decode, lambda rows: _written_rows(rows, write))


def _encoding_by(
    name: str,
    config: dict[str, Any],
    batch: pa.RecordBatch,
    decode: Decode,
    plain: Callable[[pa.RecordBatch], pa.BinaryArray],
) -> Case:
    encode = codec(with_options(name, config)).encoder(batch.schema)
    written = encode(batch)
    for values in (written, plain(batch)):
        found = decode(values)
        assert not found.failed
        for mine, given in zip(found.arrays, batch.columns, strict=True):
            assert mine.equals(given), (name, mine[0], given[0])
    size = sum(map(len, written.to_pylist()))
    return Case(f"encode {name}", size, partial(encode, batch), partial(plain, batch))


def _written_rows(batch: pa.RecordBatch, write: Write) -> pa.BinaryArray:
    """Maps are lists of pairs: `maps_as_pydicts` makes `to_pylist` four times as slow."""
    return pa.array([*map(write, batch.to_pylist())], pa.binary())


# Documents


class Row(msgspec.Struct, gc=False):
    id: int
    name: str
    price: float
    at: str


_ROW = msgspec.json.Decoder(Row).decode


def _json_cases(rows: list[dict[str, Any]]) -> Iterator[Case]:
    yield from _both("json", {}, DDL, rows, lambda one: _attributes_of(_ROW(one)), msgspec.json.encode)
    documents = [*map(msgspec.json.encode, rows)]
    kinds = [pa.string()]
    variants = partial(_read_columns, read=_plain_variant, kinds=kinds)
    yield _decoding_by("json", {}, None, documents, variants, "json, variants")
    parts = [documents[start : start + FILE_ROWS] for start in range(0, len(rows), FILE_ROWS)]
    lines = [b"".join(line + b"\n" for line in part) for part in parts]
    yield _decoding_by("json-lines", {}, DDL, lines, _plain_json_lines)
    variants = partial(_read_columns, read=_plain_variants, kinds=[pa.list_(pa.string())])
    yield _decoding_by("json-lines", {}, None, lines, variants, "json-lines, variants")
    decode = _decoder("json-lines", {}, DDL)
    batch = pa.RecordBatch.from_arrays([*decode(pa.array(lines, pa.binary())).arrays], ["rows"])
    yield _encoding_by("json-lines", {}, batch, decode, lambda of: _written_rows(of, _write_json_lines))


def _plain_variant(value: bytes) -> Values:
    """A text that is known to be JSON."""
    msgspec.json.decode(value)
    return (value.decode(),)


def _plain_variants(value: bytes) -> Values:
    return ([text for line in value.splitlines() for text in _plain_variant(line)],)


def _plain_json_lines(batch: pa.BinaryArray) -> Decoded:
    """The rows of all events as one struct array, which is cut into lists."""
    rows: list[Row] = []
    ends, failed = [0], {}
    for event, value in enumerate(batch.to_pylist()):
        try:
            rows += [*map(_ROW, value.splitlines())]
        except Exception as error:
            failed[event] = str(error)
        else:
            ends.append(len(rows))
    kinds = _schema("json", {}, DDL).types
    columns = [
        pa.array(column, kind) for column, kind in zip(zip(*map(_attributes_of, rows), strict=True), kinds, strict=True)
    ]
    structs = pa.StructArray.from_arrays(columns, [*NAMES])
    return [pa.ListArray.from_arrays(pa.array(ends, pa.int32()), structs)], failed


def _write_json_lines(row: dict[str, Any]) -> bytes:
    return b"".join(msgspec.json.encode(one) + b"\n" for one in row["rows"])


def _plain_csv(value: bytes) -> Values:
    """Each event alone: in one run of the reader, an open quote would take the next event with it."""
    number, name, price, at = next(csv.reader([value.decode()]))
    return int(number), name, float(price), at


def _write_csv(row: dict[str, Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(row.values())
    return text.getvalue().encode()


def _plain_yaml(value: bytes) -> Values:
    return _values_of(yaml.load(value, yaml.CSafeLoader))


def _write_yaml(row: dict[str, Any]) -> bytes:
    written: bytes = yaml.dump(row, Dumper=yaml.CSafeDumper, encoding="utf-8")
    return written


def _plain_avro(value: bytes, schema: Any) -> Values:
    found: Any = fastavro.schemaless_reader(io.BytesIO(value), schema, None)
    return _values_of(found)


def _avro(row: dict[str, Any], schema: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, row)
    return stream.getvalue()


def _protobuf(path: Path) -> tuple[Any, dict[str, Any]]:
    """The class of a message with the fields of a row, and the options of the codec."""
    kinds = {"id": _F.TYPE_INT64, "name": _F.TYPE_STRING, "price": _F.TYPE_DOUBLE, "at": _F.TYPE_STRING}
    file = descriptor_pb2.FileDescriptorProto(name="rows.proto", package="bench", syntax="proto3")
    row = file.message_type.add(name="Row")
    for number, (name, kind) in enumerate(kinds.items(), 1):
        row.field.add(name=name, number=number, type=kind, label=_F.LABEL_OPTIONAL)
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return message_factory.GetMessages([file])["bench.Row"], {"descriptor": str(path), "message": "bench.Row"}


# Files of rows


def _file_cases(rows: list[dict[str, Any]]) -> Iterator[Case]:
    tables = [pa.Table.from_pylist(rows[start : start + FILE_ROWS]) for start in range(0, len(rows), FILE_ROWS)]
    for name, write, read in (("arrow", _ipc, _read_ipc), ("parquet", _parquet, _read_parquet)):
        values = [*map(write, tables)]
        yield _decoding_by(name, {}, DDL, values, partial(_plain_tables, read=read))
        decode = _decoder(name, {}, DDL)
        batch = pa.RecordBatch.from_arrays([*decode(pa.array(values, pa.binary())).arrays], ["rows"])
        yield _encoding_by(name, {}, batch, decode, partial(_written_tables, write=write))


def _plain_tables(batch: pa.BinaryArray, read: Callable[[pa.Buffer], pa.Table]) -> Decoded:
    """The rows of all files as one struct array, which is cut into lists."""
    tables: list[pa.Table] = []
    failed: dict[int, str] = {}
    for row, value in enumerate(batch):
        try:
            tables.append(read(value.as_buffer()).select([*NAMES]))
        except Exception as error:
            failed[row] = str(error)
    ends = [0]
    for table in tables:
        ends.append(ends[-1] + len(table))
    structs = pa.concat_tables(tables).combine_chunks().to_struct_array().combine_chunks()
    return [pa.ListArray.from_arrays(pa.array(ends, pa.int32()), structs)], failed


def _written_tables(batch: pa.RecordBatch, write: Callable[[pa.Table], bytes]) -> pa.BinaryArray:
    tables = (pa.Table.from_struct_array(rows.values) for rows in batch.column(0))
    return pa.array([*map(write, tables)], pa.binary())


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _read_ipc(value: pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(value).read_all()


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def _read_parquet(value: pa.Buffer) -> pa.Table:
    return pq.read_table(pa.BufferReader(value))


# Lines, which mostly have no library of their own: Python's `re`, or cuts of the text.


def _line_cases(rows: Sequence[dict[str, Any]]) -> Iterator[Case]:
    lines = [f"m,host=h{row['id'] % 9} price={row['price']},n={row['id']}i {_NS}".encode() for row in rows]
    yield _decoding("influx", {}, None, lines, _plain_influx)
    yield _encoding("influx", {}, None, lines, _write_influx)
    words = [f'level=info id={row["id"]} msg="a message of {row["name"]}"'.encode() for row in rows]
    yield _decoding("logfmt", {}, None, words, _plain_words)
    yield _encoding("logfmt", {}, None, words, _write_words)
    access = [f'10.0.0.1 - - "GET /{row["id"]} HTTP/1.1" 200 {row["id"]}'.encode() for row in rows]
    expression = r'(?P<ip>\S+) - - "(?P<verb>\w+) (?P<path>\S+) \S+" (?P<status>\d+) (?P<size>\d+)'
    match = re.compile(expression, re.DOTALL).fullmatch
    yield _decoding("regex", {"pattern": expression}, None, access, lambda one: _groups(match, one))
    grok = '%{NOTSPACE:ip} - - "%{WORD:verb} %{NOTSPACE:path} %{NOTSPACE}" %{INT:status:int} %{INT:size:int}'
    yield _decoding("grok", {"pattern": grok}, None, access, lambda one: _plain_grok(match, one))
    yield _decoding("string", {}, None, access, lambda one: (one.decode(),))
    yield _encoding("string", {}, None, access, lambda row: row["text"].encode())


Match = Callable[[str], "re.Match[str] | None"]


def _groups(match: Match, value: bytes) -> Values:
    found = match(value.decode())
    if found is None:
        raise ValueError("it does not match")
    return found.groups()


def _plain_grok(match: Match, value: bytes) -> Values:
    ip, verb, path, status, size = _groups(match, value)
    return ip, verb, path, int(status), int(size)


def _plain_influx(value: bytes) -> Values:
    """Without escapes and quotes, which the lines here do not have."""
    head, fields, time = value.decode().split(" ")
    measurement, *tags = head.split(",")
    pairs = (each.partition("=") for each in fields.split(","))
    numbers = {key: int(text[:-1]) if text.endswith("i") else float(text) for key, _, text in pairs}
    tag_pairs = [tuple(tag.split("=", 1)) for tag in tags]
    return measurement, tag_pairs, msgspec.json.encode(numbers).decode(), int(time) // 1000


_ESCAPES = str.maketrans({sign: f"\\{sign}" for sign in "\\,= "})


def _write_influx(row: dict[str, Any]) -> bytes:
    """Of fields that are numbers."""
    tags = "".join(f",{key.translate(_ESCAPES)}={value.translate(_ESCAPES)}" for key, value in row["tags"])
    numbers: dict[str, int | float] = msgspec.json.decode(row["fields"])
    pairs = (f"{key.translate(_ESCAPES)}={value}{'i' * isinstance(value, int)}" for key, value in numbers.items())
    return f"{row['measurement'].translate(_ESCAPES)}{tags} {','.join(pairs)} {_micros(row['time']) * 1000}".encode()


def _micros(instant: datetime) -> int:
    return round(instant.timestamp() * 1_000_000)


_WORD = re.compile(r'(\w+)=(?:"([^"]*)"|(\S+))')


def _plain_words(value: bytes) -> Values:
    return ([(key, quoted or plain) for key, quoted, plain in _WORD.findall(value.decode())],)


_BARE = re.compile(r'[^\s="\\]+').fullmatch


def _write_words(row: dict[str, Any]) -> bytes:
    return " ".join(
        f"{key}={text if _BARE(text) else msgspec.json.encode(text).decode()}" for key, text in row["data"]
    ).encode()


def _metric_cases(rows: Sequence[dict[str, Any]]) -> Iterator[Case]:
    metrics = [f"a.b.c{row['id'] % 50}:{row['price']}|g".encode() for row in rows]
    statsd = re.compile(r"([^:]+):([^|]+)\|(\w+)").fullmatch
    yield _decoding("statsd", {}, None, metrics, lambda one: _plain_statsd(statsd, one))
    yield _encoding("statsd", {}, None, metrics, lambda row: f"{row['name']}:{row['text']}|{row['kind']}".encode())
    lines = [f"a.b.c{row['id'] % 50} {row['price']} 1767355200".encode() for row in rows]
    graphite = re.compile(r"(\S+) (\S+) (\d+)").fullmatch
    yield _decoding("graphite", {}, None, lines, lambda one: _plain_graphite(graphite, one))
    yield _encoding("graphite", {}, None, lines, _write_graphite)
    tagged = [f"a.b.c{row['id'] % 50}:{row['price']}|g|#host:h{row['id'] % 9}".encode() for row in rows]
    dogstatsd = re.compile(r"([^:]+):([^|]+)\|(\w+)\|#([^:]+):(\S+)").fullmatch
    yield _decoding("dogstatsd", {}, None, tagged, lambda one: _plain_dogstatsd(dogstatsd, one))
    yield _encoding("dogstatsd", {}, None, tagged, _write_dogstatsd)


def _plain_statsd(match: Match, value: bytes) -> Values:
    name, text, kind = _groups(match, value)
    return name, kind, float(text), text, None


def _plain_graphite(match: Match, value: bytes) -> Values:
    path, number, time = _groups(match, value)
    return path, float(number), int(time) * 1_000_000, []


def _write_graphite(row: dict[str, Any]) -> bytes:
    return f"{row['path']} {row['number']} {int(row['time'].timestamp())}".encode()


def _plain_dogstatsd(match: Match, value: bytes) -> Values:
    name, number, kind, tag, of = _groups(match, value)
    return kind, name, [float(number)], None, None, [(tag, of)], []


def _write_dogstatsd(row: dict[str, Any]) -> bytes:
    tags = ",".join(f"{key}:{value}" for key, value in row["tags"])
    return f"{row['name']}:{':'.join(map(str, row['numbers']))}|{row['kind']}|#{tags}".encode()


def _log_cases(rows: Sequence[dict[str, Any]]) -> Iterator[Case]:
    syslog = [
        f"<34>1 {row['at'].removesuffix('Z')}.000000Z host app {row['id']} ID47 - a message of {row['name']}".encode()
        for row in rows
    ]
    match = re.compile(r"<(\d+)>1 (\S+) (\S+) (\S+) (\S+) (\S+) (-|\[.*\]) (.*)", re.DOTALL).fullmatch
    yield _decoding("syslog", {}, None, syslog, lambda one: _plain_syslog(match, one))
    yield _encoding("syslog", {}, None, syslog, _write_syslog)
    cef = [f"CEF:0|v|p|1.0|{row['id']}|{row['name']}|5|src=10.0.0.1 cnt={row['id']}".encode() for row in rows]
    yield _decoding("cef", {}, None, cef, _plain_cef)
    yield _encoding("cef", {}, None, cef, _write_cef)
    gelf = [
        msgspec.json.encode(
            {"version": "1.1", "host": "h", "short_message": row["name"], "timestamp": row["price"], "_id_": row["id"]}
        )
        for row in rows
    ]
    yield _decoding("gelf", {}, None, gelf, _plain_gelf)
    yield _encoding("gelf", {}, None, gelf, _write_gelf)


def _plain_syslog(match: Match, value: bytes) -> Values:
    """Without structured data, which the messages here do not have."""
    priority, time, host, app, procid, msgid, _, message = _groups(match, value)
    facility, severity = divmod(int(priority), 8)
    return facility, severity, datetime.fromisoformat(time), time, host, app, procid, msgid, [], message


def _write_syslog(row: dict[str, Any]) -> bytes:
    time = row["time"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    head = f"<{row['facility'] * 8 + row['severity']}>1 {time} {row['host']} {row['app']}"
    return f"{head} {row['procid']} {row['msgid']} - {row['message']}".encode()


def _plain_cef(value: bytes) -> Values:
    """Without escapes."""
    version, *head, extension = value.decode().removeprefix("CEF:").split("|", 7)
    return None, version, *head, [tuple(pair.split("=", 1)) for pair in extension.split(" ")]


_CEF = ("vendor", "product", "product_version", "signature", "name", "severity")
_IN_HEADER = str.maketrans({"\\": "\\\\", "|": "\\|", "\n": "\\n", "\r": "\\r"})
_IN_EXTENSION = str.maketrans({"\\": "\\\\", "=": "\\=", "\n": "\\n", "\r": "\\r"})


def _write_cef(row: dict[str, Any]) -> bytes:
    extension = " ".join(f"{key}={value.translate(_IN_EXTENSION)}" for key, value in row["extension"])
    head = "|".join(row[name].translate(_IN_HEADER) for name in _CEF)
    return f"CEF:{row['version']}|{head}|{extension}".encode()


_GELF = ("version", "host", "short_message", "full_message", "timestamp", "level")


def _plain_gelf(value: bytes) -> Values:
    found = msgspec.json.decode(value)
    version, host, short, full, seconds, level = map(found.get, _GELF)
    if not (isinstance(version, str) and isinstance(host, str) and isinstance(short, str)):
        raise ValueError("it is not GELF")
    time = None if seconds is None else round(seconds * 1_000_000)
    extra = [(key.removeprefix("_"), str(each)) for key, each in found.items() if key not in _GELF]
    return version, host, short, full, time, level, extra


def _write_gelf(row: dict[str, Any]) -> bytes:
    found = {"version": row["version"], "host": row["host"], "short_message": row["short_message"]}
    return msgspec.json.encode(
        found
        | {"timestamp": row["time"].replace(tzinfo=UTC).timestamp()}
        | {f"_{key}": value for key, value in row["extra"]}
    )


# Interceptors


def interceptor_cases(count: int) -> Iterator[Case]:
    records = [json.dumps(row).encode() for row in event_rows(count)]
    lines = b"\n".join(records) + b"\n"
    split = {"type": "split"}
    yield _incoming("split", [split], lines, lambda: _plain_lines(lines))
    prefixed = b"".join(len(record).to_bytes(4, "big") + record for record in records)
    yield _incoming("length-prefixed", [{"type": "length-prefixed"}], prefixed, lambda: _plain_frames(prefixed))
    for name, compressed, plain in _compressed(lines):
        algorithm = {"algorithm": name} if name == "brotli" else {}  # which has no mark
        spec = {"type": "decompress", "config": algorithm}
        yield _incoming(f"decompress {name}", [spec], compressed, plain, len(lines))
    encoded = b"\n".join(map(base64.b64encode, records)) + b"\n"
    yield _incoming(
        "split, base64", [split, {"type": "base64"}], encoded, lambda: [*map(base64.b64decode, _plain_lines(encoded))]
    )
    yield _decrypting(records)
    yield from _record_cases(records, lines)
    yield from _outgoing_cases(records)


def _record_cases(records: list[bytes], lines: bytes) -> Iterator[Case]:
    split = {"type": "split"}
    pattern = '"name": "(?P<name>[^"]*)"'
    extract = {"type": "regex-extract", "config": {"pattern": pattern}}
    stamp = {"type": "ingest-timestamp"}
    yield _incoming("split, regex-extract", [split, extract], lines, lambda: _searched(pattern, lines))
    yield _incoming("split, ingest-timestamp", [split, stamp], lines, lambda: [*map(_stamped, _plain_lines(lines))])
    yield _incoming("split, remove-empty", [split, {"type": "remove-empty"}], lines, lambda: _not_empty(lines))
    yield _incoming("chunk", [{"type": "chunk", "config": {"bytes": 1000}}], lines, lambda: _plain_chunks(lines))
    collect = {"type": "collect", "config": {"max_elements": 100, "delimiter": r"\n"}}
    yield _incoming("split, collect", [split, collect], lines, lambda: _joined(_plain_lines(lines)))
    yield _gelf_chunks(records)


def _searched(pattern: str, lines: bytes) -> tuple[list[bytes], list[bytes]]:
    """What matches in the lines of each piece, and what does not: by RE2, since the time of `re` has no bound."""
    found: list[bytes] = []
    bad: list[bytes] = []
    rest = b""
    for piece in _pieces(lines):
        *records, rest = (rest + piece).split(b"\n")
        names = pc.struct_field(pc.extract_regex(pa.array(records, pa.binary()), pattern), ["name"]).to_pylist()
        for record, name in zip(records, names, strict=True):
            if name is None:
                bad.append(record)
            else:
                found.append(name)
    return found, bad


def _stamped(record: bytes) -> bytes:
    return time.time_ns().to_bytes(8, "big") + record


def _not_empty(lines: bytes) -> list[bytes]:
    return [line for line in _plain_lines(lines) if line]


def _plain_chunks(data: bytes) -> list[bytes]:
    found: list[bytes] = []
    rest = b""
    for piece in _pieces(data):
        rest += piece
        end = len(rest) // 1000 * 1000
        found += [rest[at : at + 1000] for at in range(0, end, 1000)]
        rest = rest[end:]
    return [*found, rest]


def _joined(records: Sequence[bytes]) -> list[bytes]:
    return [b"\n".join(records[at : at + 100]) for at in range(0, len(records), 100)]


def _gelf_chunks(records: list[bytes]) -> Case:
    """Messages of three datagrams each, which arrive in order."""
    spec = InterceptorSpec(type="gelf-chunking", config={"chunk_bytes": 64})
    values = [record.ljust(150) for record in records]
    datagrams = make_chains([], [spec]).outgoing().feed(values)
    chains = make_chains([spec], [], messages=True)

    def ours() -> list[bytes]:
        chain = chains.incoming()
        return [record for datagram in datagrams for record in chain.feed(datagram)]

    def plain() -> list[bytes]:
        """What waits for more than 5 s is given up, as are the oldest of more than 1,000 messages and one that is too
        long.
        """
        found: list[bytes] = []
        waiting: dict[bytes, tuple[float, dict[int, bytes]]] = {}
        sizes: dict[bytes, int] = {}
        for datagram in datagrams:
            now = time.monotonic()
            while waiting and (next(iter(waiting.values()))[0] < now - 5 or len(waiting) > 1000):
                del waiting[next(iter(waiting))]
            if not datagram.startswith(b"\x1e\x0f"):
                found.append(datagram)
                continue
            key, number, count = datagram[2:10], datagram[10], datagram[11]
            _, parts = waiting.setdefault(key, (now, {}))
            parts[number] = datagram[12:]
            sizes[key] = sizes.get(key, 0) + len(datagram)
            if len(parts) == count or sizes[key] > 1 << 22:
                del waiting[key], sizes[key]
                found.append(b"".join(parts[part] for part in sorted(parts)))
        return found

    assert ours() == plain() == values
    return Case("in gelf-chunking", sum(map(len, datagrams)), ours, plain)


def _outgoing_cases(records: list[bytes]) -> Iterator[Case]:
    cipher = AESGCM(KEY)
    key = {"key": base64.b64encode(KEY).decode()}
    plain: list[tuple[str, dict[str, Any], Callable[[], object]]] = [
        ("join", {}, lambda: [b"\n".join((*records[at : at + 1000], b"")) for at in range(0, len(records), 1000)]),
        ("length-prefixed", {}, lambda: [len(record).to_bytes(4, "big") + record for record in records]),
        ("base64", {}, lambda: [*map(base64.b64encode, records)]),
        ("encrypt", key, lambda: [(n := os.urandom(12)) + cipher.encrypt(n, record, b"") for record in records]),
        (
            "chunk",
            {"bytes": 20},
            lambda: [one[at : at + 20] for one in records for at in range(0, len(one), 20)],
        ),
        ("collect", {"max_elements": 100, "delimiter": r"\n"}, lambda: _joined(records)),
        ("gelf-chunking", {"chunk_bytes": 64}, lambda: [part for record in records for part in _gelf_parts(record)]),
        ("ingest-timestamp", {}, lambda: [*map(_stamped, records)]),
    ]
    for name, config, contender in plain:
        yield _outgoing(name, name, config, records, contender)
    for name, compress in _compressors().items():
        contender = partial(_each, compress, records)
        yield _outgoing(f"compress {name}", "compress", {"algorithm": name}, records, contender)


def _outgoing(
    title: str, name: str, config: dict[str, Any], records: list[bytes], contender: Callable[[], object]
) -> Case:
    chains = make_chains([], [InterceptorSpec(type=name, config=config)])
    return Case(f"out {title}", sum(map(len, records)), partial(_left, chains, records), contender)


def _gelf_parts(message: bytes) -> list[bytes]:
    if len(message) <= 64:
        return [message]
    head, size = b"\x1e\x0f" + os.urandom(8), 64 - 12
    count = -(-len(message) // size)
    return [head + bytes((n, count)) + message[n * size : (n + 1) * size] for n in range(count)]


def _each(compress: Callable[[bytes], bytes], records: list[bytes]) -> list[bytes]:
    return [*map(compress, records)]


def _compressors() -> dict[str, Callable[[bytes], bytes]]:
    """With the levels that interceptors have without options: those of the libraries, but a lower one of brotli."""
    import brotli
    import cramjam
    import lz4.frame
    import zstandard

    return {
        "gzip": lambda record: gzip.compress(record, 6, mtime=0),
        "zlib": zlib.compress,
        "zstd": zstandard.ZstdCompressor().compress,
        "lz4": lz4.frame.compress,
        "snappy": lambda record: bytes(cramjam.snappy.compress(record)),
        "xz": lzma.compress,
        "bzip2": bz2.compress,
        "brotli": lambda record: brotli.compress(record, quality=5),
    }


def _left(chains: Any, records: list[bytes]) -> list[bytes]:
    chain = chains.outgoing()
    found: list[bytes] = chain.feed(records) + chain.flush()
    return found


def _pieces(data: bytes) -> list[bytes]:
    return [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]


def _incoming(name: str, specs: list[dict[str, Any]], data: bytes, plain: Callable[[], object], size: int = 0) -> Case:
    chains = make_chains([InterceptorSpec(**one) for one in specs], [])
    pieces = _pieces(data)

    def ours() -> None:
        chain = chains.incoming()
        for piece in pieces:
            chain.feed(piece)
        chain.finish()

    return Case(f"in {name}", size or len(data), ours, plain)


def _compressed(lines: bytes) -> Iterator[tuple[str, bytes, Callable[[], object]]]:
    """By the library's decompressor of streams; snappy's takes only whole ones."""
    import brotli
    import cramjam
    import lz4.frame
    import zstandard

    def streaming(data: bytes, new: Callable[[], Any], call: str = "decompress") -> Callable[[], object]:
        def decompressed() -> None:
            feed = getattr(new(), call)
            for piece in _pieces(data):
                feed(piece)

        return decompressed

    bz = bz2.compress(lines)
    gz, xz, zl = gzip.compress(lines), lzma.compress(lines), zlib.compress(lines)
    zs, l4 = zstandard.ZstdCompressor().compress(lines), lz4.frame.compress(lines)
    br = brotli.compress(lines, quality=5)
    sn = bytes(cramjam.snappy.compress(lines))
    yield "gzip", gz, streaming(gz, lambda: zlib.decompressobj(zlib.MAX_WBITS | 16))
    yield "zlib", zl, streaming(zl, zlib.decompressobj)
    yield "xz", xz, streaming(xz, lzma.LZMADecompressor)
    yield "bzip2", bz, streaming(bz, bz2.BZ2Decompressor)
    yield "zstd", zs, streaming(zs, lambda: zstandard.ZstdDecompressor().decompressobj())
    yield "lz4", l4, streaming(l4, lz4.frame.LZ4FrameDecompressor)
    yield "brotli", br, streaming(br, brotli.Decompressor, "process")
    yield "snappy", sn, lambda: bytes(cramjam.snappy.decompress(sn))


def _plain_lines(data: bytes) -> list[bytes]:
    found: list[bytes] = []
    rest = b""
    for piece in _pieces(data):
        *lines, rest = (rest + piece).split(b"\n")
        found += lines
    return found


def _plain_frames(data: bytes) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        found.append(data[at + 4 : end])
        at = end
    return found


def _decrypting(records: list[bytes]) -> Case:
    cipher = AESGCM(KEY)
    nonce = bytes(12)  # the same for all: nothing of this leaves
    sealed = [nonce + cipher.encrypt(nonce, record, b"") for record in records]
    data = b"".join(len(record).to_bytes(4, "big") + record for record in sealed)
    decrypt = {"type": "decrypt", "config": {"key": base64.b64encode(KEY).decode()}}

    def plain() -> object:
        return [cipher.decrypt(record[:12], record[12:], b"") for record in _plain_frames(data)]

    return _incoming("length-prefixed, decrypt", [{"type": "length-prefixed"}, decrypt], data, plain)
