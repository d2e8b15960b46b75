"""The kernels of logfmt and InfluxDB's lines decide as Python does, whatever an event is."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.spark.codecs import influx as lines_of_influx
from penstock.spark.codecs import logfmt, logs, metric_lines
from penstock.spark.codecs.api import Columns
from penstock.spark.codecs.codec_options import InfluxOptions
from penstock.spark.codecs.fixed_columns import row_by_row
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


CEF = st.builds(
    lambda head, extension: f"{head}|v|p|1.0|7|a name|5|{extension}",
    st.sampled_from(["CEF:0", "<34>x CEF:12", "CEF: CEF:1", "CEF:1234", "CEF:", "CEF:\u0660", "cef:0", "CEF:0|\\|"]),
    st.text(alphabet="ab0.-[_=  \\|\t\n\r\x0b\x1c\u00a0é", max_size=20),
)
EXTENSION = st.lists(
    st.sampled_from(["a=1", "b=two  words ", "c=", "a=x=y", "é=1", "=", "x", "\u00a0", "d[0].e-f_g=h"])
)


@settings(max_examples=200, deadline=None)
@given(st.lists(CEF | EXTENSION.map(lambda of: f"CEF:0|v|p|1.0|7|a name|5|{' '.join(of)}"), max_size=4))
def test_cef_is_what_python_finds(lines: list[str]) -> None:
    values = pa.array([line.encode() for line in lines], pa.binary())
    assert _shown(logs.Cef().decode(values)) == _shown(row_by_row(values, logs._cef, logs.Cef.of))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(alphabet="ab:1.5e+-|cgmsh@#,_{}\n\r\u0660", max_size=16), max_size=4))
@example(["a:+5|g", "a:1.|c|@1e2|#x:y,z", "_e{1:5|c", "a:.5|c\r\n", "a:1|c|#", "a:1|c|#a:b:c,,a:d"])
def test_dogstatsd_is_what_python_finds(lines: list[str]) -> None:
    values = pa.array([line.encode() for line in lines], pa.binary())
    expected = row_by_row(values, metric_lines._dogstatsd, metric_lines.DogStatsd.of)
    assert _shown(metric_lines.DogStatsd().decode(values)) == _shown(expected)
