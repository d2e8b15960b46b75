"""Events and schemas that are valid but odd, or made to cost much: what they become, and what they may take."""

import io
import json
import math
import tracemalloc
from typing import Any

import fastavro
import msgpack
import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.cli.tail import decoded_rows
from penstock.core.ddl import parse_ddl
from penstock.core.errors import RequestError
from penstock.spark.codecs import row_files
from penstock.spark.codecs.api import Codec
from penstock.spark.codecs.batch_decoder import Decoded, Decoder
from penstock.spark.codecs.by_json import Yaml
from penstock.spark.codecs.codec import Branch
from penstock.spark.codecs.csv_codec import Csv
from penstock.spark.codecs.influx import Influx
from penstock.spark.codecs.logfmt import Logfmt
from penstock.spark.codecs.logs import Cef, Syslog
from penstock.spark.codecs.metric_lines import Graphite
from penstock.spark.codecs.registry import codec
from penstock.spark.codecs.row_files import Arrow, Parquet

NUMBERS = ["NaN", "Infinity", "-Infinity", None, 1.5]
AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "x", "type": {"type": "array", "items": ["null", "double"]}}],
}


# Files of rows


def _parquet(rows: int) -> bytes:
    """A small file of rows that are all alike: pages of a dictionary have a few bits for each."""
    sink = io.BytesIO()
    pa.parquet.write_table(pa.table({"text": pa.array(["x" * 100] * rows)}), sink, compression="zstd")
    return sink.getvalue()


def _arrow(rows: int, form: str) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"text": pa.array(["x" * 100] * rows)})
    new = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("form", ["parquet", "stream", "file"])
def test_a_small_file_of_many_bytes_is_refused_and_its_neighbours_are_not(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_files, "_BYTES_MAX", 1 << 20)
    write, kind = (_parquet, Parquet()) if form == "parquet" else (lambda rows: _arrow(rows, form), Arrow())
    bomb, small = write(20_000), write(100)
    assert len(bomb) < 100_000
    before = pa.total_allocated_bytes()
    found = kind.decoder(parse_ddl("text STRING"))(pa.array([bomb, small]))
    assert "bytes" in found.failed[0]
    assert [len(rows) for rows in found.arrays[0].to_pylist()] == [100]
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("form", ["stream", "file"])
def test_a_compressed_batch_of_arrow_is_refused_before_it_is_read(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_BYTES_MAX", 1 << 20)
    event = _arrow(20_000, form)
    monkeypatch.setattr(pa.ipc, "open_stream", lambda _: pytest.fail("it was read"))
    assert "bytes" in Arrow().decoder(parse_ddl("text STRING"))(pa.array([event])).failed[0]


def test_a_dictionary_of_arrow_may_not_become_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_BYTES_MAX", 1 << 20)
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int8()), ["x" * 100])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("text", column.type)])) as writer:
        writer.write_table(pa.table({"text": column}))
        writer.write_table(pa.table({"text": column[:10]}))
    event = bytes(sink.getvalue())
    assert "bytes" in Arrow().decoder(parse_ddl("text STRING"))(pa.array([event])).failed[0]
    monkeypatch.setattr(row_files, "_BYTES_MAX", 4 << 20)
    found = Arrow().decoder(parse_ddl("text STRING, n INT"))(pa.array([event])).arrays[0]
    assert [len(rows) for rows in found.to_pylist()] == [20_010]


def test_nulls_in_lists_are_counted_before_they_become_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_ELEMENTS_MAX", 1000)
    lists = pa.ListArray.from_arrays(pa.array([0, 100_000], pa.int32()), pa.nulls(100_000))
    fixed = pa.FixedSizeListArray.from_arrays(pa.nulls(100_000), 100_000)
    inside = pa.StructArray.from_arrays([lists], ["ids"])
    events = [_stream(pa.record_batch([column], ["ids"])) for column in (lists, fixed)]
    for event in [*events, _stream(pa.record_batch([inside], ["ids"]))]:
        assert len(event) < 1000
        ddl = "ids ARRAY<BIGINT>" if event in events else "ids STRUCT<ids: ARRAY<BIGINT>>"
        assert "elements" in Arrow().decoder(parse_ddl(ddl))(pa.array([event])).failed[0]
    sink = io.BytesIO()
    nulls = pa.ListArray.from_arrays(pa.array([0, 100_000], pa.int32()), pa.nulls(100_000, pa.int64()))
    pa.parquet.write_table(pa.table({"ids": nulls}), sink)
    assert "elements" in Parquet().decoder(parse_ddl("ids ARRAY<BIGINT>"))(pa.array([sink.getvalue()])).failed[0]


def test_a_long_value_of_parquet_is_refused_before_its_rows_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_BYTES_MAX", 1 << 20)
    sink = io.BytesIO()
    pa.parquet.write_table(pa.table({"text": ["x" * (2 << 20)]}), sink, compression="zstd")
    monkeypatch.setattr(pa.parquet.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("it was read"))
    assert "bytes" in Parquet().decoder(parse_ddl("text STRING"))(pa.array([sink.getvalue()])).failed[0]


def _together(kind: Codec, ddl: str, *values: bytes) -> list[Decoded]:
    """In the parts in which a reader gets them."""
    decoder = Decoder([Branch(kind.about.name, ddl)], ())
    return [*decoder.decode_parts(pa.record_batch({"value": pa.array(values, pa.binary())}))]


@pytest.mark.parametrize("form", ["parquet", "stream"])
def test_events_that_are_too_much_together_are_decoded_in_parts(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(row_files, "_BATCH_BYTES_MAX", 1 << 20)
    write, kind = (_parquet, Parquet()) if form == "parquet" else (lambda rows: _arrow(rows, form), Arrow())
    values = [write(count) for count in (8000, 20_000, 7000, 9000, 10, 9000)]
    parts = _together(kind, "text STRING", *values)
    assert all(part.batch.column("rows").nbytes <= 1 << 20 for part in parts)
    assert [len(row) for part in parts for row in part.batch.column("rows").to_pylist()] == [8000, 7000, 9000, 10, 9000]
    (failed,) = (part for part in parts if part.reasons)
    assert "bytes" in failed.reasons[0]
    assert failed.failed.column("value").to_pylist() == values[1:2]
    shown = decoded_rows(kind.about.name, "text STRING", values)
    assert [None if rows is None else len(rows) for rows, _ in shown] == [8000, None, 7000, 9000, 10, 9000]


def test_nulls_without_bytes_are_counted_as_the_columns_that_they_become(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(row_files, "_BATCH_BYTES_MAX", 1 << 20)
    real = pa.nulls
    monkeypatch.setattr(pa, "nulls", lambda n, kind: real(n, kind) if n <= 100_000 else pytest.fail("they were made"))
    small, large = (_stream(pa.record_batch([real(count)], ["other"])) for count in (50_000, 200_000))
    assert len(large) < 1000
    parts = _together(Arrow(), "a BIGINT, b STRUCT<c: STRING>", small, small, large, small)
    assert [len(row) for part in parts for row in part.batch.column("rows").to_pylist()] == [50_000] * 3
    assert [reason for part in parts for reason in part.reasons if "bytes" in reason]


def _stream(*batches: pa.RecordBatch, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def test_streams_of_arrow_are_decoded_together_as_they_are_alone() -> None:
    rows = pa.record_batch({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", None, "c"]})
    other = pa.record_batch({"name": ["x"]})
    coded = pa.record_batch({"id": pa.array([7]), "name": pa.array(["d"]).dictionary_encode()})
    good = [_stream(rows), _stream(rows, rows.slice(1, 1), rows.slice(0, 0)), _stream(rows.slice(0, 0)), _stream(rows)]
    bad = [good[0][:-20], good[0][: len(good[0]) // 2], b"", _stream(pa.record_batch({"id": ["x"]}))]
    mixed = [good[1], _stream(rows, compression="zstd"), _stream(coded), _stream(other), *bad, *good]
    decode = Arrow().decoder(parse_ddl("id INT, name STRING"))
    for events in (good, mixed, [good[1]], [good[0], good[1][:-9]], [b"ARROW1\0\0" + good[0], good[0]]):
        found, alone = decode(pa.array(events)), [decode(pa.array([event])) for event in events]
        assert found.failed == {row: of.failed[0] for row, of in enumerate(alone) if of.failed}
        assert found.arrays[0].to_pylist() == [rows for of in alone for rows in of.arrays[0].to_pylist()]
    assert [len(of) for of in decode(pa.array(good)).arrays[0].to_pylist()] == [3, 4, 0, 3]


# Numbers that JSON does not have


def test_numbers_that_json_does_not_have_are_those_texts_that_sparks_json_has() -> None:
    given = [math.nan, math.inf, -math.inf, None, 1.5]
    text = b"x: [.nan, .inf, -.inf, null, 1.5]"
    (found,) = Yaml().decoder(None)(pa.array([text])).arrays[0].to_pylist()
    assert json.loads(found) == {"x": NUMBERS}
    packed = msgpack.packb({"x": given})
    (found,) = codec("msgpack").decoder(None)(pa.array([packed])).arrays[0].to_pylist()
    assert json.loads(found) == {"x": NUMBERS}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), {"x": given})
    avro = codec(f"avro{json.dumps({'avro_schema': json.dumps(AVRO)})}")
    schema = parse_ddl("x ARRAY<DOUBLE>")
    for kind, event in ((Yaml(), text), (avro, stream.getvalue()), (codec("msgpack"), packed)):
        (values,) = kind.decoder(schema)(pa.array([event])).arrays[0].to_pylist()
        assert repr(values) == repr(given)


def test_a_number_that_json_does_not_have_is_not_why_a_value_of_msgpack_fails() -> None:
    event = msgpack.packb({"x": [math.nan], "id": "seven"})
    (reason,) = codec("msgpack").decoder(parse_ddl("x ARRAY<DOUBLE>, id INT"))(pa.array([event])).failed.values()
    assert reason == "has the wrong type at `id`: expected int, found string seven"


# Blanks


def test_names_with_blanks_that_are_not_of_ascii_are_written_as_they_are_read() -> None:
    event = "<34>1 - a\u00a0b c\u0085d - - - text".encode()
    rows = _rows(Syslog(), event)
    assert Syslog().encoder(rows.schema)(rows).to_pylist() == [event]
    event = "a\u00a0b;c=\u2003 1 -1".encode()
    rows = _rows(Graphite(), event)
    assert Graphite().encoder(rows.schema)(rows).to_pylist() == [event]
    event = "a\u00a0b=c\u00a0d".encode()
    found = Logfmt().decoder(None)(pa.array([event])).arrays[0]
    assert found.to_pylist() == [[("a\u00a0b", "c\u00a0d")]]
    rows = pa.record_batch([found], names=["data"])
    assert Logfmt().encoder(rows.schema)(rows).to_pylist() == [event]


def _rows(kind: Any, event: bytes) -> pa.RecordBatch:
    found = kind.decoder(None)(pa.array([event]))
    assert not found.failed
    return pa.RecordBatch.from_arrays([*found.arrays], [field.name for field in kind.fields(None)])


# Memory


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        (Logfmt(), b'a="\\n' + b"x" * 300_000 + b'"'),
        (Cef(), b"CEF:0|" + b"x" * 300_000 + b"|b|c|d|e|f|"),
        (Syslog(), b'<34>1 - - - - - [a b="' + b"x" * 300_000 + b'"]'),
        (Influx(), b'm a="\\"' + b"x" * 300_000 + b'"'),
        (Influx(), b"m,a=\\ " + b"x" * 300_000 + b" a=1"),
    ],
    ids=["logfmt", "cef", "syslog", "influx field", "influx tag"],
)
def test_a_long_value_takes_a_few_times_its_size(kind: Any, event: bytes) -> None:
    decode, values = kind.decoder(None), pa.array([event])
    tracemalloc.start()
    try:
        assert not decode(values).failed
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20 * len(event)


# Schemas and options


def test_an_avro_record_that_contains_itself_is_refused() -> None:
    tree = {
        "type": "record",
        "name": "Tree",
        "fields": [{"name": "below", "type": {"type": "array", "items": "Tree"}}],
    }
    found = codec(f"avro{json.dumps({'avro_schema': json.dumps(tree)})}")
    with pytest.raises(RequestError, match="contains itself"):
        found.fields(None)


@pytest.mark.parametrize("null", ["0", "NaN", "true"])
def test_numbers_that_are_written_as_null_is_stay_numbers(null: str) -> None:
    schema = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("b", pa.bool_())])
    rows = pa.RecordBatch.from_pylist([{"n": 0, "x": math.nan, "b": True}, {"n": None, "x": 0.0}], schema=schema)
    kind = Csv(Csv.about.model()(null=null))  # type: ignore[misc]
    written = kind.encoder(schema)(rows)
    found = kind.decoder(parse_ddl("n BIGINT, x DOUBLE, b BOOLEAN"))(written)
    assert not found.failed
    assert repr([array.to_pylist() for array in found.arrays]) == "[[0, None], [nan, 0.0], [True, None]]"
