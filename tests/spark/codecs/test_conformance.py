"""Our own codecs, and one of another package, against the tests that every codec must pass."""

import shutil
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import msgpack

from penstock.spark.codecs.codec import CODECS
from penstock.spark.codecs.csv_codec import Csv
from penstock.spark.codecs.json_codec import Json
from penstock.spark.codecs.msgpack_codec import MessagePack
from penstock.spark.codecs.texts import String
from penstock.testing.codecs import CodecConformance
from tests.spark.codecs.plugin.penstock_pairs import Pairs

PLUGIN = Path(__file__).with_name("plugin")

NOTHING = {"id": None, "name": None, "at": None, "day": None, "price": None, "tags": None, "counts": None, "raw": None}
ROW = NOTHING | {
    "id": -5,
    "name": 'grün, "x"\n',
    "at": datetime(2026, 1, 2, 3, 4, 5, 600000, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "price": Decimal("1.50"),
    "tags": [{"a": 1.5, "b": None}, None],
    "counts": {"x": 1, "": None},
    "raw": b"\x00\xff",
}
DDL = (
    "id INT, name STRING, at TIMESTAMP, day DATE, price DECIMAL(5,2), tags ARRAY<STRUCT<a: DOUBLE, b: STRING>>, "
    "counts MAP<STRING, BIGINT>, raw BINARY"
)


class TestJson(CodecConformance):
    codec = Json
    schema = DDL
    events: ClassVar[dict[bytes, dict[str, Any]]] = {
        b'{"id": -5, "name": "gr\\u00fcn, \\"x\\"\\n", "at": "2026-01-02T03:04:05.6Z", "day": "2026-01-02", '
        b'"price": 1.5, "tags": [{"a": 1.5}, null], "counts": {"x": 1, "": null}, "raw": "AP8="}': ROW,
        b"{}": NOTHING,
        b'{"name": 5}': NOTHING | {"name": "5"},
    }
    bad = (b"", b"[]", b"{", b'{"id": "x"}', b"\xff", b"{} {}")


class TestMessagePack(CodecConformance):
    codec = MessagePack
    schema = DDL
    events: ClassVar[dict[bytes, dict[str, Any]]] = {
        msgpack.packb(ROW | {"day": "2026-01-02", "price": "1.50"}, datetime=True): ROW,
        msgpack.packb({}): NOTHING,
    }
    bad = (b"", b"\xc1", msgpack.packb([]), msgpack.packb({"id": "x"}))


class TestCsv(CodecConformance):
    codec = Csv
    schema = "id INT, name STRING, at TIMESTAMP, price DECIMAL(5,2)"
    events: ClassVar[dict[bytes, dict[str, Any]]] = {
        b'-5,"gr\xc3\xbcn, ""x""\n",2026-01-02T03:04:05.6Z,1.5\n': {
            name: ROW[name] for name in ("id", "name", "at", "price")
        },
        b',"",,': {"id": None, "name": "", "at": None, "price": None},
    }
    bad = (b"", b"1,2,3,4,5", b"x,,,", b'"', b"\xff,,,")


class TestString(CodecConformance):
    codec = String
    events: ClassVar[dict[bytes, dict[str, Any]]] = {"grün".encode(): {"text": "grün"}, b"": {"text": ""}}
    bad = (b"\xff",)


class TestPairs(CodecConformance):
    codec = Pairs
    schema = "a STRING, b STRING"
    events: ClassVar[dict[bytes, dict[str, Any]]] = {b"a=1;b=x": {"a": "1", "b": "x"}, b"b=": {"a": None, "b": ""}}
    bad = (b"a", b"\xff", b"a=1=2")


def test_a_package_can_provide_a_codec_with_an_entry_point(tmp_path: Path) -> None:
    """It is installed with pip, without a network."""
    source = shutil.copytree(PLUGIN, tmp_path / "source")
    install = ["--no-index", "--no-build-isolation", "--no-deps", "--target", str(tmp_path / "site"), str(source)]
    subprocess.run([sys.executable, "-m", "pip", "install", *install], check=True, capture_output=True)
    code = (
        "from penstock.spark.codecs import about, names; "
        "from penstock.spark.codecs.batch_decoder import Decoder; "
        "from penstock.spark.codecs.codec import Branch; "
        "print(*names(), about('pairs').content_types[0], Decoder([Branch('pairs', 'a STRING')], ()).ddl())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [*sorted([*CODECS, "pairs"]), "text/x-pairs", "a", "STRING"]
