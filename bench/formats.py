"""The work of `script/bench connectors`: the same events through a codec or an interceptor, and through the plain
library that a program would use for it: into Python values for codecs, and bytes for interceptors.
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
from typing import Any

import fastavro
import msgpack
import msgspec
import pyarrow as pa
import yaml
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

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


def _rows(count: int) -> list[dict[str, Any]]:
    return [
        {"id": n, "name": f"item {n % 97}", "price": n / 4, "at": f"2026-01-02T03:{n // 60 % 60:02}:{n % 60:02}Z"}
        for n in range(count)
    ]


# Codecs


def codec_cases(count: int) -> Iterator[Case]:
    rows = _rows(count)
    read = msgspec.json.decode
    avro = fastavro.parse_schema(AVRO)
    yield _decoding("json", {}, DDL, [json.dumps(row).encode() for row in rows], lambda values: [*map(read, values)])
    packed = [msgpack.packb(row) for row in rows]
    yield _decoding("msgpack", {}, DDL, packed, lambda values: [*map(msgpack.unpackb, values)])
    records = [f"{row['id']},{row['name']},{row['price']},{row['at']}".encode() for row in rows]
    yield _decoding("csv", {}, DDL, records, _plain_csv)
    documents = [yaml.safe_dump(row).encode() for row in rows[: count // 10]]
    yield _decoding("yaml", {}, DDL, documents, lambda values: [yaml.load(one, yaml.CSafeLoader) for one in values])
    written = [_avro(row, avro) for row in rows]
    config = {"avro_schema": json.dumps(AVRO)}
    yield _decoding(
        "avro",
        config,
        None,
        written,
        lambda values: [fastavro.schemaless_reader(io.BytesIO(one), avro, None) for one in values],
    )
    yield from _line_cases(rows)


def _line_cases(rows: Sequence[dict[str, Any]]) -> Iterator[Case]:
    """Formats that have no library of their own: beside one match of Python's `re` for each event."""
    syslog = [f"<34>1 {row['at']} host app {row['id']} ID47 - a message of {row['name']}".encode() for row in rows]
    pattern = rb"<(\d+)>1 (\S+) (\S+) (\S+) (\S+) (\S+) (-|\[.*\]) (.*)"
    yield _decoding("syslog", {}, None, syslog, _matching(pattern))
    lines = [f"m,host=h{row['id'] % 9} price={row['price']},n={row['id']}i {_NS}".encode() for row in rows]
    yield _decoding("influx", {}, None, lines, _plain_influx)
    metrics = [f"a.b.c{row['id'] % 50}:{row['price']}|g".encode() for row in rows]
    yield _decoding("statsd", {}, None, metrics, _matching(rb"([^:]+):([^|]+)\|(\w+)"))
    graphite = [f"a.b.c{row['id'] % 50} {row['price']} 1767355200".encode() for row in rows]
    yield _decoding("graphite", {}, None, graphite, _matching(rb"(\S+) (\S+) (\d+)"))
    words = [f'level=info id={row["id"]} msg="a message of {row["name"]}"'.encode() for row in rows]
    yield _decoding("logfmt", {}, None, words, _plain_words)
    access = [f'10.0.0.1 - - "GET /{row["id"]} HTTP/1.1" 200 {row["id"]}'.encode() for row in rows]
    expression = r'(?P<ip>\S+) - - "(?P<verb>\w+) (?P<path>\S+) \S+" (?P<status>\d+) (?P<size>\d+)'
    yield _decoding("regex", {"pattern": expression}, None, access, _matching(expression.encode()))


def _decoding(
    name: str, config: dict[str, Any], ddl: str | None, values: list[bytes], plain: Callable[[list[bytes]], object]
) -> Case:
    decode = codec(with_options(name, config)).decoder(None if ddl is None else parse_ddl(ddl))
    batch = pa.array(values, pa.binary())
    assert not decode(batch).failed
    return Case(f"decode {name}", sum(map(len, values)), lambda: decode(batch), lambda: plain(batch.to_pylist()))


def _plain_csv(values: list[bytes]) -> object:
    return [next(csv.reader([one.decode()])) for one in values]


def _avro(row: dict[str, Any], schema: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, row)
    return stream.getvalue()


def _matching(pattern: bytes) -> Callable[[list[bytes]], object]:
    match = re.compile(pattern, re.DOTALL).fullmatch

    def matched(values: list[bytes]) -> object:
        return [[part.decode() for part in found.groups()] for one in values if (found := match(one)) is not None]

    return matched


def _plain_influx(values: list[bytes]) -> object:
    found = []
    for one in values:
        head, fields, time = one.decode().split(" ")
        measurement, *tags = head.split(",")
        pairs = {key: value for key, _, value in (each.partition("=") for each in fields.split(","))}
        found.append((measurement, dict(tag.split("=") for tag in tags), pairs, int(time)))
    return found


def _plain_words(values: list[bytes]) -> object:
    word = re.compile(r'(\w+)=("[^"]*"|\S+)')
    return [dict(word.findall(one.decode())) for one in values]


# Interceptors


def interceptor_cases(count: int) -> Iterator[Case]:
    records = [json.dumps(row).encode() for row in _rows(count)]
    lines = b"\n".join(records) + b"\n"
    split = {"type": "split"}
    yield _incoming("split", [split], lines, lambda: lines.split(b"\n"))
    prefixed = b"".join(len(record).to_bytes(4, "big") + record for record in records)
    yield _incoming("length-prefixed", [{"type": "length-prefixed"}], prefixed, lambda: _plain_frames(prefixed))
    for name, compressed, plain in _compressed(lines):
        yield _incoming(f"decompress {name}", [{"type": "decompress"}], compressed, plain, len(lines))
    encoded = b"\n".join(map(base64.b64encode, records)) + b"\n"
    yield _incoming(
        "split, base64", [split, {"type": "base64"}], encoded, lambda: [*map(base64.b64decode, encoded.split(b"\n"))]
    )
    yield _decrypting(records)


def _incoming(name: str, specs: list[dict[str, Any]], data: bytes, plain: Callable[[], object], size: int = 0) -> Case:
    chains = make_chains([InterceptorSpec(**one) for one in specs], [])
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]

    def ours() -> None:
        chain = chains.incoming()
        for piece in pieces:
            chain.feed(piece)
        chain.finish()

    return Case(f"in {name}", size or len(data), ours, plain)


def _compressed(lines: bytes) -> Iterator[tuple[str, bytes, Callable[[], object]]]:
    import cramjam
    import lz4.frame
    import zstandard

    gz, xz, zl = gzip.compress(lines), lzma.compress(lines), zlib.compress(lines)
    zs, l4 = zstandard.ZstdCompressor().compress(lines), lz4.frame.compress(lines)
    sn = bytes(cramjam.snappy.compress(lines))
    yield "gzip", gz, lambda: gzip.decompress(gz)
    yield "zlib", zl, lambda: zlib.decompress(zl)
    yield "xz", xz, lambda: lzma.decompress(xz)
    yield "zstd", zs, lambda: zstandard.ZstdDecompressor().decompress(zs)
    yield "lz4", l4, lambda: lz4.frame.decompress(l4)
    yield "snappy", sn, lambda: cramjam.snappy.decompress(sn)


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
