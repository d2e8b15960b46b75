"""The watermark is the minimum over the active streams of the highest event time, and never goes back."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.coordinator.watermark.stream_table import StreamTable, advanced
from penstock.protocol.stored.head import Mark, MarkKind, StreamColumns, encode_head
from penstock.protocol.stored.layout import NO_TIME
from tests.coordinator.scene import u64s

Marks = list[tuple[int, MarkKind]]
STARTED, ENDED, IDLE, AGAIN = MarkKind.STARTED, MarkKind.ENDED, MarkKind.IDLE, MarkKind.ACTIVE_AGAIN


def head(times: dict[int, int], *marks: tuple[int, MarkKind]) -> bytes:
    columns = StreamColumns(u64s([*times]), u64s([0] * len(times)), u64s([*times.values()]))
    return encode_head(columns, [Mark(stream, kind) for stream, kind in marks], len(times))


def table(*heads: bytes, source: str = "s") -> StreamTable:
    made = StreamTable()
    made.fold(source, heads)
    return made


def test_it_is_not_known_while_no_event_was_seen() -> None:
    assert table().watermark() is None
    assert table(b"").watermark() is None


def test_it_is_the_slowest_stream_s() -> None:
    made = table(head({1: 100, 2: 50}), head({1: 200}), head({2: 40}))
    assert made.watermark() == 50


def test_a_stream_that_has_begun_and_said_nothing_holds_it_back() -> None:
    made = table(head({1: 100}), head({}, (2, STARTED)))
    assert made.watermark() is None
    assert advanced(70, made) == 70
    made.fold("s", [head({2: 30})])
    assert made.watermark() == 30
    assert advanced(70, made) == 70, "it never goes back"


def test_a_stream_that_has_ended_holds_nothing_back() -> None:
    made = table(head({1: 100, 2: 50}), head({}, (2, ENDED)))
    assert made.watermark() == 100
    assert len(made) == 1


def test_a_stream_ends_behind_the_events_of_the_same_record() -> None:
    assert table(head({1: 100, 2: 50}, (2, ENDED))).watermark() == 100


def test_when_all_have_ended_it_is_the_highest_of_all() -> None:
    made = table(head({1: 100, 2: 50}), head({}, (1, ENDED)), head({}, (2, ENDED)))
    assert made.watermark() == 100


def test_a_stream_that_begins_again_goes_on_from_its_highest_time_unless_it_had_ended() -> None:
    assert table(head({1: 100}), head({}, (1, STARTED))).watermark() == 100
    assert table(head({1: 100}, (1, ENDED)), head({}, (1, STARTED))).watermark() is None


def test_an_idle_stream_holds_nothing_back_until_it_is_active_again() -> None:
    made = table(head({1: 100, 2: 50}), head({}, (2, IDLE)))
    assert made.watermark() == 100
    made.fold("s", [head({}, (2, AGAIN))])
    assert made.watermark() == 50
    made.fold("s", [head({}, (2, IDLE)), head({2: 60})])
    assert made.watermark() == 60


def test_a_stream_without_event_times_holds_nothing_back() -> None:
    made = table(head({1: 100}, (1, STARTED), (2, STARTED)), head({2: NO_TIME}))
    assert made.watermark() == 100


def test_streams_of_different_sources_are_different() -> None:
    made = table(head({1: 100}), source="s")
    made.fold("t", [head({1: 50})])
    assert made.watermark() == 50
    made.fold("t", [head({}, (1, ENDED))])
    assert made.watermark() == 100
    made.forget(["s"])
    assert made.watermark() == 100  # nobody is active: the highest of all


def test_an_output_that_has_no_watermark_holds_it_back() -> None:
    made = table(head({1: 100}))
    made.outputs = {"pipeline/p/out": None}
    assert made.watermark() is None
    made.outputs = {"pipeline/p/out": 60}
    assert made.watermark() == 60


times = st.dictionaries(st.integers(1, 4), st.integers(0, 50), max_size=3)
marks = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(MarkKind)), max_size=2)


@settings(deadline=None)
@given(st.lists(st.tuples(times, marks), max_size=12), st.integers(0, 2**32))
def test_the_same_heads_give_the_same_table_in_whatever_steps_they_are_folded(
    records: list[tuple[dict[int, int], Marks]], seed: int
) -> None:
    heads = [head(each, *said) for each, said in records]
    whole, stepwise = table(*heads), StreamTable()
    choose = random.Random(seed)
    while heads:
        count = choose.randint(1, len(heads))
        stepwise = stepwise.copy()
        stepwise.fold("s", heads[:count])
        del heads[:count]
    assert stepwise.watermark() == whole.watermark()
    assert {k: v for k, v in stepwise.active.items() if v} == {k: v for k, v in whole.active.items() if v}
