"""The work of `script/bench connectors`: the same events through a codec or an interceptor, and through the plain
library that a program would use for it: into Python values for codecs, and bytes for interceptors.

Both do the same: a bad event fails alone, numbers are numbers, and a stream arrives in pieces.
"""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import msgpack
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf import descriptor_pb2, message_factory

from penstock.connectors.registry import make_chains
from penstock.core.ddl import parse_ddl
from penstock.protocol.api.deployment import InterceptorSpec
from penstock.spark.codecs.codec import with_options
from penstock.spark.codecs.registry import codec

DDL = "id BIGINT, name STRING, price DOUBLE, at STRING"
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


def event_rows(count: int) -> list[dict[str, Any]]:
    return [
        {"id": n, "name": f"item {n % 97}", "price": n / 4, "at": f"2026-01-02T03:{n // 60 % 60:02}:{n % 60:02}Z"}
        for n in range(count)
    ]


# Codecs


def codec_cases(count: int, folder: Path) -> Iterator[Case]:
    rows = event_rows(count)
    avro = fastavro.parse_schema(AVRO)
    yield _decoding("json", {}, DDL, [json.dumps(row).encode() for row in rows], msgspec.json.decode)
    yield _decoding("msgpack", {}, DDL, [msgpack.packb(row) for row in rows], msgpack.unpackb)
    records = [f"{row['id']},{row['name']},{row['price']},{row['at']}".encode() for row in rows]
    yield _decoding("csv", {}, DDL, records, _plain_csv)
    documents = [yaml.safe_dump(row).encode() for row in rows[: count // 10]]
    yield _decoding("yaml", {}, DDL, documents, lambda one: yaml.load(one, yaml.CSafeLoader))
    written = [_avro(row, avro) for row in rows]
    config = {"avro_schema": json.dumps(AVRO)}
    yield _decoding("avro", config, None, written, lambda one: fastavro.schemaless_reader(io.BytesIO(one), avro, None))
    message, described = _protobuf(folder / "rows.desc")
    messages = [message(**row).SerializeToString() for row in rows]
    yield _decoding("protobuf", described, DDL, messages, lambda one: _plain_message(message.FromString(one)))
    parts = [rows[start : start + FILE_ROWS] for start in range(0, count, FILE_ROWS)]
    lines = [b"\n".join(map(msgspec.json.encode, part)) for part in parts]
    yield _decoding("json-lines", {}, None, lines, lambda one: [*map(msgspec.json.decode, one.splitlines())])
    tables = [pa.Table.from_pylist(part) for part in parts]
    for name, write, read in (("arrow", _ipc, _read_ipc), ("parquet", _parquet, _read_parquet)):
        yield _decoding(name, {}, f"rows ARRAY<STRUCT<{DDL}>>", [*map(write, tables)], read)
    yield from _line_cases(rows)
    yield from _encoding_cases(rows, config, described, message, avro)


def _encoding_cases(
    rows: list[dict[str, Any]], avro_config: dict[str, Any], described: dict[str, Any], message: Any, avro: Any
) -> Iterator[Case]:
    """Each row as one event, by the codec and by the plain library."""
    batch = pa.RecordBatch.from_pylist(rows)
    plain: list[tuple[str, dict[str, Any], Callable[[dict[str, Any]], bytes]]] = [
        ("json", {}, msgspec.json.encode),
        ("msgpack", {}, msgpack.packb),
        ("csv", {}, _write_csv),
        ("yaml", {}, lambda row: yaml.dump(row, Dumper=yaml.CSafeDumper).encode()),
        ("avro", avro_config, lambda row: _avro(row, avro)),
        ("protobuf", described, lambda row: message(**row).SerializeToString()),
    ]
    for name, config, write in plain:
        part = batch.slice(0, len(rows) // 10) if name == "yaml" else batch
        encode = codec(with_options(name, config)).encoder(part.schema)
        size = sum(map(len, encode(part).to_pylist()))
        yield Case(f"encode {name}", size, partial(encode, part), partial(_written, part, write))


def _written(batch: pa.RecordBatch, write: Callable[[dict[str, Any]], bytes]) -> list[bytes]:
    return [*map(write, batch.to_pylist())]


def _write_csv(row: dict[str, Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(row.values())
    return text.getvalue().encode()


def _protobuf(path: Path) -> tuple[Any, dict[str, Any]]:
    """The class of a message with the fields of a row, and the options of the codec."""
    kinds = {"id": _F.TYPE_INT64, "name": _F.TYPE_STRING, "price": _F.TYPE_DOUBLE, "at": _F.TYPE_STRING}
    file = descriptor_pb2.FileDescriptorProto(name="rows.proto", package="bench", syntax="proto3")
    row = file.message_type.add(name="Row")
    for number, (name, kind) in enumerate(kinds.items(), 1):
        row.field.add(name=name, number=number, type=kind, label=_F.LABEL_OPTIONAL)
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return message_factory.GetMessages([file])["bench.Row"], {"descriptor": str(path), "message": "bench.Row"}


def _plain_message(found: Any) -> object:
    return found.id, found.name, found.price, found.at


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _read_ipc(value: bytes) -> object:
    return pa.ipc.open_stream(value).read_all()


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def _read_parquet(value: bytes) -> object:
    return pq.read_table(pa.BufferReader(value))


def _line_cases(rows: Sequence[dict[str, Any]]) -> Iterator[Case]:
    """Formats that have no library of their own: beside a match of Python's `re` for each event."""
    syslog = [f"<34>1 {row['at']} host app {row['id']} ID47 - a message of {row['name']}".encode() for row in rows]
    pattern = r"<(\d+)>1 (\S+) (\S+) (\S+) (\S+) (\S+) (-|\[.*\]) (.*)"
    yield _decoding("syslog", {}, None, syslog, _matching(pattern, (int, datetime.fromisoformat)))
    lines = [f"m,host=h{row['id'] % 9} price={row['price']},n={row['id']}i {_NS}".encode() for row in rows]
    yield _decoding("influx", {}, None, lines, _plain_influx)
    metrics = [f"a.b.c{row['id'] % 50}:{row['price']}|g".encode() for row in rows]
    yield _decoding("statsd", {}, None, metrics, _matching(r"([^:]+):([^|]+)\|(\w+)", (str, float)))
    graphite = [f"a.b.c{row['id'] % 50} {row['price']} 1767355200".encode() for row in rows]
    yield _decoding("graphite", {}, None, graphite, _matching(r"(\S+) (\S+) (\d+)", (str, float, int)))
    words = [f'level=info id={row["id"]} msg="a message of {row["name"]}"'.encode() for row in rows]
    yield _decoding("logfmt", {}, None, words, _plain_words)
    yield from _more_lines(rows)
    access = [f'10.0.0.1 - - "GET /{row["id"]} HTTP/1.1" 200 {row["id"]}'.encode() for row in rows]
    expression = r'(?P<ip>\S+) - - "(?P<verb>\w+) (?P<path>\S+) \S+" (?P<status>\d+) (?P<size>\d+)'
    yield _decoding("regex", {"pattern": expression}, None, access, _matching(expression, ()))
    grok = {"pattern": '%{NOTSPACE:ip} - - "%{WORD:verb} %{NOTSPACE:path} %{NOTSPACE}" %{INT:status} %{INT:size}'}
    yield _decoding("grok", grok, None, access, _matching(expression, ()))
    yield _decoding("string", {}, None, access, bytes.decode)


def _more_lines(rows: Sequence[dict[str, Any]]) -> Iterator[Case]:
    metrics = [f"a.b.c{row['id'] % 50}:{row['price']}|g|#host:h{row['id'] % 9}".encode() for row in rows]
    yield _decoding("dogstatsd", {}, None, metrics, _matching(r"([^:]+):([^|]+)\|(\w+)\|#([^:]+):(\S+)", (str, float)))
    cef = [f"CEF:0|v|p|1.0|{row['id']}|{row['name']}|5|src=10.0.0.1 cnt={row['id']}".encode() for row in rows]
    yield _decoding("cef", {}, None, cef, _plain_cef)
    gelf = [
        msgspec.json.encode(
            {"version": "1.1", "host": "h", "short_message": row["name"], "timestamp": row["price"], "_id_": row["id"]}
        )
        for row in rows
    ]
    yield _decoding("gelf", {}, None, gelf, msgspec.json.decode)


def _decoding(
    name: str, config: dict[str, Any], ddl: str | None, values: list[bytes], plain: Callable[[bytes], object]
) -> Case:
    decode = codec(with_options(name, config)).decoder(None if ddl is None else parse_ddl(ddl))
    batch = pa.array(values, pa.binary())
    assert not decode(batch).failed
    return Case(f"decode {name}", sum(map(len, values)), lambda: decode(batch), lambda: _each(batch, plain))


def _each(batch: pa.BinaryArray, plain: Callable[[bytes], object]) -> tuple[list[object], dict[int, str]]:
    """As a program does it that keeps what it cannot decode."""
    found: list[object] = []
    failed: dict[int, str] = {}
    for row, value in enumerate(batch.to_pylist()):
        try:
            found.append(plain(value))
        except Exception as error:
            failed[row] = str(error)
    assert not failed
    return found, failed


def _plain_csv(value: bytes) -> object:
    number, name, price, at = next(csv.reader([value.decode()]))
    return int(number), name, float(price), at


def _avro(row: dict[str, Any], schema: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, row)
    return stream.getvalue()


def _matching(pattern: str, kinds: Sequence[Callable[[str], object]]) -> Callable[[bytes], object]:
    """`kinds` of the first groups; the others are texts."""
    match = re.compile(pattern, re.DOTALL).fullmatch

    def matched(value: bytes) -> object:
        found = match(value.decode())
        if found is None:
            raise ValueError("it does not match")
        groups = found.groups()
        return [kind(group) for kind, group in zip(kinds, groups, strict=False)] + [*groups[len(kinds) :]]

    return matched


def _plain_influx(value: bytes) -> object:
    """Without escapes and quotes, which the lines here do not have."""
    head, fields, time = value.decode().split(" ")
    measurement, *tags = head.split(",")
    pairs = (each.partition("=") for each in fields.split(","))
    numbers = {key: int(text[:-1]) if text.endswith("i") else float(text) for key, _, text in pairs}
    return measurement, dict(tag.split("=") for tag in tags), numbers, int(time)


def _plain_cef(value: bytes) -> object:
    """Without escapes."""
    *head, extension = value.decode().split("|", 7)
    return head, dict(pair.split("=", 1) for pair in extension.split(" "))


_WORD = re.compile(r'(\w+)=(?:"([^"]*)"|(\S+))')


def _plain_words(value: bytes) -> object:
    return {key: quoted or plain for key, quoted, plain in _WORD.findall(value.decode())}


# Interceptors


def interceptor_cases(count: int) -> Iterator[Case]:
    records = [json.dumps(row).encode() for row in event_rows(count)]
    lines = b"\n".join(records) + b"\n"
    split = {"type": "split"}
    yield _incoming("split", [split], lines, lambda: _plain_lines(lines))
    prefixed = b"".join(len(record).to_bytes(4, "big") + record for record in records)
    yield _incoming("length-prefixed", [{"type": "length-prefixed"}], prefixed, lambda: _plain_frames(prefixed))
    for name, compressed, plain in _compressed(lines):
        yield _incoming(f"decompress {name}", [{"type": "decompress"}], compressed, plain, len(lines))
    encoded = b"\n".join(map(base64.b64encode, records)) + b"\n"
    yield _incoming(
        "split, base64", [split, {"type": "base64"}], encoded, lambda: [*map(base64.b64decode, _plain_lines(encoded))]
    )
    yield _decrypting(records)


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
    import cramjam
    import lz4.frame
    import zstandard

    def streaming(data: bytes, new: Callable[[], Any]) -> Callable[[], object]:
        def decompressed() -> None:
            inner = new()
            for piece in _pieces(data):
                inner.decompress(piece)

        return decompressed

    gz, xz, zl = gzip.compress(lines), lzma.compress(lines), zlib.compress(lines)
    zs, l4 = zstandard.ZstdCompressor().compress(lines), lz4.frame.compress(lines)
    sn = bytes(cramjam.snappy.compress(lines))
    yield "gzip", gz, streaming(gz, lambda: zlib.decompressobj(zlib.MAX_WBITS | 16))
    yield "zlib", zl, streaming(zl, zlib.decompressobj)
    yield "xz", xz, streaming(xz, lzma.LZMADecompressor)
    yield "zstd", zs, streaming(zs, lambda: zstandard.ZstdDecompressor().decompressobj())
    yield "lz4", l4, streaming(l4, lz4.frame.LZ4FrameDecompressor)
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
