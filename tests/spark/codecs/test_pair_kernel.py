"""The kernels of logfmt and InfluxDB's lines decide as Python does, whatever an event is."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.spark.codecs import influx as lines_of_influx
from penstock.spark.codecs import logfmt
from penstock.spark.codecs.api import Columns
from penstock.spark.codecs.codec_options import InfluxOptions
from penstock.spark.codecs.influx import Influx

LINES = st.lists(st.text(alphabet='ab0917.-+eiutTfrse=," \\\t\n\v#{}\u00a0é\x01|:', max_size=30), max_size=4)
FIELD = st.sampled_from(
    [
        "a=1",
        "a=1i",
        "b=-0i",
        "b=007",
        "c=0.5",
        "c=.5",
        "c=0.00001",
        "c=1.50",
        "d=t",
        "d=False",
        "d=TRUE",
        'e="x"',
        'e="\\"q"',
        "f=1e5",
        "f=-12.25",
        "h=0.0",
        "h=-0",
        "i=x",
        "g=9007199254740993i",
        "g=12345678901234567.5",
        "j=2u",
    ]
)
TIMES = ("", " 1", "  1767355200000000000", " 9999999999999999999", " 0999999999999999999", " -5", " -", " x", " 1 \n")
INFLUX_LINES = st.lists(
    st.builds(
        lambda head, fields, time: f"{head} {','.join(fields)}{time}",
        st.sampled_from(["m", "m,a=b", "m,a=b,c=d", "m,a=b,a=c", "#m", "m,a", "a\\ b", "m=1", "m,é=ü"]),
        st.lists(FIELD, min_size=1, max_size=4),
        st.sampled_from(TIMES),
    ),
    max_size=4,
)


def _shown(found: Columns) -> Any:
    return [array.to_pylist() for array in found.arrays], dict(found.failed)


@settings(max_examples=100, deadline=None)
@given(LINES)
@example(['a="b" c', "a=b a=c", 'a"b', 'a="b"c', " ", "", "=b", 'a="b', "a=b=c", "\u00a0=1"])
def test_words_of_logfmt_are_those_that_python_finds(lines: list[str]) -> None:
    values = pa.array([line.encode() for line in lines], pa.binary())
    assert _shown(logfmt._maps_of_words(values)) == _shown(logfmt._maps_one_by_one(values))


@settings(max_examples=100, deadline=None)
@given(LINES | INFLUX_LINES, st.sampled_from(["ns", "us", "ms", "s"]))
def test_lines_of_influx_are_those_that_python_finds(lines: list[str], precision: Any) -> None:
    influx = Influx(InfluxOptions(precision=precision))
    values = pa.array([line.encode() for line in lines], pa.binary())
    assert _shown(influx.decode(values)) == _shown(influx._by_pattern(values))


def test_plain_events_are_left_to_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise AssertionError("an event went to Python")

    monkeypatch.setattr(logfmt, "_words", refused)
    monkeypatch.setattr(lines_of_influx, "extract", refused)
    words = logfmt.Logfmt().decoder(None)(pa.array([b'level=info msg="two words" debug\n']))
    assert words.arrays[0].to_pylist() == [[("level", "info"), ("msg", "two words"), ("debug", "true")]]
    lines = Influx().decode(pa.array([b'm,a=b x=1i,y=-2,z=0.25,t=true,s="two, words" 1767355200000000000\n']))
    assert json.loads(lines.arrays[2][0].as_py()) == {"x": 1, "y": -2.0, "z": 0.25, "t": True, "s": "two, words"}


def test_events_that_are_not_utf8_fail_alone_and_slices_keep_their_rows() -> None:
    values = pa.array([b"left=out", b"a=1", b"\xff=1", b"a=2 a=3"], pa.binary())[1:]
    found = logfmt.Logfmt().decoder(None)(values)
    assert found.arrays[0].to_pylist() == [[("a", "1")], [("a", "3")]]
    assert found.failed == {1: "is not valid UTF-8"}
