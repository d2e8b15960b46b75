"""The compiled scanners find the event times that Python's own decoders find, and touch no other memory."""

import csv
import io
import json
from collections.abc import Iterator, Sequence

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.core.errors import RequestError
from penstock.protocol.event_time import codes
from penstock.protocol.event_time.extractor import Block, EventTimes, Extractor
from penstock.protocol.event_time.field import EventTimeField, checked_field, checked_format
from penstock.protocol.event_time.plain import time_of
from penstock.protocol.stored.bulk import Bytes
from penstock.protocol.stored.event import NO_TIME
from tests.protocol.connector.guarded import Guarded
from tests.protocol.event_time import oracle

NOON = 1_769_860_800_000_000
"""2026-01-31T12:00:00Z."""
FORMATS = ("iso", "s", "ms", "us", "ns", "%d/%b/%Y:%H:%M:%S %z")
FIELDS = ("t", "a.t", "a.b.t", "ä")
GUARDED = Guarded()


def batched(units: bytes) -> Iterator[tuple[int, int]]:
    return zip(units[::2], units[1::2], strict=True)


def block(events: Sequence[bytes]) -> Block:
    column = Bytes.of(events)
    offsets = np.array(column.offsets, np.int64)
    return Block(column.data, offsets[:-1], offsets[1:])


def extracted(events: Sequence[bytes], codec: str = "json", column: int = 0, **spec: str) -> EventTimes:
    return Extractor(EventTimeField(codec=codec, column=column, **spec)).times(block(events), codec)  # type: ignore[arg-type]


def one(event: bytes, codec: str = "json", column: int = 0, **spec: str) -> int | str:
    """Its time, or the reason why it has none."""
    extractor = Extractor(EventTimeField(codec=codec, column=column, **spec))  # type: ignore[arg-type]
    found = extractor.times(block([event]), codec)
    if found.kinds[0] == codes.TIME:
        return int(found.times[0])
    assert found.times[0] == NO_TIME
    return extractor.why(int(found.kinds[0]), found.quotes.get(0), codec)


# Times as people and programs write them, and what is nearly one.

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.integers(-(10**19), 10**19).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=8).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
    st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)
ISO = st.one_of(
    st.datetimes().map(lambda moment: moment.isoformat()),
    st.from_regex(
        r"[0-9]{4}-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-5][0-9](:[0-6][0-9]([.,][0-9]{1,9})?)?"
        r"([Zz]|[+-][0-2][0-9](:?[0-6][0-9])?)?",
        fullmatch=True,
    ),
    st.from_regex(r"[0-9]{4}-[01][0-9]-[0-3][0-9]", fullmatch=True),
)
LOGGED = st.datetimes().map(lambda moment: moment.strftime("%d/%b/%Y:%H:%M:%S +0130"))
TEXTS = st.one_of(NUMBERS, ISO, LOGGED, st.text(max_size=12))
KEYS = st.sampled_from(["t", "a", "b", "ä", "", "tt", 't"', "é😀"])
SCALARS = st.one_of(TEXTS, st.none(), st.booleans(), st.integers(-(10**17), 10**18), st.floats(allow_nan=False))
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@st.composite
def json_events(draw: st.DrawFn) -> bytes:
    """JSON with repeated names, odd spaces, and escapes in keys and values."""

    def written(found: object) -> str:
        space = draw(st.sampled_from(["", "", " ", "\n\t\r "]))
        if isinstance(found, dict):
            pairs = [f"{text(key)}{space}:{space}{written(value)}" for key, value in found.items()]
            pairs += draw(st.lists(st.sampled_from(pairs), max_size=1)) if pairs else []
            return "{" + space + f"{space},".join(pairs) + space + "}"
        if isinstance(found, list):
            return "[" + space + f",{space}".join(map(written, found)) + "]"
        if isinstance(found, str):
            return found if draw(st.booleans()) and oracle._NUMBER.fullmatch(found) else text(found)
        return json.dumps(found)

    def text(value: str) -> str:
        plain = json.dumps(value, ensure_ascii=draw(st.booleans()))
        if not value or not draw(st.booleans()):
            return plain
        place = draw(st.integers(0, len(value) - 1))
        before, after = json.dumps(value[:place])[:-1], json.dumps(value[place + 1 :])[1:]
        units = value[place].encode("utf-16-be", "surrogatepass")
        return before + "".join(f"\\u{high:02x}{low:02X}" for high, low in batched(units)) + after

    outer = draw(st.dictionaries(KEYS, DOCUMENTS, max_size=4) | DOCUMENTS)
    return written(outer).encode("utf-8", "surrogatepass")


@st.composite
def csv_events(draw: st.DrawFn) -> bytes:
    out = io.StringIO(newline="")
    end = draw(st.sampled_from(["", "\n", "\r\n", "\r"]))
    quoted, plain = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator=end), csv.writer(out, lineterminator=end)
    fields = draw(st.lists(TEXTS.filter(lambda text: text.isprintable()), min_size=1, max_size=4))
    (quoted if draw(st.booleans()) else plain).writerow(fields)
    return out.getvalue().encode("utf-8", "surrogatepass")


PACKED = st.recursive(
    SCALARS.filter(lambda value: not isinstance(value, int) or -(2**63) <= value < 2**64)
    | st.floats(width=32)
    | st.binary(max_size=4)
    | st.builds(msgpack.Timestamp, st.integers(-(2**40), 2**40), st.integers(0, 10**9 - 1)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.integers(0, 3), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def msgpack_events(draw: st.DrawFn) -> bytes:
    found = draw(st.dictionaries(KEYS, PACKED, max_size=4) | PACKED)
    try:
        return bytes(msgpack.packb(found, use_single_float=draw(st.booleans()), unicode_errors="surrogatepass"))
    except OverflowError:  # too large for a single float
        return bytes(msgpack.packb(found, unicode_errors="surrogatepass"))


@st.composite
def damaged(draw: st.DrawFn, events: st.SearchStrategy[bytes]) -> bytes:
    """As it is, cut off, or with some bytes changed."""
    event = bytearray(draw(events))
    match draw(st.integers(0, 3)):
        case 0 if event:
            del event[draw(st.integers(0, len(event) - 1)) :]
        case 1 if event:
            event[draw(st.integers(0, len(event) - 1))] = draw(st.integers(0, 255))
        case 2:
            place = draw(st.integers(0, len(event)))
            event[place:place] = draw(st.binary(max_size=3) | st.sampled_from([b'"', b",", b"}", b"\\", b"\n", b" "]))
    return bytes(event)


EVENTS = {"json": json_events(), "csv": csv_events(), "msgpack": msgpack_events()}


@pytest.mark.parametrize("codec", EVENTS)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(data=st.data())
def test_the_scanners_find_what_pythons_own_decoders_find_and_read_nothing_else(
    codec: str, data: st.DataObject
) -> None:
    drawn = damaged(EVENTS[codec]) | st.binary(max_size=20)
    events = [event for event in data.draw(st.lists(drawn, min_size=1, max_size=4)) if len(event) < GUARDED.size // 4]
    field, format_ = data.draw(st.sampled_from(FIELDS)), data.draw(st.sampled_from(FORMATS))
    column = data.draw(st.integers(0, 3))
    extractor = Extractor(EventTimeField(field=field, format=format_, codec=codec, column=column))
    found = extractor.times(block(events), codec)
    for place in (GUARDED.at_start, GUARDED.at_end):
        for row, event in enumerate(events):
            there = Block(place(event), np.zeros(1, np.int64), np.array([len(event)], np.int64))
            again = extractor.times(there, codec)
            assert (again.times[0], again.kinds[0]) == (found.times[row], found.kinds[row])
    for row, event in enumerate(events):
        try:
            expected = oracle.expected(event, codec, field, format_, column)
        except oracle.Unclear:
            continue
        actual = int(found.times[row]) if found.kinds[row] == codes.TIME else None
        assert actual == expected, (event, field, format_)
        assert found.kinds[row] <= codes.TIME
        assert (actual is None) == (found.times[row] == NO_TIME)


@settings(max_examples=1000, deadline=None)
@given(text=TEXTS, format_=st.sampled_from(FORMATS))
@example("1769860800." + "9" * 245, "s")
@example("1769860800." + "9" * 246, "s")
@example("2026-01-31T12:00:00." + "9" * 300, "iso")
@example("9999-12-31T23:59:59.9999999-00:01", "iso")
@example("0001-01-01T00:00:00+00:01", "iso")
@example("2024-02-29T23:59Z", "iso")
@example("253402300799.9999999", "s")
@example("-62135596800", "s")
@example("-0.0000001", "s")
@example("-1e-400", "us")
@example("1e400", "ns")
@example("0e99999999", "s")
@example("100000000000000000000000000000e-20", "s")
def test_texts_are_the_times_that_the_format_defines(text: str, format_: str) -> None:
    event = json.dumps({"t": text}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    found = extracted([event], field="t", format=format_)
    actual = int(found.times[0]) if found.kinds[0] == codes.TIME else None
    us = oracle.time_of(text, format_)
    assert actual == (us if us is not None and codes.TIME_MIN <= us <= codes.TIME_MAX else None)
    plain = time_of(text, format_)
    assert (plain.kind, plain.time_us) == (found.kinds[0], actual or 0), "both ways to parse a text agree"


@pytest.mark.parametrize(
    ("event", "field", "format_", "time"),
    [
        (b'{"t": "2026-01-31T12:00:00Z"}', "t", "iso", NOON),
        (b'{"t": "2026-01-31 12:00:00"}', "t", "iso", NOON),
        (b'{"t": "2026-01-31T13:30:00.25+01:30"}', "t", "iso", NOON + 250_000),
        (b'{"t": "2026-01-31"}', "t", "iso", NOON - 12 * 3_600_000_000),
        (b'{"t": 1769860800.1234567}', "t", "s", NOON + 123_456),
        (b'{"t": "1769860800123"}', "t", "ms", NOON + 123_000),
        (b'{"t": -1}', "t", "ns", -1),
        (b'{"t": 1.7698608e9}', "t", "s", NOON),
        (b'{"t": 1, "t": 1769860800}', "t", "s", NOON),
        (b'{"a": {"t": 1}, "a": {"t": 1769860800}}', "a.t", "s", NOON),
        (b'{"\\u0074": 1769860800}', "t", "s", NOON),
        (b'{"\\ud83d\\ude00": 1769860800}', "😀", "s", NOON),
        (b'{"t": "2026\\u002d01-31T12:00:00Z"}', "t", "iso", NOON),
        (b'{"t": "31\\/Jan\\/2026:13:00:00 +0100"}', "t", "%d/%b/%Y:%H:%M:%S %z", NOON),
        (b'{"a": [{"t": 1}], "b": {"a": {"t": 2}}, "a": {"c": {"t": 3}, "t": 1769860800}}', "a.t", "s", NOON),
    ],
)
def test_a_time_in_json(event: bytes, field: str, format_: str, time: int) -> None:
    assert one(event, field=field, format=format_) == time


@pytest.mark.parametrize(
    ("event", "codec", "format_", "reason"),
    [
        (b'{"x": 1}', "json", "iso", 'the field "t" is missing'),
        (b'{"t": null}', "json", "iso", 'the field "t" is null'),
        (b'{"t": 5}', "json", "iso", "the field \"t\" has the wrong type ('5'): expected a time in ISO 8601"),
        (b'{"t": true}', "json", "s", 'the field "t" has the wrong type: expected a number of seconds'),
        (b'{"t": {}}', "json", "s", 'the field "t" has the wrong type'),
        (b'{"t": "soon"}', "json", "iso", "the field \"t\" ('soon') is not a time in ISO 8601"),
        (b'{"t": "2026-02-29"}', "json", "iso", "('2026-02-29') is not a time"),
        (b'{"t": 253402300800}', "json", "s", "('253402300800') is outside the years 1 to 9999"),
        (b'{"t": 5', "json", "s", "the event is not valid JSON"),
        (b'{"t": 5} x', "json", "s", "the event is not valid JSON"),
        (b'{"t": NaN}', "json", "s", "the event is not valid JSON"),
        (b"[" * 65 + b"]" * 65, "json", "s", "nested more than 64 times"),
        (b'a,"b', "csv", "s", "the event is not valid CSV"),
        (b",b", "csv", "s", 'the field "t" is null'),
        (b"\x81\xa1t", "msgpack", "s", "the event is not valid MessagePack"),
        (b"soon", "string", "s", "the codec string has no fields"),
    ],
)
def test_the_reason_names_what_is_wrong(event: bytes, codec: str, format_: str, reason: str) -> None:
    found = one(event, codec, field="t", format=format_)
    assert str(found).startswith("no event time: ")
    assert reason in str(found)


@pytest.mark.parametrize(
    ("event", "column", "time"),
    [
        (b'a,2026-01-31T12:00:00Z,"x, ""y"""\r\n', 1, NOON),
        (b'"a,b",x,2026-01-31T12:00:00Z', 2, NOON),
        (b'"2026-01-31T12:00:00Z",x\n', 0, NOON),
        (b"x,2026-01-31T12:00:00Z", 2, 'no event time: the field "t" is missing'),
    ],
)
def test_a_time_in_csv_is_in_a_column(event: bytes, column: int, time: int | str) -> None:
    assert one(event, "csv", column, field="t", format="iso") == time


def test_a_messagepack_timestamp_is_a_time_whatever_the_format() -> None:
    event = msgpack.packb({"a": {"t": msgpack.Timestamp(NOON // 10**6, 999)}})
    assert [one(event, "msgpack", field="a.t", format=format_) for format_ in ("iso", "ns")] == [NOON, NOON]


def test_a_plugin_finds_the_field_of_another_codec_and_its_errors_concern_single_events() -> None:
    def halves(events: Sequence[bytes]) -> list[object]:
        return [None if event == b"" else int(event) * 2 for event in events]

    extractor = Extractor(EventTimeField(field="t", format="us", codec="half"), {"half": halves})
    found = extractor.times(block([b"4", b"", b"x", b"5"]), "half")
    assert found.times.tolist() == [8, NO_TIME, NO_TIME, 10]
    assert found.kinds.tolist() == [codes.TIME, codes.NULL, codes.MALFORMED, codes.TIME]


def test_rows_outside_the_buffer_are_refused() -> None:
    for start, end in ((-1, 1), (0, 4), (2, 1)):
        with pytest.raises(IndexError):
            Block(b"abc", np.array([start]), np.array([end]))


@pytest.mark.parametrize("text", ["", "a..b", ".a", "a." * 16 + "a", "\ud800"])
def test_fields_that_cannot_exist_are_refused(text: str) -> None:
    with pytest.raises(RequestError):
        checked_field(text)


@pytest.mark.parametrize("text", ["minutes", "%Q", "%d.%m. %H:%M", "%"])
def test_formats_that_no_time_can_have_are_refused(text: str) -> None:
    with pytest.raises(RequestError):
        checked_format(text)


@pytest.mark.parametrize("text", [*FORMATS, "%Y%m%d", "%y-%j", "%d.%m.%Y %H:%M:%S.%f"])
def test_valid_formats_are_accepted(text: str) -> None:
    assert checked_format(text) == text
