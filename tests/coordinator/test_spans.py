"""Ids and links of spans, as pure functions of the ledger's state."""

import msgpack
import pytest

from penstock.coordinator.machine.state import MergedEpoch, Pipeline, State
from penstock.coordinator.spans import RANGES_MAX, EpochId, SpanContext, origins, ranges, upstream
from tests.coordinator.scene import stored

SEED = b"seed"


def root(name: str, incarnation: int, number: int) -> SpanContext:
    return EpochId(SEED, name, incarnation, number).root


def test_span_ids_depend_only_on_the_epoch() -> None:
    epoch = EpochId(SEED, "p", 1, 7)
    assert epoch.root == EpochId(SEED, "p", 1, 7).root
    assert epoch.span("merge").trace_id == epoch.root.trace_id
    others = [EpochId(b"", "p", 1, 7), EpochId(SEED, "q", 1, 7), EpochId(SEED, "p", 2, 7), EpochId(SEED, "p", 1, 8)]
    assert len({one.root for one in (epoch, *others)}) == 5
    assert len({one.root.trace_id for one in (epoch, *others)}) == 5
    assert 0 < epoch.root.trace_id < 2**128
    assert 0 < epoch.root.span_id < 2**64


def written(*ends: int) -> State:
    """A pipeline `p` whose epochs end at these offsets of its port `out`."""
    epochs = {number: MergedEpoch(number - 1, number, {"out": end}, None) for number, end in enumerate(ends)}
    return State(pipelines={"p": Pipeline(incarnation=3, generation=4, epochs=epochs)})


@pytest.mark.parametrize(
    ("start", "end", "numbers"),
    [(0, 30, [3, 1, 0]), (0, 10, [0]), (0, 11, [1, 0]), (10, 20, [1]), (15, 20, [1]), (20, 30, [3]), (30, 30, [])],
)
def test_upstream_epochs_are_those_that_wrote_any_of_the_bytes(start: int, end: int, numbers: list[int]) -> None:
    state = written(10, 20, 20, 30)
    found = [*upstream(SEED, state, {"pipeline/p/out": start}, {"pipeline/p/out": end})]
    assert found == [root("p", 3, number) for number in numbers]


def test_output_of_epochs_that_the_ledger_no_longer_lists_is_not_attributed_to_the_oldest_listed_one() -> None:
    epochs = {5: MergedEpoch(4, 5, {"out": 60}, None), 6: MergedEpoch(5, 6, {"out": 70}, None)}
    state = State(pipelines={"p": Pipeline(incarnation=3, generation=4, epochs=epochs)})
    assert [*upstream(SEED, state, {}, {"pipeline/p/out": 10})] == []
    assert [*upstream(SEED, state, {}, {"pipeline/p/out": 70})] == [root("p", 3, 6)]


def test_other_segments_have_no_upstream_epochs() -> None:
    ends = {"connector/s/0": 10, "raw": 10, "pipeline/gone/out": 10, "pipeline/p/late": 10}
    assert [*upstream(SEED, written(10), {}, ends)] == []


def test_ranges_are_listed_up_to_a_limit() -> None:
    assert ranges({"a": 3}, {"a": 5, "b": 7}) == ("a [3, 5)", "b [0, 7)")
    listed = ranges({}, {f"s{number:02}": 1 for number in range(RANGES_MAX + 3)})
    assert listed[-1] == "and 3 more"
    assert len(listed) == RANGES_MAX + 1


def event(metadata: bytes) -> bytes:
    """The data of a stored event with these bytes as metadata."""
    return stored(1, 1, 0)[8:34] + len(metadata).to_bytes(2, "big") + metadata


PARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"
GIVEN = SpanContext(int("ab" * 16, 16), int("cd" * 8, 16))


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ({"traceparent": PARENT}, [GIVEN]),
        ({"headers": {"traceparent": PARENT}}, [GIVEN]),
        ({"headers": ["traceparent", PARENT]}, []),
        ({"traceparent": f"00-{'00' * 16}-{'cd' * 8}-01"}, []),
        ({"traceparent": PARENT + "x"}, []),
        ({"traceparent": 7}, []),
        ({}, []),
    ],
)
def test_an_event_may_carry_the_span_it_was_sent_in(metadata: dict[str, object], found: list[SpanContext]) -> None:
    assert [*origins([event(msgpack.packb(metadata))])] == found


def test_events_that_cannot_be_parsed_are_skipped() -> None:
    broken = [b"", b"raw", event(b"\xc1"), event(msgpack.packb([PARENT]))]
    assert [*origins([*broken, event(msgpack.packb({"traceparent": PARENT}))])] == [GIVEN]
