"""A task stages what it cannot pass on beside its query: with its bytes, once, if every attempt decides the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from penstock.client.coordinator import CoordinatorClient
from penstock.coordinator import distinct_events
from penstock.core.errors import RequestError, Unavailable
from penstock.protocol.api.pipelines import Range
from penstock.protocol.stored.dead_letters import dead_letters_in
from penstock.spark import side_outputs
from penstock.spark.codecs.codec import Branch
from penstock.spark.dead_letters.events import _packed, derived, identities
from penstock.spark.side_outputs import NotRepeatable, Rejected, registered
from penstock.spark.source.decoding import decode_partition, planned
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.partitions import SegmentRanges, placed
from tests.protocol.stored.events import stored
from tests.spark.epochs import SEGMENT, TYPED, VALUES, Epoch, running_epoch
from tests.spark.stored_data import durable, store_events, truncate
from tests.support.running_worker import RunningWorker


@pytest.fixture
def epoch(worker: RunningWorker) -> Iterator[Epoch]:
    with running_epoch(worker) as running:
        yield running


def test_a_dead_letter_is_the_stored_event_with_its_metadata_and_the_reason(epoch: Epoch) -> None:
    with registered(epoch.sides()) as sides:
        sides.stage(epoch.rows(1, 3), Rejected("err", ["Bad: one", "Bad: two"]))
        sides.stage(epoch.rows(2), Rejected("late", ["late"], [90], [60]))
    epoch.merge()
    first, second = epoch.left()
    assert (first.payload, first.key, first.stream_id, first.event_id, first.event_time) == (b"no json", b"k", 7, 2, 20)
    place = {"segment": SEGMENT, "offset": epoch.offsets[1]}
    assert first.metadata == {**TYPED, "source": "sales", "reason": "Bad: one", **place}
    assert second.payload == VALUES[3]
    (late,) = epoch.left("late")
    assert (late.metadata["watermark"], late.metadata["behind_us"]) == (90, 60)
    event = epoch.client.dead_letter("p", "err", 0)
    assert event.reason == "Bad: one"


def test_rows_without_a_position_are_staged_as_json_and_marked_derived(epoch: Epoch) -> None:
    rows = pa.table({"segment": pa.array([None], pa.string()), "offset": pa.array([5], pa.int64()), "n": [b"\xff"]})
    with registered(epoch.sides()) as sides:
        sides.stage(rows, Rejected("err", ["Bad"]))
    epoch.merge()
    (event,) = epoch.left()
    assert json.loads(event.payload) == {"segment": None, "offset": 5, "n": "/w=="}
    assert event.metadata == {"reason": "Bad", "derived": True}
    assert epoch.client.dead_letter("p", "err", 0).segment is None


def test_an_event_is_staged_once_however_many_rows_and_partitions_have_it(epoch: Epoch) -> None:
    for partition in (0, 1):
        with registered(epoch.sides(partition=partition)) as sides:
            sides.stage(epoch.rows(1, 1, 2), Rejected("err", ["Bad"] * 3))
            sides.stage(epoch.rows(2 + partition), Rejected("err", ["Bad"]))
            sides.stage(epoch.rows(1), Rejected("late", ["late"]))
    epoch.merge()
    assert [event.event_id for event in epoch.left()] == [2, 3, 4]
    assert [event.event_id for event in epoch.left("late")] == [2]


def test_a_task_that_has_forgotten_that_an_event_was_staged_leaves_the_repetition_to_the_merge(
    epoch: Epoch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It remembers a limited number of events."""
    for module in (side_outputs, distinct_events):
        monkeypatch.setattr(module, "REMEMBERED_MAX", 2)
    with registered(epoch.sides()) as sides:
        sides.stage(epoch.rows(1, 2, 1, 3, 1, 2), Rejected("err", ["Bad"] * 6))
    epoch.merge()
    assert [event.event_id for event in epoch.left()] == [2, 3, 4]


def test_rows_are_distinguished_by_position_or_by_ids() -> None:
    rows = pa.table(
        {
            "segment": pa.array(["s", None, None, "s"]),
            "offset": pa.array([1, None, 7, None], pa.int64()),
            "stream_id": pa.array([1, 1, 1, 0], pa.int64()),
            "message_id": pa.array([5, 5, 5, 0], pa.int64()),
        }
    )
    assert identities(rows) == [(("s", 1), True), ((None, 1, 5), False), ((None, 1, 5), False), (None, False)]
    assert identities(pa.table({"segment": [1], "offset": [2]})) == [(None, False)]


def test_a_joined_row_with_two_positions_is_staged_as_json(epoch: Epoch) -> None:
    columns = epoch.rows(1).columns
    rows = pa.table([*columns, *columns], names=["segment", "offset", "n", "segment", "offset", "m"])
    with registered(epoch.sides()) as sides:
        sides.stage(rows, Rejected("err", ["Bad"]))
    epoch.merge()
    (event,) = epoch.left()
    at = epoch.offsets[1]
    both = {"segment": SEGMENT, "offset": at, "n": at, "segment_2": SEGMENT, "offset_2": at, "m": at}
    assert (json.loads(event.payload), event.metadata["derived"]) == (both, True)


def test_a_derived_row_keeps_the_event_columns_that_it_has() -> None:
    rows = pa.table({"value": ["text"], "key": [5], "more": [1]})
    (row,) = derived(rows).to_pylist()
    assert (row["value"], row["key"], row["segment"]) == (b"text", None, None)
    beyond = pa.table({"event_time": pa.array([10**18], pa.timestamp("us", "UTC"))})
    assert "01:46:40" in json.loads(derived(beyond).column("value")[0].as_py())["event_time"]


def test_a_second_attempt_with_the_same_rows_in_any_order_adds_nothing(epoch: Epoch) -> None:
    for numbers in ((1, 2), (2, 1)):
        with registered(epoch.sides()) as sides:
            sides.stage(epoch.rows(*numbers), Rejected("err", [f"Bad: at {number}" for number in numbers]))
    epoch.merge()
    assert [event.event_id for event in epoch.left()] == [2, 3]


@pytest.mark.parametrize(
    ("numbers", "reason"), [((1,), "Bad"), ((), "Bad"), ((1, 2, 3), "Bad"), ((1, 2), "Worse")], ids=str
)
def test_a_second_attempt_with_other_rows_fails(epoch: Epoch, numbers: tuple[int, ...], reason: str) -> None:
    with registered(epoch.sides("001 apply share")) as sides:
        sides.stage(epoch.rows(1, 2), Rejected("err", ["Bad", "Bad"]))
    again = epoch.sides("001 apply share")
    if numbers:
        again.stage(epoch.rows(*numbers), Rejected("err", [reason] * len(numbers)))
    with pytest.raises(NotRepeatable, match="apply share made different decisions for the same rows in epoch 0"):
        again.register(again.finish())
    epoch.merge()
    assert [event.event_id for event in epoch.left()] == [2, 3]


def test_concurrent_attempts_stage_each_event_once(epoch: Epoch) -> None:
    """As with speculative execution: each may end first, or not at all."""
    attempts = [epoch.sides() for _ in range(3)]
    for numbers in ((1,), (2, 3)):
        for sides in attempts:
            sides.stage(epoch.rows(*numbers), Rejected("err", ["Bad"] * len(numbers)))
    second, third, first = ((sides, sides.finish()) for sides in attempts)
    first[0].register(first[1])
    second[0].register(second[1])
    third[0].discard()
    epoch.merge()
    assert [event.event_id for event in epoch.left()] == [2, 3, 4]


def test_the_order_of_the_rows_of_an_event_does_not_matter(epoch: Epoch) -> None:
    """After a shuffle a second attempt may get the rows in another order."""
    for reasons in (["KeyError: a", "ValueError: b"], ["ValueError: b", "KeyError: a"]):
        with registered(epoch.sides()) as sides:
            sides.stage(epoch.rows(1, 1), Rejected("err", reasons))
    epoch.merge()
    (event,) = epoch.left()
    assert event.metadata["reason"] == "KeyError: a"


def test_a_registration_whose_reply_is_lost_keeps_what_was_staged(
    epoch: Epoch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has stored it: the next attempt finds it, and deletes its own copy."""
    register = CoordinatorClient.register

    def lose(*given: Any, **more: Any) -> None:
        register(*given, **more)
        raise Unavailable("no reply")

    def attempt() -> None:
        with registered(epoch.sides()) as sides:
            sides.stage(epoch.rows(1), Rejected("err", ["Bad"]))

    with monkeypatch.context() as patch:
        patch.setattr(CoordinatorClient, "register", lose)
        with pytest.raises(Unavailable):
            attempt()
    attempt()
    epoch.merge()
    assert [event.event_id for event in epoch.left()] == [2]


def test_a_row_whose_event_was_removed_is_staged_as_json(epoch: Epoch) -> None:
    """The state of a join has rows of earlier epochs."""
    truncate(epoch.worker, SEGMENT, epoch.offsets[3])
    with registered(epoch.sides()) as sides:
        sides.stage(epoch.rows(0, 3, 1), Rejected("err", ["Bad"] * 3))
    epoch.merge()
    kept, *derived_ones = epoch.left()
    assert (kept.payload, kept.metadata["offset"]) == (VALUES[3], epoch.offsets[3])
    assert [json.loads(one.payload)["offset"] for one in derived_ones] == [epoch.offsets[0], epoch.offsets[1]]
    assert all(one.metadata["derived"] for one in derived_ones)


def test_a_row_whose_segment_was_deleted_is_staged_as_json(epoch: Epoch) -> None:
    """The state of a join may outlive a source."""
    durable(epoch.worker, lambda store: store.delete(SEGMENT))
    with registered(epoch.sides()) as sides:
        sides.stage(epoch.rows(0, 3), Rejected("late", ["late"] * 2))
    epoch.merge()
    left = epoch.left("late")
    assert [json.loads(one.payload)["offset"] for one in left] == [epoch.offsets[0], epoch.offsets[3]]
    assert all(one.metadata["derived"] for one in left)


def test_columns_of_the_user_s_own_are_no_position(epoch: Epoch) -> None:
    """They may name no segment, or one that the pipeline does not read."""
    store_events(epoch.worker, "connector/secrets/0", [stored(7, 1, 1, payload=b"secret")])
    segments = ["gold", "connector/secrets/0", SEGMENT]
    rows = pa.table({"segment": segments, "offset": pa.array([5, 0, epoch.offsets[1]]), "n": [1, 2, 3]})
    with registered(epoch.sides()) as sides:
        sides.stage(rows, Rejected("err", ["Bad"] * 3))
    epoch.merge()
    event, *others = epoch.left()
    assert event.payload == VALUES[1]
    assert [json.loads(one.payload) for one in others] == [
        {"segment": "gold", "offset": 5, "n": 1},
        {"segment": "connector/secrets/0", "offset": 0, "n": 2},
    ]
    assert [one.metadata for one in others] == [{"reason": "Bad", "derived": True}] * 2


def test_metadata_of_an_event_under_keys_of_a_dead_letter_are_kept() -> None:
    own = {"reason": "sold out", "offset": "left", "headers": {"a": "b"}, "penstock.replaced": 1}
    packed = _packed({"reason": "Bad"}, "s", 1, msgpack.packb(own))
    data = stored(7, 1, 1, b"", b"v", msgpack.unpackb(packed))
    (dead_letter,) = dead_letters_in(data, 0)
    assert [*dead_letter.event.metadata.items()] == [*own.items()]
    assert (dead_letter.reason, dead_letter.segment, dead_letter.offset) == ("Bad", "s", 1)


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        (b"\x81\xa1a\xa1\xff", {"a": "\ufffd"}),
        (b"\x81\xa1\xff\x01", {"\ufffd": 1}),
        (msgpack.packb([1, 2]), {}),
        (msgpack.packb("text"), {}),
        (msgpack.packb({1: "number", "a": 1}), {"1": "number", "a": 1}),
        (b"\x81\x91\x01\x01", {"[1]": 1}),
        (b"\x81\xa1a", {}),
        (b"\xc1", {}),
        (b"\x01\x01", {}),
    ],
)
def test_metadata_that_are_no_map_of_texts_do_not_stop_a_dead_letter(own: bytes, kept: dict[str, Any]) -> None:
    """A program may send any bytes as metadata."""
    assert msgpack.unpackb(_packed({"reason": "Bad"}, "s", 1, own)) == {
        **kept,
        "reason": "Bad",
        "segment": "s",
        "offset": 1,
    }


def test_a_dead_letter_keeps_its_content_type_even_if_its_headers_do_not_fit() -> None:
    own = {"content_type": "text/csv", "headers": {"a": "x" * 65_000}}
    packed = msgpack.unpackb(_packed({"reason": "y" * 1000}, "s", 1, msgpack.packb(own)))
    assert packed == {"content_type": "text/csv", "reason": "y" * 1000, "segment": "s", "offset": 1}


def test_segments_staged_by_a_failed_attempt_do_not_count(epoch: Epoch) -> None:
    def fail() -> None:
        with registered(epoch.sides()) as sides:
            sides.stage(epoch.rows(1), Rejected("err", ["Bad"]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    epoch.merge()
    assert epoch.left() == []


def parts(epoch: Epoch, options: SourceOptions) -> list[SegmentRanges]:
    """A part for each half of the events."""
    middle, end = epoch.offsets[2], epoch.end.segments[SEGMENT]
    halves = Range(SEGMENT, 0, middle), Range(SEGMENT, middle, end)
    ranges = [SegmentRanges(placed(options, [half])) for half in halves]
    return planned(epoch.client, options, 0, ranges)


def read(options: SourceOptions, part: SegmentRanges) -> list[dict[str, Any]]:
    return [row for batch in decode_partition(options, options.columns, part) for row in batch.to_pylist()]


def test_a_reader_decodes_events_and_those_it_cannot_decode_are_dead_letters(epoch: Epoch) -> None:
    options = epoch.options(columns="value,offset")
    first, second = parts(epoch, options)
    assert read(options, first) == [{"value": VALUES[0], "offset": 0, "n": 1}]
    assert read(options, second) == [{"value": VALUES[3], "offset": epoch.offsets[3], "n": 4}]
    assert read(options, second) == [{"value": VALUES[3], "offset": epoch.offsets[3], "n": 4}], "a second attempt"
    epoch.merge()
    bad = epoch.left()
    assert [(event.payload, event.metadata["content_type"]) for event in bad] == [
        (VALUES[1], "application/json"),
        (VALUES[2], "application/json"),
    ]
    assert bad[0].metadata["reason"] == "`value` is not valid JSON"
    assert bad[1].metadata["reason"].startswith("`value` has the wrong type at `n`: expected int, found")


def test_parts_that_no_task_has_finished_are_decoded_before_the_merge(epoch: Epoch) -> None:
    options = epoch.options()
    first, second = parts(epoch, options)
    read(options, second)
    stopped = decode_partition(options, options.columns, first)
    next(stopped)
    del stopped  # as a query with a limit does
    epoch.merge()
    assert [event.event_id for event in epoch.left()] == [2, 3]


def test_a_load_without_a_pipeline_fails_at_an_event_it_cannot_decode(epoch: Epoch) -> None:
    options = SourceOptions.parse(
        {"source": "sales", "worker": epoch.origin.worker, "codec": "json", "schema": "n int"}
    )
    whole = placed(options, [Range(SEGMENT, 0, epoch.end.segments[SEGMENT])])
    (part,) = planned(epoch.client, options, 0, [SegmentRanges(whole)])
    with pytest.raises(RequestError, match=rf"`value` is not valid JSON, at {SEGMENT}@{epoch.offsets[1]}"):
        read(options, part)


def test_the_options_of_a_load_define_its_codecs() -> None:
    given = {"source": "s", "codec": "json", "schema": "n int"}
    options = SourceOptions.parse({**given, "codecMap": '{"text/csv": "csv"}'})
    assert options.branches == (Branch("csv", "n int", "", "text/csv"), Branch("json", "n int"))
    for wrong, said in [
        ({"schema": "n int"}, "the option schema needs the option codec"),
        ({"codecMap": "[1]"}, "does not map content types"),
        ({"codecMap": "{"}, "is not JSON"),
    ]:
        with pytest.raises(RequestError, match=said):
            SourceOptions.parse({"source": "s", **wrong})
