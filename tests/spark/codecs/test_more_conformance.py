"""The other codecs against the tests that every codec must pass, with vectors made from the public specifications."""

import io
import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, ClassVar

import fastavro
import pyarrow as pa
import pyarrow.parquet
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.ddl import parse_ddl
from penstock.core.errors import RequestError
from penstock.core.kinds import arrow_field
from penstock.protocol.api.deployment import port_for
from penstock.spark.codecs.api import Encode
from penstock.spark.codecs.avro_codec import Avro
from penstock.spark.codecs.by_json import ByJson, JsonLines, Yaml
from penstock.spark.codecs.codec import name_of, options_of, with_options
from penstock.spark.codecs.codec_options import ProtobufOptions
from penstock.spark.codecs.csv_codec import Csv
from penstock.spark.codecs.influx import Influx
from penstock.spark.codecs.logfmt import Logfmt
from penstock.spark.codecs.logs import Cef, Gelf, Syslog
from penstock.spark.codecs.metric_lines import DogStatsd, Graphite, Statsd
from penstock.spark.codecs.patterns import Grok, Regex
from penstock.spark.codecs.protobuf_codec import Protobuf
from penstock.spark.codecs.registry import codec
from penstock.spark.codecs.row_files import Arrow, Parquet
from penstock.spark.codecs.texts import Null
from penstock.testing.codecs import CodecConformance

Events = dict[bytes, dict[str, Any]]
NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


class TestCsvDialect(CodecConformance):
    codec = Csv
    schema = "id INT, name STRING, price DOUBLE"
    options: ClassVar[dict[str, Any]] = {"delimiter": ";", "quote": "'", "null": "NA"}
    events: ClassVar[Events] = {
        b"1;'a;b''c';1.5\n": {"id": 1, "name": "a;b'c", "price": 1.5},
        b"NA;NA;NA": {"id": None, "name": None, "price": None},
        b'2;"x, y";0.5': {"id": 2, "name": '"x, y"', "price": 0.5},
        b"3;'';1.0": {"id": 3, "name": "", "price": 1.0},
        b"3;'NA';1.0": {"id": 3, "name": "NA", "price": 1.0},
    }
    bad = (b"", b"1;2", b"1,2,3", b"1;'x;2", b"\xff;;")


class TestCsvWithEscapes(CodecConformance):
    codec = Csv
    schema = "id INT, name STRING, more STRING"
    options: ClassVar[dict[str, Any]] = {"escape": "\\"}
    events: ClassVar[Events] = {
        rb'1,"a \"b\", c\\","x"': {"id": 1, "name": 'a "b", c\\', "more": "x"},
        rb"2,a\,b,\n\"\"": {"id": 2, "name": "a,b", "more": 'n""'},
        rb'3,"two ""quotes""",': {"id": 3, "name": 'two "quotes"', "more": None},
        b'4,"a\nb",""': {"id": 4, "name": "a\nb", "more": ""},
    }
    bad = (b"", b"1,2", rb"1,a,b\\"[:-1], rb'1,"a\",b', rb'1,a,"b\"', b"1,a\\\nb,c", rb'1,"a"\,,b')


class TestCsvWithoutQuotes(CodecConformance):
    codec = Csv
    schema = "id INT, name STRING, more STRING"
    options: ClassVar[dict[str, Any]] = {"delimiter": "\t", "quote": "", "null": "NULL"}
    events: ClassVar[Events] = {
        b'1\ta "b\t"': {"id": 1, "name": 'a "b', "more": '"'},
        b"NULL\t\tNULL": {"id": None, "name": "", "more": None},
        rb"3	a\n	\\": {"id": 3, "name": "a\\n", "more": "\\\\"},
    }
    bad = (b"", b"1\ta", b"1\ta\tb\tc", b"1\ta\nb\tc", b'"1"\ta\tb')


class TestCsvWithEscapesAlone(CodecConformance):
    codec = Csv
    schema = "id INT, name STRING"
    options: ClassVar[dict[str, Any]] = {"delimiter": "|", "quote": "", "escape": "^"}
    events: ClassVar[Events] = {
        b'1|a^|b^^c"': {"id": 1, "name": 'a|b^c"'},
        b"2|": {"id": 2, "name": None},
    }
    bad = (b"", b"1", b"1|a|b", b"1|a^", b"1|a^\nb")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"quote": ""}, "a,b"),
        ({"quote": ""}, "a\nb"),
        ({"quote": "", "null": "NA"}, "NA"),
        ({"quote": "", "escape": "\\"}, "a\rb"),
    ],
)
def test_a_text_that_needs_quotes_is_not_written_without(options: dict[str, str], text: str) -> None:
    rows = pa.record_batch({"id": [1, 2], "name": ["fits", text]})
    with pytest.raises(RequestError, match=r"cannot write .* without quotes"):
        codec(with_options("csv", options)).encoder(rows.schema)(rows)


@pytest.mark.parametrize(
    "options", [{"escape": '"'}, {"escape": ","}, {"escape": "\n"}, {"escape": "ab"}, {"escape": "N", "null": "NA"}]
)
def test_a_dialect_that_cannot_be_read_again_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(RequestError, match="codec csv"):
        codec(with_options("csv", options))


class TestCsvWithTabs(CodecConformance):
    codec = Csv
    schema = "id INT, name STRING"
    options: ClassVar[dict[str, Any]] = {"delimiter": "\t"}
    events: ClassVar[Events] = {b"1\ta,b": {"id": 1, "name": "a,b"}, b'2\t"a\tb"': {"id": 2, "name": "a\tb"}}
    bad = (b"1,2", b"1\t2\t3")


class TestJsonLines(CodecConformance):
    codec = JsonLines
    schema = "id INT, name STRING"
    events: ClassVar[Events] = {
        b'{"id": 1}\n{"id": 2, "name": "x"}\n': {"rows": [{"id": 1, "name": None}, {"id": 2, "name": "x"}]},
        b"": {"rows": []},
        b"{}": {"rows": [{"id": None, "name": None}]},
    }
    bad = (b"{", b'{"id": 1}\n[]', b'{"id": "x"}\n{"id": 1}', b"\xff")


class TestYaml(CodecConformance):
    codec = Yaml
    schema = "id INT, name STRING, tags ARRAY<STRING>, at TIMESTAMP"
    events: ClassVar[Events] = {
        b"id: 1\nname: |\n  two\n  lines\ntags: [a, 'b']\nat: 2026-01-02T12:00:00Z\n": {
            "id": 1,
            "name": "two\nlines\n",
            "tags": ["a", "b"],
            "at": NOON,
        },
        b"{}": {"id": None, "name": None, "tags": None, "at": None},
    }
    bad = (b"", b"- 1", b"a: [", b"a: !!python/object:os.system x", b"\xff", b"id: x", b"a: 1\n---\nb: 2")


class TestLogfmt(CodecConformance):
    codec = Logfmt
    events: ClassVar[Events] = {
        b'level=info msg="two \\"words\\"" ok': {"data": {"level": "info", "msg": 'two "words"', "ok": "true"}},
        b"": {"data": {}},
        b"a= b=1\n": {"data": {"a": "", "b": "1"}},
    }
    bad = (b'a="x', b"=x", b"\xff", b'a"=1')


class TestLogfmtWithSchema(CodecConformance):
    codec = Logfmt
    schema = "level STRING, took DOUBLE, count INT, ok BOOLEAN"
    events: ClassVar[Events] = {
        b"level=info took=1.5 count=-3 ok": {"level": "info", "took": 1.5, "count": -3, "ok": True},
        b"level=5 ok=false other=x": {"level": "5", "took": None, "count": None, "ok": False},
    }
    bad = (b"count=x", b"count=1.5", b"ok=maybe")


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}]},
            },
        },
        {"name": "raw", "type": {"type": "fixed", "name": "Two", "size": 2}},
    ],
}
ORDER = {
    "id": 1 << 40,
    "note": None,
    "at": NOON,
    "day": date(2026, 1, 2),
    "price": Decimal("12.50"),
    "tags": {"a": 1},
    "items": [{"sku": "x"}, {"sku": ""}],
    "raw": b"\x00\xff",
}


def avro(row: Any, schema: Any = AVRO) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, row)
    return stream.getvalue()


class TestAvro(CodecConformance):
    codec = Avro
    options: ClassVar[dict[str, Any]] = {"avro_schema": json.dumps(AVRO)}
    events: ClassVar[Events] = {
        avro(ORDER): ORDER,
        avro(ORDER | {"note": "n", "items": []}): ORDER | {"note": "n", "items": []},
    }
    bad = (b"", avro(ORDER)[:-1], avro(ORDER) + b"x")


class TestAvroWithSchema(CodecConformance):
    codec = Avro
    schema = "id BIGINT, note STRING, day DATE"
    options: ClassVar[dict[str, Any]] = {"avro_schema": json.dumps(AVRO)}
    events: ClassVar[Events] = {avro(ORDER): {"id": 1 << 40, "note": None, "day": date(2026, 1, 2)}}
    bad = (b"",)
    encodes = False


# message Order { int64 id = 1; string note = 2; repeated int32 counts = 3; map<string, double> prices = 4;
#                 enum State { NEW = 0; PAID = 1; }  State state = 5; bytes raw = 6; optional bool ok = 7;
#                 Order parent = 8; google.protobuf.Timestamp at = 9; }
F = descriptor_pb2.FieldDescriptorProto


def descriptor() -> descriptor_pb2.FileDescriptorSet:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="PricesEntry")
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_DOUBLE, label=F.LABEL_OPTIONAL)
    entry.options.map_entry = True
    state = order.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    order.oneof_decl.add(name="_ok")
    fields: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("id", F.TYPE_INT64, F.LABEL_OPTIONAL, {}),
        ("note", F.TYPE_STRING, F.LABEL_OPTIONAL, {}),
        ("counts", F.TYPE_INT32, F.LABEL_REPEATED, {}),
        ("prices", F.TYPE_MESSAGE, F.LABEL_REPEATED, {"type_name": ".shop.Order.PricesEntry"}),
        ("state", F.TYPE_ENUM, F.LABEL_OPTIONAL, {"type_name": ".shop.Order.State"}),
        ("raw", F.TYPE_BYTES, F.LABEL_OPTIONAL, {}),
        ("ok", F.TYPE_BOOL, F.LABEL_OPTIONAL, {"proto3_optional": True, "oneof_index": 0}),
        ("parent", F.TYPE_MESSAGE, F.LABEL_OPTIONAL, {"type_name": ".shop.Order"}),
        ("at", F.TYPE_MESSAGE, F.LABEL_OPTIONAL, {"type_name": ".google.protobuf.Timestamp"}),
    ]
    for number, (name, kind, label, more) in enumerate(fields, 1):
        order.field.add(name=name, number=number, type=kind, label=label, **more)
    file.dependency.append("google/protobuf/timestamp.proto")
    time = descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    return descriptor_pb2.FileDescriptorSet(file=[time, file])


@pytest.fixture(scope="module", autouse=True)
def _descriptor(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("protobuf") / "shop.desc"
    path.write_bytes(descriptor().SerializeToString())
    TestProtobuf.options = {"descriptor": str(path), "message": "shop.Order"}


class TestProtobuf(CodecConformance):
    """The bytes are made by hand from the specification of the encoding."""

    codec = Protobuf
    schema = (
        "id BIGINT, note STRING, counts ARRAY<INT>, prices MAP<STRING, DOUBLE>, state STRING, raw BINARY, ok BOOLEAN, "
        "parent STRUCT<id: BIGINT>"
    )
    options: ClassVar[dict[str, Any]] = {}
    events: ClassVar[Events] = {
        b"\x08\x96\x01\x12\x02hi\x1a\x03\x01\x02\x03\x22\x0c\x0a\x01a"
        b"\x11\x00\x00\x00\x00\x00\x00\xf8\x3f\x28\x01\x32\x02\x00\xff\x38\x00\x42\x02\x08\x05": {
            "id": 150,
            "note": "hi",
            "counts": [1, 2, 3],
            "prices": {"a": 1.5},
            "state": "PAID",
            "raw": b"\x00\xff",
            "ok": False,
            "parent": {"id": 5},
        },
        b"": {"id": 0, "note": "", "counts": [], "prices": {}, "state": "NEW", "raw": b"", "ok": None, "parent": None},
    }
    bad: ClassVar[tuple[bytes, ...]] = (
        b"\x08",
        b"\x12\x05hi",
        b"\xff\xff",
        b"\x12\x01\xff",
    )


class TestProtobufWithTimes(TestProtobuf):
    schema = "id BIGINT, at TIMESTAMP"
    events: ClassVar[Events] = {
        b"\x08\x01\x4a\x06\x08\xc0\xe6\xde\xca\x06": {"id": 1, "at": NOON},
        b"": {"id": 0, "at": None},
    }
    bad: ClassVar[tuple[bytes, ...]] = (
        b"\x08",
        b"\x4a\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a time of 2^63 - 1 seconds
    )


def ipc(table: pa.Table, *, is_file: bool = False) -> bytes:
    sink = pa.BufferOutputStream()
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(table, sink)
    return bytes(sink.getvalue())


TABLE = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", None], "other": [1.0, 2.0]})
ROWS = {"rows": [{"id": 1, "name": "a"}, {"id": 2, "name": None}]}
WRONG = pa.table({"id": ["x"]})


class TestArrow(CodecConformance):
    codec = Arrow
    schema = "id INT, name STRING"
    events: ClassVar[Events] = {
        ipc(TABLE): ROWS,
        ipc(TABLE, is_file=True): ROWS,
        ipc(TABLE.select(["id"]).slice(0, 1)): {"rows": [{"id": 1, "name": None}]},
        ipc(TABLE.slice(0, 0)): {"rows": []},
    }
    bad = (b"", b"ARROW1", ipc(TABLE)[:40], ipc(WRONG))


class TestParquet(CodecConformance):
    codec = Parquet
    schema = "id INT, name STRING"
    events: ClassVar[Events] = {parquet(TABLE): ROWS, parquet(TABLE.slice(0, 0)): {"rows": []}}
    bad = (b"", b"PAR1", parquet(TABLE)[:-5], parquet(WRONG))


class TestInflux(CodecConformance):
    codec = Influx
    events: ClassVar[Events] = {
        rb'my\ weather,loc\,x=us\ west temp=82,ok=t,n=-3i,text="a \"b\", c" 1767355200000001000': {
            "measurement": "my weather",
            "tags": {"loc,x": "us west"},
            "fields": '{"temp":82.0,"ok":true,"n":-3,"text":"a \\"b\\", c"}',
            "time": NOON.replace(microsecond=1),
        },
        b"m f=1i": {"measurement": "m", "tags": {}, "fields": '{"f":1}', "time": None},
    }
    bad = (b"", b"m", b"m f", b"m f=x", b"#m f=1", b'm f="x', b"\xff f=1", b"m f=1 x", b"m,t f=1")


class TestInfluxSeconds(CodecConformance):
    codec = Influx
    options: ClassVar[dict[str, Any]] = {"precision": "s"}
    events: ClassVar[Events] = {
        b"m f=1i 1767355200": {"measurement": "m", "tags": {}, "fields": '{"f":1}', "time": NOON}
    }
    bad = (b"m f=1 1.5",)


class TestGraphite(CodecConformance):
    codec = Graphite
    events: ClassVar[Events] = {
        b"a.b.c 1.5 1767355200\n": {"path": "a.b.c", "number": 1.5, "time": NOON, "tags": {}},
        b"disk;dc=x;rack=1 -3 -1": {"path": "disk", "number": -3.0, "time": None, "tags": {"dc": "x", "rack": "1"}},
    }
    bad = (b"", b"a.b", b"a.b x 1", b"a.b 1 x", b"\xff 1 1", b"a;b 1 1")


class TestStatsd(CodecConformance):
    codec = Statsd
    events: ClassVar[Events] = {
        b"gorets:1|c|@0.1": {"name": "gorets", "kind": "c", "number": 1.0, "text": "1", "rate": 0.1},
        b"glork:320|ms": {"name": "glork", "kind": "ms", "number": 320.0, "text": "320", "rate": None},
        b"gaugor:-10|g": {"name": "gaugor", "kind": "g", "number": -10.0, "text": "-10", "rate": None},
        b"uniques:ab|s": {"name": "uniques", "kind": "s", "number": None, "text": "ab", "rate": None},
    }
    bad = (b"", b"x", b"x:1", b"x:1|q", b"x:y|c", b":1|c", b"\xff:1|c", b"x:1|c|#a")


DOG: dict[str, Any] = {"numbers": None, "text": None, "rate": None, "tags": {}, "attributes": {}}


class TestDogStatsd(CodecConformance):
    codec = DogStatsd
    events: ClassVar[Events] = {
        b"page.views:1:2.5|d|@0.5|c:ci-1|#env:dev,up": DOG
        | {
            "kind": "d",
            "name": "page.views",
            "numbers": [1.0, 2.5],
            "rate": 0.5,
            "tags": {"env": "dev", "up": ""},
            "attributes": {"c": "ci-1"},
        },
        b"page.views:15|c|#env:dev|c:ci-1|e:it-false|T1656581400|card:low": DOG
        | {
            "kind": "c",
            "name": "page.views",
            "numbers": [15.0],
            "tags": {"env": "dev"},
            "attributes": {"c": "ci-1", "e": "it-false", "T": "1656581400", "card": "low"},
        },
        b"users:ann|s|T0": DOG | {"kind": "s", "name": "users", "text": "ann", "attributes": {"T": "0"}},
        b"users:ann|s": DOG | {"kind": "s", "name": "users", "text": "ann"},
        b"_e{5,9}:title|two\\nline|p:low|#a:b": DOG
        | {"kind": "event", "name": "title", "text": "two\nline", "tags": {"a": "b"}, "attributes": {"p": "low"}},
        b"_sc|Redis up|2|h:h1|m:gone": DOG
        | {"kind": "check", "name": "Redis up", "text": "2", "attributes": {"h": "h1", "m": "gone"}},
    }
    bad = (
        b"",
        b"x:1",
        b"x:1|q",
        b"x:y|c",
        b"_e{5}:x",
        b"_e{9,9}:a|b",
        b"_sc|x|9",
        b"\xff:1|c",
        b"x:1|c|??",
        b"x:1|c|Tomorrow",
        b"x:1|c|T",
        b"x:1|c|:a",
    )


SYSLOG = dict.fromkeys(("time", "time_text", "host", "app", "procid", "msgid")) | {"structured": {}}


class TestSyslog(CodecConformance):
    codec = Syslog
    events: ClassVar[Events] = {
        b'<165>1 2026-01-02T12:00:00.000001Z h app 12 ID47 [x@32473 a="1" b="q\\"\\]"][y@1] \xef\xbb\xbfhello': SYSLOG
        | {
            "facility": 20,
            "severity": 5,
            "time": NOON.replace(microsecond=1),
            "time_text": "2026-01-02T12:00:00.000001Z",
            "host": "h",
            "app": "app",
            "procid": "12",
            "msgid": "ID47",
            "structured": {"x@32473": {"a": "1", "b": 'q"]'}, "y@1": {}},
            "message": "hello",
        },
        b"<0>1 - - - - - -": SYSLOG | {"facility": 0, "severity": 0, "message": ""},
        b"<34>Oct  1 22:14:15 mymachine su[23]: 'su root' failed\n": SYSLOG
        | {
            "facility": 4,
            "severity": 2,
            "time_text": "Oct  1 22:14:15",
            "host": "mymachine",
            "app": "su",
            "procid": "23",
            "message": "'su root' failed",
        },
        b"<13>Feb  5 17:32:18 10.0.0.99 Use the BFG!": SYSLOG
        | {
            "facility": 1,
            "severity": 5,
            "time_text": "Feb  5 17:32:18",
            "host": "10.0.0.99",
            "message": "Use the BFG!",
        },
    }
    bad = (b"", b"hello", b"<192>1 - - - - - -", b"<1>1 2026-02-30T00:00:00Z - - - - -", b"<1>2 - - - - - -", b"\xff")
    encodes = False


class TestCef(CodecConformance):
    codec = Cef
    events: ClassVar[Events] = {
        rb"Sep 19 08:26:10 host CEF:0|Sec\|ur|threat\\man|1.0|100|worm \| stopped|10|"
        rb"src=10.0.0.1 msg=a \= b\nc dst=2.1.2.2": {
            "header": "Sep 19 08:26:10 host ",
            "version": "0",
            "vendor": "Sec|ur",
            "product": "threat\\man",
            "product_version": "1.0",
            "signature": "100",
            "name": "worm | stopped",
            "severity": "10",
            "extension": {"src": "10.0.0.1", "msg": "a = b\nc", "dst": "2.1.2.2"},
        },
        b"CEF:1|a|b|c|d|e|Low|": {
            "header": None,
            "version": "1",
            "vendor": "a",
            "product": "b",
            "product_version": "c",
            "signature": "d",
            "name": "e",
            "severity": "Low",
            "extension": {},
        },
    }
    bad = (b"", b"CEF:0|a|b", b"CEF:x|a|b|c|d|e|1|", b"\xff", b"CEF:0|a|b|c|d|e|1|nothing")


class TestGelf(CodecConformance):
    codec = Gelf
    events: ClassVar[Events] = {
        b'{"version": "1.1", "host": "h", "short_message": "m", "full_message": "f", "timestamp": 1767355200.5, '
        b'"level": 1, "_user": "ann", "_n": 42}': {
            "version": "1.1",
            "host": "h",
            "short_message": "m",
            "full_message": "f",
            "time": NOON.replace(microsecond=500_000),
            "level": 1,
            "extra": {"user": "ann", "n": "42"},
        },
        b'{"version": "1.1", "host": "h", "short_message": "m"}': {
            "version": "1.1",
            "host": "h",
            "short_message": "m",
            "full_message": None,
            "time": None,
            "level": None,
            "extra": {},
        },
    }
    bad = (
        b"",
        b"{}",
        b"[]",
        b'{"version": "1.1", "host": "h"}',
        b'{"version": "1.1", "host": "h", "short_message": 1}',
        b'{"version": "1.1", "host": "h", "short_message": "m", "timestamp": true}',
    )

    def test_a_field_and_an_additional_one_of_the_same_name_are_one_key(self) -> None:
        fields = ('"file": 1, "_file": 2', '"_file": 2, "file": 1', '"file": 1, "_file": null', '"__a": 1, "_a": 2')
        events = [b'{"version": "1.1", "host": "h", "short_message": "m", %b}' % one.encode() for one in fields]
        *_, extra = Gelf().decoder(None)(pa.array(events, pa.binary())).arrays
        assert extra.to_pylist() == [[("file", "2")], [("file", "2")], [("file", "1")], [("_a", "1"), ("a", "2")]]


class TestRegex(CodecConformance):
    codec = Regex
    options: ClassVar[dict[str, Any]] = {"pattern": r"(?P<user>\w+)(?: from (?P<host>\S+))?"}
    events: ClassVar[Events] = {
        b"ann from h1\n": {"user": "ann", "host": "h1"},
        b"bob": {"user": "bob", "host": None},
    }
    bad = (b"", b"ann from", b"\xff")
    encodes = False


class TestGrok(CodecConformance):
    codec = Grok
    options: ClassVar[dict[str, Any]] = {"pattern": "%{COMMONAPACHELOG}"}
    events: ClassVar[Events] = {
        b'127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a.gif HTTP/1.0" 200 2326': {
            "clientip": "127.0.0.1",
            "ident": "-",
            "auth": "frank",
            "timestamp": "10/Oct/2000:13:55:36 -0700",
            "verb": "GET",
            "request": "/a.gif",
            "httpversion": "1.0",
            "rawrequest": None,
            "response": 200,
            "bytes": 2326,
        },
    }
    bad = (b"", b"x", b'127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 99999999999999999999 1')
    encodes = False


def test_null_decodes_nothing_and_writes_nothing() -> None:
    rows = pa.record_batch({"a": [1, 2]})
    assert Null().fields(None) == ()
    assert Null().decoder(None)(pa.array([b"x", b"\xff"])).failed == {}
    assert Null().encoder(rows.schema)(rows).to_pylist() == [b"", b""]


def test_a_codec_whose_library_is_missing_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(RequestError, match="fastavro") as raised:
        codec('avro{"avro_schema":"{}"}').decoder(None)
    assert "pip install 'penstock-streams[avro]'" in raised.value.hint


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("csv{", "not valid JSON"),
        ('csv{"delimiter": ";;"}', "delimiter"),
        ('csv{"delimiter": "§"}', "delimiter"),
        ('csv{"quote": "“"}', "quote"),
        ('csv{"nothing": 1}', "nothing"),
        ('json{"a": 1}', "no options"),
        ("avro", "needs avro_schema"),
        ("regex", "pattern"),
    ],
)
def test_invalid_options_are_refused(text: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        codec(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('regex{"pattern": "("}', "pattern"),
        ('grok{"pattern": "%{NOTHING:x}"}', "no grok pattern"),
        ('grok{"pattern": "%{A:x}", "patterns": {"A": "%{A}"}}', "contains itself"),
        ('grok{"pattern": "x"}', "no named field"),
        ('avro{"avro_schema": "{}"}', "not a valid Avro schema"),
        ('protobuf{"descriptor": "/nowhere", "message": "a.B"}', "cannot be read"),
        ('protobuf{"descriptor": "/dev/zero", "message": "a.B"}', "it is not a file"),
    ],
)
def test_options_that_cannot_work_are_refused_before_a_query_starts(text: str, reason: str) -> None:
    found = codec(text)
    with pytest.raises(RequestError, match=reason):
        (found.fields(None), found.decoder(None))


def test_a_codec_with_options_is_one_text_and_has_a_port_of_its_own() -> None:
    text = with_options("csv", {"quote": "'", "delimiter": ";"})
    assert text == """csv{"delimiter":";","quote":"'"}"""
    assert (name_of(text), options_of(text)) == ("csv", {"delimiter": ";", "quote": "'"})
    assert with_options("csv", {}) == "csv"
    assert port_for("out", "csv") == "out.csv"
    assert port_for("out", text).startswith("out.csv-")
    assert port_for("out", text) != port_for("out", with_options("csv", {"delimiter": ";"}))


def test_a_yaml_document_of_aliases_is_refused_before_it_fills_memory() -> None:
    bomb = b"a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    for level in range(1, 9):
        bomb += f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 10)}]\n".encode()
    found = Yaml().decoder(None)(pa.array([bomb, b"a: 1"]))
    assert "values" in found.failed[0]
    assert found.arrays[0].to_pylist() == ['{"a":1}']


def test_a_yaml_document_with_merge_keys_is_refused_before_it_fills_memory() -> None:
    bomb = b"a0: &a0 {x: 1}\n"
    for level in range(1, 25):
        bomb += f"a{level}: &a{level} {{<<: [{','.join([f'*a{level - 1}'] * 10)}]}}\n".encode()
    assert "YAML" in Yaml().decoder(None)(pa.array([bomb])).failed[0]


def test_numbers_of_yaml_are_those_of_its_core_schema() -> None:
    sixties = b"1" + b":1" * 100_000
    event = b"[12:30, 010, 0o10, 0x1F, -1, 1e3, .5, 1_0]"
    found = Yaml().decoder(None)(pa.array([event, b"!!int " + sixties, b"!!float " + sixties, sixties]))
    assert sorted(found.failed) == [1, 2]
    assert found.arrays[0].to_pylist() == ['["12:30",10,8,31,-1,1000.0,0.5,"1_0"]', f'"{sixties.decode()}"']


def test_texts_that_look_like_numbers_are_written_to_yaml_in_quotes() -> None:
    rows = pa.record_batch({"text": ["1e3", "0o10", "12:30", "1_0", "010", "<<", ".inf"]})
    found = Yaml().decoder(None)(Yaml().encoder(rows.schema)(rows))
    assert [json.loads(one) for one in found.arrays[0].to_pylist()] == rows.to_pylist()


def test_a_no_break_space_is_part_of_a_name() -> None:
    influx = Influx().decoder(None)(pa.array(["m,a\u00a0b=c\u00a0d e\u00a0f=1i".encode()]))
    assert influx.arrays[1].to_pylist() == [[("a\u00a0b", "c\u00a0d")]]
    assert influx.arrays[2].to_pylist() == ['{"e\u00a0f":1}']
    syslog = Syslog().decoder(None)(pa.array(['<1>1 - - - - - [x\u00a0y a\u00a0b="1"]'.encode()]))
    assert syslog.arrays[8].to_pylist() == [[("x\u00a0y", [("a\u00a0b", "1")])]]


def test_syslog_rows_are_written_by_either_rfc() -> None:
    kind = pa.schema([(name, pa.string()) for name in ("host", "app", "procid", "message")])
    kind = kind.append(pa.field("facility", pa.int32())).append(pa.field("severity", pa.int32()))
    kind = kind.append(pa.field("time", pa.timestamp("us", "UTC")))
    row = {"host": "h", "app": "a", "procid": "1", "message": "m", "facility": 4, "severity": 2, "time": NOON}
    rows = pa.RecordBatch.from_pylist([row], schema=kind)

    def written(text: str) -> bytes:
        found: bytes = codec(text).encoder(kind)(rows)[0].as_py()
        return found

    assert written("syslog") == b"<34>1 2026-01-02T12:00:00.000000Z h a 1 - - m"
    assert written('syslog{"write":"3164"}') == b"<34>Jan  2 12:00:00 h a[1]: m"
    for text in ("syslog", 'syslog{"write":"3164"}'):
        found = Syslog().decoder(None)(pa.array([written(text)]))
        assert found.failed == {}
        assert [found.arrays[at][0].as_py() for at in (0, 1, 4, 5, 6, 9)] == [4, 2, "h", "a", "1", "m"]


PROTOBUF_SCHEMAS = (
    "id BIGINT, note STRING, counts ARRAY<INT>, prices MAP<STRING, DOUBLE>, state STRING, raw BINARY, ok BOOLEAN",
    "id INT, parent STRUCT<id: BIGINT, note: STRING, other: INT>, nothing STRING",
    "counts ARRAY<BIGINT>, state STRING, id TINYINT",
    "id STRING, counts ARRAY<STRING>, raw STRING",
)
_orders = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-200, 200),
        "note": st.text(max_size=3),
        "counts": st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=3),
        "prices": st.dictionaries(st.text(max_size=2), st.floats(), max_size=2),
        "state": st.integers(0, 3),
        "raw": st.binary(max_size=3),
        "ok": st.booleans(),
        "parent": st.fixed_dictionaries({}, optional={"id": st.integers(0, 9), "note": st.text(max_size=1)}),
    },
)


@pytest.mark.parametrize("ddl", PROTOBUF_SCHEMAS)
@settings(max_examples=100)
@given(orders=st.lists(_orders, max_size=4), is_bad=st.booleans())
def test_messages_become_the_same_columns_with_and_without_json(
    ddl: str, orders: list[dict[str, Any]], is_bad: bool
) -> None:
    made = Protobuf(ProtobufOptions.model_validate(TestProtobuf.options))
    message = made._message()
    values = pa.array([message(**order).SerializeToString() for order in orders] + [b"\x08"] * is_bad, pa.binary())
    schema = parse_ddl(ddl)
    found, expected = made.decoder(schema)(values), made._by_json(schema)(values)
    assert dict(found.failed) == dict(expected.failed)
    assert [repr(array.to_pylist()) for array in found.arrays] == [repr(array.to_pylist()) for array in expected.arrays]
    names = [field.name for field in schema if field.name in message.DESCRIPTOR.fields_by_name]
    rows = pa.RecordBatch.from_arrays([*found.arrays], schema=pa.schema([arrow_field(field) for field in schema]))
    rows = rows.select(names)
    assert _written(made.encoder(rows.schema), rows) == _written(ByJson.encoder(made, rows.schema), rows)


def _written(encode: Encode, rows: pa.RecordBatch) -> list[bytes] | str:
    try:
        found: list[bytes] = encode(rows).to_pylist()
    except RequestError as error:
        return str(error)
    return found
