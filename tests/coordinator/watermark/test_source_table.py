"""The watermark is the minimum over the active streams of the highest event time, and never goes back."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.coordinator.watermark.source_table import Blocker, StreamTable, Terms, advanced
from penstock.protocol.stored.event import END_OF_TIME, NO_TIME
from penstock.protocol.stored.head import Mark, MarkKind, StreamColumns, encode_head
from tests.coordinator.scene import u64s

STARTED, ENDED, IDLE, AGAIN = MarkKind.STARTED, MarkKind.ENDED, MarkKind.IDLE, MarkKind.ACTIVE_AGAIN


def head(times: dict[int, int], *marks: tuple[int, MarkKind] | Mark) -> bytes:
    columns = StreamColumns(u64s([*times]), u64s([0] * len(times)), u64s([*times.values()]))
    return encode_head(columns, [each if isinstance(each, Mark) else Mark(*each) for each in marks], len(times))


def declared(stream_id: int, time: int) -> Mark:
    return Mark(stream_id, MarkKind.WATERMARK, "", time)


def finished(segment: int, count: int) -> Mark:
    return Mark(segment, MarkKind.FINISHED, "", count)


def disordered(disorder_us: int, *connectors: str) -> Terms:
    return Terms(frozenset(connectors) or None, lambda _: disorder_us)


def table(*heads: bytes, source: str = "s") -> StreamTable:
    made = StreamTable()
    made.fold(source, heads)
    return made


def test_the_watermark_is_unknown_before_the_first_event() -> None:
    assert table().watermark() is None
    assert table(b"").watermark() is None


def test_the_watermark_is_that_of_the_slowest_stream() -> None:
    made = table(head({1: 100, 2: 50}), head({1: 200}), head({2: 40}))
    assert made.watermark() == 50


def test_a_stream_that_has_started_and_sent_nothing_blocks_the_watermark() -> None:
    made = table(head({1: 100}), head({}, (2, STARTED)))
    assert made.watermark() is None
    assert advanced(70, made) == 70
    made.fold("s", [head({2: 30})])
    assert made.watermark() == 30
    assert advanced(70, made) == 70, "it never goes back"


def test_a_stream_that_has_ended_does_not_block_the_watermark() -> None:
    made = table(head({1: 100, 2: 50}), head({}, (2, ENDED)))
    assert made.watermark() == 100
    assert len(made) == 1


def test_a_stream_ends_after_the_events_of_the_same_record() -> None:
    assert table(head({1: 100, 2: 50}, (2, ENDED))).watermark() == 100


def test_when_all_streams_have_ended_the_watermark_is_the_highest_event_time() -> None:
    made = table(head({1: 100, 2: 50}), head({}, (1, ENDED)), head({}, (2, ENDED)))
    assert made.watermark() == 100


def test_a_reopened_stream_continues_from_its_highest_time_unless_it_had_ended() -> None:
    assert table(head({1: 100}), head({}, (1, STARTED))).watermark() == 100
    assert table(head({1: 100}, (1, ENDED)), head({}, (1, STARTED))).watermark() is None


def test_an_idle_stream_does_not_block_the_watermark_until_it_is_active_again() -> None:
    made = table(head({1: 100, 2: 50}), head({}, (2, IDLE)))
    assert made.watermark() == 100
    made.fold("s", [head({}, (2, AGAIN))])
    assert made.watermark() == 50
    made.fold("s", [head({}, (2, IDLE)), head({2: 60})])
    assert made.watermark() == 60


def test_a_stream_without_event_times_does_not_block_the_watermark() -> None:
    made = table(head({1: 100}, (1, STARTED), (2, STARTED)), head({2: NO_TIME}))
    assert made.watermark() == 100


def test_streams_of_different_sources_are_different() -> None:
    made = table(head({1: 100}), source="s")
    made.fold("t", [head({1: 50})])
    assert made.watermark() == 50
    made.fold("t", [head({}, (1, ENDED))])
    assert made.watermark() == 100
    made.forget(["s"])
    assert made.watermark() == 50  # no stream is active: the highest of all that is read


def test_an_output_without_a_watermark_blocks_the_watermark() -> None:
    made = table(head({1: 100}))
    made.outputs = {"pipeline:p/out": None}
    assert made.watermark() is None
    made.outputs = {"pipeline:p/out": 60}
    assert made.watermark() == 60


def test_disorder_is_subtracted_per_stream_and_a_silent_stream_still_blocks() -> None:
    made = table(head({1: 100, 2: 50}))
    assert made.watermark(disordered(7)) == 43
    assert made.watermark(disordered(0)) == 50
    made.fold("s", [head({}, (3, STARTED))])
    assert made.watermark(disordered(7)) is None
    made.fold("s", [head({3: NO_TIME + 5})])
    assert made.watermark(disordered(7)) == NO_TIME + 1, "below it there is no time"


def test_each_source_has_its_own_disorder() -> None:
    made = table(head({1: 100}), source="s")
    made.fold("t", [head({1: 100})])
    assert made.watermark(Terms(None, {"s": 10, "t": 30}.__getitem__)) == 70
    made.fold("t", [head({}, (1, ENDED))])
    assert made.watermark(Terms(None, {"s": 10, "t": 30}.__getitem__)) == 90


def test_a_higher_disorder_does_not_move_the_watermark_back() -> None:
    assert advanced(95, table(head({1: 100})), disordered(10)) == 95
    assert advanced(90, table(head({1: 100})), disordered(10)) == 90
    assert advanced(89, table(head({1: 100})), disordered(10)) == 90


def test_a_declared_watermark_counts_if_it_is_higher() -> None:
    made = table(head({1: 100, 2: 80}), head({}, declared(2, 95)))
    assert made.watermark() == 95
    assert made.watermark(disordered(20)) == 80, "stream 1 has none"
    made.fold("s", [head({}, declared(2, 60))])
    assert made.watermark() == 95, "a lower one changes nothing"
    made.fold("s", [head({1: 200, 2: 150})])
    assert made.watermark() == 150
    assert made.watermark(disordered(60)) == 95


def test_a_declared_watermark_applies_to_a_silent_stream_and_to_one_without_event_times() -> None:
    made = table(head({1: 100}, (1, STARTED), (2, STARTED)))
    assert made.watermark() is None
    made.fold("s", [head({}, declared(2, 70))])
    assert made.watermark() == 70
    made.fold("s", [head({2: NO_TIME})])
    assert made.watermark() == 70
    without = table(head({1: 100}, (1, STARTED), (2, STARTED)), head({2: NO_TIME}))
    assert without.watermark() == 100
    without.fold("s", [head({}, declared(2, 70))])
    assert without.watermark() == 70


def test_a_declared_watermark_survives_idleness_and_ends_with_its_stream() -> None:
    made = table(head({1: 100, 2: 10}), head({}, declared(2, 70)), head({}, (2, IDLE)))
    assert made.watermark() == 100
    made.fold("s", [head({}, (2, AGAIN))])
    assert made.watermark() == 70
    made.fold("s", [head({}, (2, ENDED)), head({}, (2, STARTED))])
    assert made.watermark() is None
    made.fold("s", [head({2: 30})])
    assert made.watermark() == 30


def test_without_active_streams_the_highest_declared_watermark_counts() -> None:
    made = table(head({1: 100}), head({}, declared(1, 130)), head({}, (1, ENDED)))
    assert made.watermark(disordered(10)) == 130
    assert table(head({1: 100}, (1, ENDED))).watermark(disordered(10)) == 90


def test_a_source_has_ended_when_all_its_segments_are_marked() -> None:
    made = table(head({1: 100, 2: 50}), head({}, finished(0, 2)))
    assert made.watermark() == 50
    made.fold("s", [head({}, finished(0, 2))])
    assert made.watermark() == 50, "it is the same segment"
    made.fold("s", [head({}, finished(1, 2))])
    assert made.watermark() == END_OF_TIME
    made.fold("s", [head({3: 70}, (3, STARTED))])
    assert made.watermark() == END_OF_TIME, "what comes later is late"


def test_the_watermark_is_the_end_of_time_only_when_every_source_has_ended() -> None:
    terms = disordered(5, "s", "t")
    made = table(head({1: 100}), head({}, finished(0, 1)), source="s")
    assert made.watermark(terms) is None, "nothing is known of t"
    made.fold("t", [head({1: 30})])
    assert made.watermark(terms) == 25
    made.fold("t", [head({}, (1, ENDED))])
    assert made.watermark(terms) == 25, "its streams have ended, and may begin again"
    made.outputs = {"pipeline:p/out": END_OF_TIME}
    assert made.watermark(terms) == 25
    made.fold("t", [head({}, finished(0, 1))])
    assert made.watermark(terms) == END_OF_TIME
    made.outputs = {"pipeline:p/out": None}
    assert made.watermark(terms) is None
    made.outputs = {"pipeline:p/out": 20}
    assert made.watermark(terms) == 20


def clock(segment: int, time: int, count: int = 1, kind: MarkKind = MarkKind.CLOCK) -> Mark:
    return Mark(segment, kind, "", time, count)


def test_with_arrival_times_the_watermark_waits_for_no_stream() -> None:
    made = table(head({1: 100, 2: 50}), head({}, (3, STARTED)))
    assert made.watermark() is None
    made.fold("s", [head({}, clock(0, 120))])
    assert made.watermark() == 120
    assert made.watermark(disordered(30)) == 120, "nothing older comes, so there is no disorder"
    assert made.blocker() == Blocker("s", None, 120)
    made.fold("s", [head({1: 150, 2: 140, 3: 130})])
    assert (made.watermark(), made.blocker()) == (130, Blocker("s", 3, 130))
    made.fold("s", [head({}, clock(0, 90))])
    assert made.watermark() == 130, "a clock does not go back"


def test_a_clock_mark_counts_when_all_segments_have_it() -> None:
    made = table(head({1: 100}, (2, STARTED)), head({}, clock(0, 120, 2)))
    assert made.watermark() is None
    made.fold("s", [head({}, clock(1, 110, 2))])
    assert made.watermark() == 110, "of the one that is farther behind"
    made.fold("s", [head({}, clock(0, 130, 3)), head({}, clock(1, 130, 3))])
    assert made.watermark() is None, "the source has another segment by now"
    made.fold("s", [head({}, clock(2, 125, 3))])
    assert made.watermark() == 125


def test_the_clock_of_an_idle_source_counts_while_no_stream_is_active() -> None:
    made = table(head({1: 100}), head({}, clock(0, 200, kind=MarkKind.IDLE_CLOCK)))
    assert made.watermark() == 100
    made.fold("s", [head({}, (1, IDLE))])
    assert made.watermark() == 200
    made.fold("s", [head({1: 150}, (1, AGAIN))])
    assert made.watermark() == 150, "advanced() keeps what a pipeline has had: another source may hold it lower"
    made.fold("t", [head({1: 300}), head({}, (1, IDLE))])
    assert made.watermark() == 150
    made.fold("s", [head({}, (1, ENDED))])
    assert made.watermark() == 300


def test_no_watermark_is_beyond_the_end_of_time() -> None:
    assert table(head({1: 2**63 - 1})).watermark() == END_OF_TIME
    assert table(head({1: END_OF_TIME + 5})).watermark(disordered(5)) == END_OF_TIME
    assert table(head({1: END_OF_TIME + 4})).watermark(disordered(5)) == END_OF_TIME - 1
    assert table(head({1: 5}), head({}, declared(1, 2**63 - 1))).watermark() == END_OF_TIME


def test_the_table_names_what_blocks_the_watermark() -> None:
    made = table(head({1: 100, 2: 50, 3: 70}))
    assert made.blocker(disordered(5)) == Blocker("s", 2, 45)
    made.fold("s", [head({}, declared(2, 90))])
    assert made.blocker() == Blocker("s", 3, 70)
    made.fold("s", [head({}, (4, STARTED))])
    assert made.blocker() == Blocker("s", 4, None)
    made.fold("s", [head({}, (4, ENDED))])
    made.outputs = {"pipeline:p/out": 60}
    assert made.blocker() == Blocker("pipeline:p/out", None, 60)
    made.outputs = {"pipeline:p/out": None}
    assert made.blocker() == Blocker("pipeline:p/out", None, None)
    made.outputs = {}
    made.fold("s", [head({}, finished(0, 1))])
    assert made.blocker() is None
    assert table().blocker() is None


times = st.dictionaries(st.integers(1, 4), st.integers(0, 50), max_size=3)
marks = st.lists(
    st.builds(
        Mark,
        st.integers(0, 4),
        st.sampled_from(MarkKind),
        st.just(""),
        st.integers(1, 60),
        st.none() | st.integers(1, 3),
    ),
    max_size=2,
)


@settings(deadline=None)
@given(st.lists(st.tuples(times, marks), max_size=12), st.integers(0, 2**32))
def test_folding_the_same_heads_in_any_steps_gives_the_same_table(
    records: list[tuple[dict[int, int], list[Mark]]], seed: int
) -> None:
    heads = [head(each, *said) for each, said in records]
    whole, stepwise = table(*heads), StreamTable()
    choose = random.Random(seed)
    stepwise.fold("s", [])
    while heads:
        count = choose.randint(1, len(heads))
        stepwise = stepwise.copy()
        stepwise.fold("s", heads[:count])
        del heads[:count]
    assert stepwise.watermark() == whole.watermark()
    assert stepwise.sources == whole.sources
