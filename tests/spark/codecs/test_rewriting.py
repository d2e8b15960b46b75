"""What a codec of lines has decoded, it can write again, whoever has sent it: a row that cannot be written stops its
query, and a line that cannot be decoded is a dead letter.
"""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.kinds import arrow_field
from penstock.spark.codecs.codec import with_options
from penstock.spark.codecs.registry import codec

LINES: dict[str, list[bytes]] = {
    "graphite": [b"a.b;t=v;u=w 1.5 1700000000", b"a 1e300 -1", b"a nan N", b"a -1e-30 1.5"],
    "statsd": [b"a.b:1.5|c|@0.1", b"a:-5|g", b"a:+5|g", b"a:member|s", b"a:320|ms"],
    "dogstatsd": [
        b"a.b:1:2.5|h|@0.1|#t:v,u|c:x|T1656581400",
        b"a:member|s|#t:1",
        b"a:1|c",
        b"_e{5,6}:title|a\\nb c|d:1|h:x|p:low|t:info|#t:v",
        b"_sc|a.b|0|d:1|h:x|#t:v|m:text",
    ],
    "influx": [
        b'a\\ b,t=v,u=w x=1.5,y=7i,z="q\\"r",b=t 1700000000000000000',
        b"a x=18446744073709551615u",
        b"a x=1",
    ],
    "logfmt": [b"a\\b=c\\d", b'a=1 b="c d" e f="g\\"h"'],
    "cef": [
        b"Jan 2 host CEF:0|vendor|product|1|100|name|5|src=1.2.3.4 msg=a b \\= c cs1=x",
        b"CEF:1|v|p\\|q|1|2|n|3|",
    ],
    "gelf": [
        b'{"version":"1.1","host":"h","short_message":"m","full_message":"f","timestamp":1700000000.25,"level":3,"_x":1}'
    ],
    "syslog": [
        b'<34>1 2026-01-02T12:00:00.123456Z host app 12 ID1 [x@1 k="v" l="m"] message',
        b"<34>1 - - - - - - message",
        b"<34>Jan  2 12:00:00 host app[1]: message",
        b"<34>Jan  2 12:00:00 host error disk full",
    ],
}
ODD = [
    *(sign.encode() for sign in '0159aeE.+-:;|@#=,[]{}<>"\\_~ \t\n\r\ufeff\u0661\u00a0'),
    *(b"\r\n", b"\n\n", b"e999", b"1" * 400, b"x" * 300, b"CEF:", b"CEF:0|", b"|#:v", b"|@1", b"|m:x", b"\\n", b"null"),
]


@st.composite
def mutated(draw: st.DrawFn, lines: list[bytes]) -> bytes:
    line = draw(st.sampled_from(lines))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(line)))
        end = min(len(line), start + draw(st.integers(0, 3)))
        line = line[:start] + draw(st.sampled_from(ODD)) + line[end:]
    return line


def decoded(tested: Any, line: bytes) -> pa.RecordBatch | None:
    """None for a dead letter."""
    found = tested.decoder(None)(pa.array([line], pa.binary()))
    kinds = pa.schema([arrow_field(field) for field in tested.fields(None)])
    return None if found.failed else pa.RecordBatch.from_arrays([*found.arrays], schema=kinds)


def meaning(rows: pa.RecordBatch) -> str:
    """Maps have no order, and NaN is not equal to itself."""
    return json.dumps(rows.to_pylist(maps_as_pydicts="strict"), sort_keys=True, default=str)


@pytest.mark.parametrize("name", LINES)
@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_decoded_can_be_written_and_means_the_same(name: str, data: st.DataObject) -> None:
    tested = codec(name)
    rows = decoded(tested, data.draw(mutated(LINES[name])))
    if rows is not None:
        (written,) = tested.encoder(rows.schema)(rows).to_pylist()
        again = decoded(tested, written)
        assert again is not None, written
        if name == "syslog":  # RFC 5424 has no place for the time of RFC 3164, and times are written in UTC
            rows, again = (of.drop_columns(["time_text"]) for of in (rows, again))
        assert meaning(again) == meaning(rows), written


@given(line=mutated(LINES["syslog"]))
@settings(max_examples=300, deadline=None)
def test_whatever_has_a_time_can_be_written_as_rfc_3164_and_keeps_what_that_has(line: bytes) -> None:
    tested = codec(with_options("syslog", {"write": "3164"}))
    rows = decoded(tested, line)
    if rows is not None and rows.to_pylist()[0]["time_text"] is not None:
        (written,) = tested.encoder(rows.schema)(rows).to_pylist()
        again = decoded(tested, written)
        assert again is not None, written
        (was,), (now,) = rows.to_pylist(), again.to_pylist()
        same = ("facility", "severity", "host", "message")
        assert [now[key] for key in same] == [was[key] or ("" if key == "message" else was[key]) for key in same]
        assert all(now[key] in (was[key], None) for key in ("app", "procid"))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("graphite", b"a 1e999 1"),
        ("graphite", b"a " + b"9" * 400 + b" 1"),
        ("statsd", b"a:1e999|c"),
        ("statsd", b"a:1|c|@1e999"),
        ("dogstatsd", b"a:1e999|c"),
        ("dogstatsd", b"a:1:1e999|c"),
        ("dogstatsd", b"a:1|c|@1e999"),
        ("dogstatsd", b"a:1|c|#:v"),
        ("dogstatsd", b"a:1|c|#t:1\n\n"),
        ("dogstatsd", b"a\nb:1|c"),
        ("dogstatsd", b"_sc|a\nb|0"),
        ("dogstatsd", b"_sc|a|0|m:x\n\n"),
        ("dogstatsd", b"_e{1,1}:a|b|d:x\n\n"),
        ("dogstatsd", b"a:1|c|T:x"),
        ("dogstatsd", "a:\u0661:1|c".encode()),
        ("influx", b"a x=1e999"),
        ("influx", b"a x=9223372036854775808i"),
        ("influx", b"a\\\nb x=1"),
        ("cef", "CEF:\u0661|v|p|1|2|n|3|".encode()),
        ("gelf", b'{"version":"1.1","host":"h","short_message":"m","timestamp":9000000000}'),
        ("syslog", b"<34>Jan  2 12:00:00 " + b"h" * 256 + b" text"),
        ("syslog", b"<34>1 9999-12-31T23:59:59-01:00 - - - - - text"),
    ],
)
def test_a_line_that_no_row_can_be_written_as_is_a_dead_letter_and_its_neighbours_are_not(
    name: str, line: bytes
) -> None:
    good = LINES[name][0]
    found = codec(name).decoder(None)(pa.array([good, line, good], pa.binary()))
    assert [*found.failed] == [1]
    assert [len(array) for array in found.arrays] == [2] * len(found.arrays)


def test_a_header_of_cef_may_have_its_word() -> None:
    line = b"CEF:x CEF:0|v|p|1|2|n|3|"
    rows = decoded(codec("cef"), line)
    assert rows is not None
    assert codec("cef").encoder(rows.schema)(rows).to_pylist() == [line]


# Rows


def written(name: str, row: dict[str, Any], columns: pa.Schema | None = None) -> bytes:
    tested = codec(name)
    kinds = columns or pa.schema([arrow_field(field) for field in tested.fields(None)])
    (line,) = tested.encoder(kinds)(pa.RecordBatch.from_pylist([row], schema=kinds)).to_pylist()
    return bytes(line)


OLD = 'syslog{"write":"3164"}'
OLD_ROW = {"facility": 4, "severity": 2, "time_text": "Jan  2 12:00:00", "host": "h"}


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"app": "a", "msgid": "ID1", "structured": {"x": {"k": "v"}}, "message": "m"}, b"a: m"),
        ({"app": "a", "msgid": "-", "message": "m"}, b"a: m"),
        ({"message": "error: disk full"}, b"-: error: disk full"),
        ({"message": "http://x"}, b"-: http://x"),
        ({"procid": "12", "message": "m"}, b"-[12]: m"),
        ({"app": "a:b", "procid": "1]", "message": "m"}, b"m"),
        ({"app": "a[b]", "message": "b: m"}, b"-: b: m"),
    ],
)
def test_what_rfc_3164_does_not_have_is_left_out_and_no_field_is_forged(row: dict[str, Any], shown: bytes) -> None:
    line = written(OLD, OLD_ROW | row)
    assert line == b"<34>Jan  2 12:00:00 h " + shown
    rows = decoded(codec(OLD), line)
    assert rows is not None
    (again,) = rows.to_pylist()
    assert again["message"] == row["message"]
    assert again["app"] == ("a" if row.get("app") == "a" else None)
    assert again["procid"] == ("12" if row.get("procid") == "12" else None)


@pytest.mark.parametrize(
    ("name", "row", "shown"),
    [
        ("graphite", {"path": "a", "number": 1.0, "tags": {"k": None, "t": "v"}}, b"a;t=v 1 -1"),
        ("graphite", {"path": "a", "number": 1.0, "tags": {"k": None}}, b"a 1 -1"),
        ("influx", {"measurement": "a", "tags": {"t": "v", "k": None}, "fields": '{"x":1}'}, b"a,t=v x=1i"),
        ("dogstatsd", {"kind": "c", "name": "a", "numbers": [1.0], "tags": {"k": None, "t": "v"}}, b"a:1|c|#t:v"),
        ("dogstatsd", {"kind": "c", "name": "a", "numbers": [1.0], "text": ""}, b"a:1|c"),
        ("dogstatsd", {"kind": "c", "name": "a", "numbers": [1.0], "attributes": {"c": None}}, b"a:1|c"),
        ("statsd", {"name": "a", "kind": "c", "number": 1.0, "text": ""}, b"a:1|c"),
        ("influx", {"measurement": "a", "fields": '{"x":18446744073709551615}'}, b"a x=18446744073709551615u"),
        ("cef", {"version": "0", "extension": {"a": "x ", "b": "y"}}, b"CEF:0|||||||a=x  b=y"),
    ],
)
def test_what_a_row_has_for_nothing_is_left_out(name: str, row: dict[str, Any], shown: bytes) -> None:
    assert written(name, row) == shown


def test_null_is_left_out_of_maps_and_structs_alike_in_every_slice_of_a_batch() -> None:
    tags = [{"a": "1", "b": None}, None, {}, {"a": None, "b": None}, {"a": None, "b": "2"}, {"a": "3", "b": "4"}]
    shown = [b"m;a=1 1 -1", b"m 1 -1", b"m 1 -1", b"m 1 -1", b"m;b=2 1 -1", b"m;a=3;b=4 1 -1"]
    kinds = (pa.map_(pa.string(), pa.string()), pa.struct([("a", pa.string()), ("b", pa.string())]))
    for kind in kinds:
        columns = pa.schema([("path", pa.string()), ("number", pa.float64()), ("tags", kind)])
        rows = pa.RecordBatch.from_pylist([{"path": "m", "number": 1.0, "tags": one} for one in tags], schema=columns)
        for start in range(len(tags)):
            assert codec("graphite").encoder(columns)(rows.slice(start)).to_pylist() == shown[start:]
