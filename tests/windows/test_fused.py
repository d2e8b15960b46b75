"""Windows that readers compute, from stored bytes to panes, against the reference: for any conditions, computed
columns, windows and aggregates. Nothing here needs Spark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="PySpark is not installed")

from pyspark.errors import ArithmeticException
from pyspark.sql import types

from penstock.protocol.api.pipelines import Range
from penstock.protocol.stored.bulk import decode
from penstock.spark.codecs.batch_decoder import Decoder
from penstock.spark.codecs.codec import Branch
from penstock.spark.input_frames import InputFrame
from penstock.spark.side_outputs import Origin
from penstock.spark.source.arrow import SegmentBatches, stream_names
from penstock.spark.source.partitions import ControlRows, FusedRanges, PlacedRange, SegmentRanges
from penstock.spark.source.schema import COLUMNS
from penstock.windows.aggregates import ApproxDistinct, Collect, Count, First, Last, Max, Min
from penstock.windows.engine import Plan, advance
from penstock.windows.expressions import NotCovered
from penstock.windows.fused import FusedWindows
from penstock.windows.kinds import Late, LateRule, Window
from penstock.windows.operator import Kind, WindowOperator
from penstock.windows.reading import Request, reading_of
from tests.protocol.stored.events import stored
from tests.windows.engine.driving import DictState
from tests.windows.reference import Event, Reference
from tests.windows.test_engine_against_reference import LATENESS, SESSION, SLIDING, TUMBLING

SEGMENT = "connector/sales/0"
SECOND = 1_000_000
BUCKETS, COLLECTED = 3, 3
EXTREMES = (0, 1, -1, 2, 7, 2**62, 2**63 - 1, -(2**63))

_SPARK = {"string": types.StringType(), "bigint": types.LongType(), "timestamp": types.TimestampType()}
_SPARK |= {"binary": types.BinaryType(), "double": types.DoubleType(), "boolean": types.BooleanType()}
DECODED = {"user": "string", "amount": "bigint", "price": "double", "ok": "boolean"}
READ = types.StructType([types.StructField(name, _SPARK[kind]) for name, kind in (COLUMNS | DECODED).items()])
BRANCH = Branch("json", ", ".join(f"{name} {kind}" for name, kind in DECODED.items()))
OPTIONS = {"input": "in", "source": "sales", "pipeline": "p", "worker": "127.0.0.1:1"}


def session(**conf: str) -> Any:
    """Settings alone: nothing else of a session is asked for."""
    given = {"spark.sql.ansi.enabled": "true", "spark.sql.caseSensitive": "false", **conf}
    return SimpleNamespace(conf=SimpleNamespace(get=lambda name, default=None: given.get(name, default)))


def input_frame(read: types.StructType = READ, **options: str) -> InputFrame:
    return InputFrame(cast("Any", SimpleNamespace(schema=read)), {**OPTIONS, **options}, read)


def request(
    where: str | None = None, select: Mapping[str, str] | None = None, keys: Sequence[Any] = ("user",), **more: Any
) -> Request:
    return Request(
        **{"given": input_frame(), "event_time": "event_time", **more},
        where=where,
        select=select or {},
        keys=keys,
    )


# Expressions as text, and as functions of a row.


class Failed(Exception):
    """As Spark fails in ANSI mode."""


@dataclass(frozen=True)
class Expression:
    text: str
    value: Callable[[Mapping[str, Any]], Any]
    parts: tuple[Expression, ...] = ()
    """What `and` combines."""

    def holds(self, row: Mapping[str, Any]) -> bool:
        """As a filter: it looks at the parts in order, until one does not hold."""
        return all(one.holds(row) for one in self.parts) if self.parts else self.value(row) is True


def named(name: str) -> Expression:
    return Expression(name, lambda row: row[name])


def constant(text: str, value: Any) -> Expression:
    return Expression(text, lambda _: value)


def arithmetic(sign: str, left: Expression, right: Expression) -> Expression:
    def value(row: Mapping[str, Any]) -> Any:
        if sign == "%":
            divisor = right.value(row)
            number = None if divisor is None else left.value(row)
        else:
            number = left.value(row)
            divisor = None if number is None else right.value(row)
        return None if number is None or divisor is None else _applied(sign, number, divisor)

    return Expression(f"({left.text} {sign} {right.text})", value)


def _applied(sign: str, left: Any, right: Any) -> Any:
    if sign == "%" and right == 0:
        raise Failed
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
        if sign == "%":
            return math.nan if math.isnan(left) or math.isnan(right) or math.isinf(left) else math.fmod(left, right)
        return left + right if sign == "+" else left - right if sign == "-" else left * right
    found = {"+": left + right, "-": left - right, "*": left * right}.get(sign)
    if found is None:
        found = int(math.copysign(1, left)) * (abs(left) % abs(right))
    if not -(2**63) <= found < 2**63:
        raise Failed
    return found


def comparison(sign: str, left: Expression, right: Expression) -> Expression:
    def value(row: Mapping[str, Any]) -> bool | None:
        one = left.value(row)
        other = None if one is None else right.value(row)
        if one is None or other is None:
            return None
        order = _order(one, other)
        return {"=": order == 0, "!=": order != 0, "<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[
            sign
        ]

    return Expression(f"{left.text} {sign} {right.text}", value)


def _order(one: Any, other: Any) -> int:
    """NaN is above all numbers, and equal to itself."""
    first, second = (isinstance(each, float) and math.isnan(each) for each in (one, other))
    if first or second:
        return int(first) - int(second)
    if isinstance(one, float) or isinstance(other, float):
        one, other = float(one), float(other)
    return int(one > other) - int(one < other)


def both(left: Expression, right: Expression) -> Expression:
    def value(row: Mapping[str, Any]) -> bool | None:
        one = left.value(row)
        if one is False:
            return False
        other = right.value(row)
        return False if other is False else None if one is None or other is None else True

    return Expression(f"({left.text} and {right.text})", value, (left, right))


def negated(one: Expression) -> Expression:
    def value(row: Mapping[str, Any]) -> bool | None:
        found = one.value(row)
        return None if found is None else not found

    return Expression(f"(not {one.text})", value)


def either(left: Expression, right: Expression) -> Expression:
    inner = negated(both(negated(left), negated(right)))
    return Expression(f"({left.text} or {right.text})", inner.value)


def is_null(one: Expression) -> Expression:
    return Expression(f"{one.text} is null", lambda row: one.value(row) is None)


INTEGERS = st.sampled_from([named("amount"), named("message_id"), *(constant(f"{n}L", n) for n in (0, 1, 2, 7))])
DOUBLES = st.sampled_from([named("price"), constant("0.5D", 0.5), constant("2D", 2.0)])
TEXTS = st.sampled_from([named("user"), constant("'a'", "a"), constant("''", "")])
SIGNS = st.sampled_from("+-*%")
COMPARED = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])


def numbers(leaves: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.recursive(leaves, lambda inner: st.builds(arithmetic, SIGNS, inner, inner), max_leaves=4)


NUMBERS = numbers(INTEGERS)
SAME = NUMBERS.flatmap(lambda one: st.tuples(st.just(one), NUMBERS)) | st.tuples(
    numbers(DOUBLES), numbers(DOUBLES | INTEGERS)
)
CONDITIONS = st.recursive(
    SAME.flatmap(lambda pair: st.builds(comparison, COMPARED, *map(st.just, pair)))
    | st.builds(comparison, COMPARED, TEXTS, TEXTS)
    | st.builds(is_null, TEXTS | INTEGERS | DOUBLES)
    | st.just(named("ok")),
    lambda inner: st.builds(both, inner, inner) | st.builds(either, inner, inner) | st.builds(negated, inner),
    max_leaves=4,
)
KEYS = st.sampled_from([named("user"), named("ok"), named("price")]) | NUMBERS


# A stream of events.

DOCUMENTS = st.fixed_dictionaries(
    {
        "user": st.sampled_from(["a", "b", None]),
        "amount": st.sampled_from([*EXTREMES, None]),
        "price": st.sampled_from([0.0, -0.0, 1.5, -3.25, None]),
        "ok": st.sampled_from([True, False, None]),
    }
)
EPOCHS = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(-30, 30), DOCUMENTS), max_size=10), st.none() | st.integers(0, 25)),
    min_size=1,
    max_size=4,
)


@dataclass(frozen=True)
class Windows:
    """As a test has them computed, and what its reference needs."""

    window: Window
    lateness: tuple[LateRule, int]
    late: Late
    where: Expression | None
    key: Expression
    value: Expression

    def operator(self) -> FusedWindows:
        inputs: dict[str, Any] = {"v0": ("v", False), "v1": ("v", True)}
        inputs |= {"ostream_id": ("stream_id", False), "omessage_id": ("message_id", False)}
        order = ("t", "ostream_id", "omessage_id")
        aggregates = {
            "rows": Count(),
            "values": Count(("v0",)),
            "min": Min(("v0",)),
            "max": Max(("v0",)),
            "first": First(("v0", *order)),
            "last": Last(("v0", *order)),
            "some": Collect(("v0", *order), COLLECTED),
            "distinct": ApproxDistinct(("v1",)),
        }
        select = {"v": self.value.text, "k": self.key.text}
        where = None if self.where is None else self.where.text
        kinds = {"v1": pa.int64(), "ostream_id": pa.int64(), "omessage_id": pa.int64()}
        asked = request(where, select, ["k"])
        schema = pa.schema({"k0": KINDS[self.key.text], "v0": pa.int64(), **kinds})
        reading = reading_of(asked, inputs, schema, "in", session())
        plan = Plan(
            window=self.window,
            keys=("k0",),
            aggregates=aggregates,
            schema=schema,
            buckets=BUCKETS,
            lateness_us=self.lateness[1],
            late=self.late,
            late_rule=self.lateness[0],
        )
        operator = WindowOperator(
            name="w",
            side="001 windows w",
            origin=Origin("127.0.0.1:1", "p", 1),
            carried={},
            output=pa.schema([]),
            plan=plan,
        )
        return FusedWindows.of(operator, reading)


class _Kinds(dict[str, pa.DataType]):
    def __missing__(self, text: str) -> pa.DataType:
        return pa.int64()


KINDS = _Kinds(user=pa.string(), ok=pa.bool_(), price=pa.float64())


@dataclass(frozen=True)
class Stored:
    """An event, its document, and where it is stored."""

    number: int
    time: int
    document: Mapping[str, Any]
    offset: int

    @property
    def row(self) -> dict[str, Any]:
        return {**self.document, "message_id": self.number}

    @property
    def data(self) -> bytes:
        return stored(1, self.number, self.time, b"", json.dumps(self.document).encode())


def stored_epochs(epochs: Sequence[tuple[Any, int | None]]) -> Iterator[tuple[list[Stored], int | None]]:
    number = offset = 0
    watermark: int | None = None
    for given_events, step in epochs:
        events = []
        for time, document in given_events:
            number += 1
            events.append(Stored(number, time * SECOND, document, offset))
            offset += len(events[-1].data)
        if step is not None:
            watermark = (step - 35) * SECOND if watermark is None else watermark + step * SECOND
        yield events, watermark


def batches_of(windows: FusedWindows, events: Sequence[Stored], at_once: int) -> Iterator[pa.RecordBatch]:
    """As a reader with a codec returns them."""
    columns = tuple(dict.fromkeys((*windows.columns, "value")))
    decoder = Decoder([BRANCH], [*COLUMNS])
    segment = SegmentBatches(SEGMENT, columns, lambda name: stream_names("", name))
    for start in range(0, len(events), at_once):
        some = events[start : start + at_once]
        decoded = decode(b"".join(one.data for one in some), some[0].offset, segment.kind, segment.wanted)
        found = decoder.decode(segment.batch(decoded))
        assert not found.reasons
        yield found.batch


def run(windows: Windows, epochs: Sequence[tuple[list[Stored], int | None]], at_once: int) -> None:
    """Raises AssertionError if panes or late events differ from those of the reference."""
    fused = windows.operator()
    plan, states = fused.operator.plan, [DictState() for _ in range(BUCKETS)]
    lengths = windows.lateness[1]
    reference = Reference(windows.window, lengths, strict=windows.lateness[0] == "strict")
    before: int | None = None
    for number, (events, after) in enumerate(epochs):
        control = ControlRows(number, before, after)
        parts = [events[: len(events) // 2], events[len(events) // 2 :]]
        blobs: dict[int, list[bytes]] = {}
        for place, part in enumerate(parts):
            read = FusedRanges(control, SegmentRanges((PlacedRange("127.0.0.1:1", Range(SEGMENT, 0, 1)),)), place)
            for batch in fused.entering(batches_of(fused, part, at_once), read):
                for row in batch.to_pylist():
                    assert (row["kind"], row["before"]) == (Kind.PARTIALS, before)
                    blobs.setdefault(fused.operator.ids.index(row["bucket"]), []).append(row["data"])
        results = [advance(plan, n, state, blobs.get(n, []), before, after) for n, state in enumerate(states)]
        taken = [one for one in events if windows.where is None or windows.where.holds(one.row)]
        given_events = [
            Event(one.time, _key(windows.key.value(one.row)), windows.value.value(one.row), one.number) for one in taken
        ]
        panes, late = reference.epoch(given_events, before, after)
        found = [row for result in results for row in result.panes.to_pylist()]
        assert sorted(map(_comparable, found), key=repr) == sorted(map(_expected, panes), key=repr)
        _check_late(windows, events, results, late)
        before = after


def _check_late(windows: Windows, events: Sequence[Stored], results: Sequence[Any], late: Sequence[Event]) -> None:
    found = [row for result in results for row in result.late.to_pylist()]
    if windows.late == "drop":
        assert not found
        return
    places = {one.number: one.offset for one in events}
    assert sorted((row["c0"], row["c1"]) for row in found) == sorted((SEGMENT, places[one.number]) for one in late)


def _key(value: Any) -> Any:
    """Equal keys are one, as in Spark's grouping."""
    return (
        "nan" if isinstance(value, float) and math.isnan(value) else value + 0.0 if isinstance(value, float) else value
    )


def _comparable(pane: Mapping[str, Any]) -> dict[str, Any]:
    replaces = sorted((each["window_start"], each["window_end"]) for each in pane.get("replaces", ()))
    return {**pane, "k0": _key(pane["k0"]), "replaces": replaces}


def _expected(pane: Any) -> dict[str, Any]:
    values = [event.value for event in pane.events if event.value is not None]
    return {
        "k0": pane.key,
        "window_start": pane.start,
        "window_end": pane.end,
        "pane": pane.kind,
        "revision": pane.revision,
        "rows": len(pane.events),
        "values": len(values),
        "min": min(values, default=None),
        "max": max(values, default=None),
        "first": pane.events[0].value,
        "last": pane.events[-1].value,
        "some": values[:COLLECTED],
        "distinct": len(set(values)),
        "replaces": sorted(pane.replaces),
    }


def fails(windows: Windows, events: Sequence[Stored]) -> bool:
    """Whether Spark would."""
    try:
        for one in events:
            if windows.where is None or windows.where.holds(one.row):
                windows.key.value(one.row)
                windows.value.value(one.row)
    except Failed:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [TUMBLING, SLIDING, SESSION], ids=["tumbling", "sliding", "session"])
def test_panes_and_late_events_match_the_reference_whatever_is_computed(kinds: st.SearchStrategy[Any]) -> None:
    @settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
    @given(
        st.tuples(kinds, LATENESS, st.sampled_from(["keep", "drop"]), st.none() | CONDITIONS, KEYS, NUMBERS),
        EPOCHS,
        st.integers(1, 4),
    )
    def holds(given_windows: tuple[Any, ...], epochs: Any, at_once: int) -> None:
        window, (rule, lateness), *others = given_windows
        lengths = {name: getattr(window, name) * SECOND for name in window.__dataclass_fields__}
        windows = Windows(type(window)(**lengths), (rule, lateness * SECOND), *others)
        made = [*stored_epochs(epochs)]
        if any(fails(windows, events) for events, _ in made):
            with pytest.raises(ArithmeticException):
                run(windows, made, at_once)
        else:
            run(windows, made, at_once)

    holds()


# What is left to Spark, with the reason.

COUNTED = pa.schema({"k0": pa.string()})


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request(given=None), "not an input itself"),
        (request(given=input_frame(input="second")), "not the first input"),
        (request(where="abs(amount) > 1"), r"where: readers cannot compute this: abs\(…\)"),
        (request(select={"k": "upper(user)"}, keys=["k"]), r"select: k: readers cannot compute this: upper\(…\)"),
        (request(select={"offset": "amount"}), "select replaces the position"),
        (request(keys=[42]), "42 is an expression of Spark"),
        (request(keys=["user + 1"]), "not the name of a column"),
        (request(event_time="amount"), "`amount` is int64"),
        (request(select={"k": "amount + 1"}, keys=["k"]), "int64 is string for Spark"),
    ],
)
def test_a_reason_is_given_for_what_readers_do_not_compute(asked: Request, reason: str) -> None:
    with pytest.raises(NotCovered, match=reason):
        reading_of(asked, {}, COUNTED, "in", session())


def test_arithmetic_is_left_to_spark_unless_it_is_in_ansi_mode() -> None:
    ansi_off = session(**{"spark.sql.ansi.enabled": "false"})
    with pytest.raises(NotCovered, match=r"spark\.sql\.ansi\.enabled"):
        reading_of(request(where="amount + 1 > 2"), {}, COUNTED, "in", ansi_off)
    assert reading_of(request(where="amount > 2"), {}, COUNTED, "in", ansi_off).where


def test_a_session_without_the_rule_that_leaves_empty_inputs_out_reads_plain() -> None:
    rules = session(
        **{"spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.OptimizeLimitZero"}
    )
    with pytest.raises(NotCovered, match="OptimizeLimitZero"):
        reading_of(request(), {}, COUNTED, "in", rules)


def test_a_column_that_the_frame_has_with_another_type_than_its_reader_is_left_to_spark() -> None:
    parsed = types.StructType([*READ.fields[:-1], types.StructField("ok", types.VariantType())])
    given_input = InputFrame(cast("Any", SimpleNamespace(schema=parsed)), OPTIONS, READ)
    with pytest.raises(NotCovered, match="`ok` is not a column"):
        reading_of(request(where="ok is null", given=given_input), {}, COUNTED, "in", session())


def test_decoded_fields_that_are_named_like_a_position_are_left_to_spark() -> None:
    fields = [types.StructField(name, types.StringType()) for name in ("user", "segment")]
    read = types.StructType([READ["event_time"], *fields])
    with pytest.raises(NotCovered, match="named like the position"):
        reading_of(request(given=input_frame(read, columns="event_time")), {}, COUNTED, "in", session())


def test_selected_columns_replace_those_of_the_same_name_in_any_case() -> None:
    reading = reading_of(request(select={"USER": "price"}, keys=["user"]), {}, pa.schema({}), "in", session())
    assert reading.columns() == ("event_time", "price")
    (fused,) = [FusedWindows(cast("Any", None), reading)]
    assert fused.columns == ("event_time", "segment", "offset")
