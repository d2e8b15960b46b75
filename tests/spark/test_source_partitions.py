"""An epoch's bytes are divided among tasks: all of them, once, in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.coordinator import CoordinatorClient, InputOffset, Range
from penstock.core.errors import DataLoss
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.partitions import PARTITION_BYTES_MIN, PlacedRange, packed, plan_partitions, ranges_between
from tests.spark.sending import send
from tests.support.running_worker import RunningWorker

MIB = 1 << 20


def here(splits: list[Range], worker: str = "127.0.0.1:7102") -> list[PlacedRange]:
    return [PlacedRange(worker, split) for split in splits]


def test_the_range_between_two_offsets_is_read_in_segment_order() -> None:
    start, end = InputOffset({"b": 5, "a": 7, "c": 9}), InputOffset({"c": 9, "b": 6, "a": 8, "d": 3})
    assert ranges_between(start, end, fail_on_data_loss=True) == [Range("a", 7, 8), Range("b", 5, 6), Range("d", 0, 3)]


def test_a_deleted_segment_is_data_loss() -> None:
    start, end = InputOffset({"a": 5, "b": 6}), InputOffset({"b": 7})
    with pytest.raises(DataLoss, match="segment 'a' is gone, and with it everything after 5"):
        ranges_between(start, end, fail_on_data_loss=True)
    assert ranges_between(start, end, fail_on_data_loss=False) == [Range("b", 6, 7)]


def test_a_source_that_was_not_linked_when_the_epoch_was_planned_is_not_lost(
    worker: RunningWorker, client: CoordinatorClient
) -> None:
    """Spark reruns such an epoch after the source is linked again."""
    for name in ("a", "b"):
        send(f"127.0.0.1:{worker.ports['connector']}", name, "one", [b"event"])
    ends = client.resolve(["a", "b"], "latest")
    only_b = {name: at for name, at in ends.items() if name.startswith("connector/b/")}
    start, end = InputOffset(dict.fromkeys(ends, 0)), InputOffset(only_b)
    options = SourceOptions.parse({"source": "a,b", "worker": f"127.0.0.1:{worker.ports['http']}"})
    planned = plan_partitions(client, options, start, end)
    assert {piece.segment for partition in planned for piece in partition.ranges} == {
        name for name, at in only_b.items() if at
    }
    without = InputOffset({**dict.fromkeys(ends, 0), "connector/a/9": 5})
    with pytest.raises(DataLoss, match="segment 'connector/a/9' is gone, and with it everything after 5"):
        plan_partitions(client, options, without, end)


def test_small_ranges_share_a_task() -> None:
    splits = [Range(f"s{n}", 0, 1000) for n in range(50)]
    assert [partition.ranges for partition in packed(here(splits), 8)] == [tuple(splits)]
    assert packed(here([]), 4) == []


def test_large_ranges_are_divided_among_all_tasks() -> None:
    splits = [Range("s", n * 10 * MIB, (n + 1) * 10 * MIB) for n in range(4)]
    assert [partition.ranges for partition in packed(here(splits), 4)] == [(split,) for split in splits]
    halves = [(Range("s", 0, 20 * MIB),), (Range("s", 20 * MIB, 40 * MIB),)]
    assert [partition.ranges for partition in packed(here(splits), 2)] == halves


def test_splits_with_a_gap_between_them_are_separate_ranges() -> None:
    splits = [Range("s", 0, MIB), Range("s", 2 * MIB, 3 * MIB), Range("t", 3 * MIB, 4 * MIB)]
    assert [partition.ranges for partition in packed(here(splits), 2)] == [tuple(splits)]


def test_ranges_of_two_workers_stay_separate_and_keep_their_addresses() -> None:
    first, second = here([Range("s", 0, MIB)], "a:7102"), here([Range("s", MIB, 2 * MIB)], "b:7102")
    (partition,) = packed([*first, *second], 2)
    assert partition.placed == (*first, *second)


@given(st.lists(st.integers(1, 40 * MIB), max_size=30), st.integers(1, 16))
def test_the_order_is_kept_and_no_partition_is_much_larger_than_the_others(sizes: list[int], parts: int) -> None:
    splits = [Range(f"s{number:03}", 0, size) for number, size in enumerate(sizes)]
    partitions = packed(here(splits), parts)
    assert [piece for partition in partitions for piece in partition.ranges] == splits
    assert all(partition.ranges for partition in partitions)
    count = max(1, min(parts, sum(sizes) // PARTITION_BYTES_MIN))
    assert len(partitions) <= count
    for partition in partitions:
        assert sum(piece.end for piece in partition.ranges) <= sum(sizes) // count + max(sizes) + 1
