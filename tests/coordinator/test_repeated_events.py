"""Which events were there before: found a partition at a time, whatever the partitions are."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.coordinator import repeated_events
from penstock.coordinator.repeated_events import MemoryScratch, RepeatedEvents, partitions_of
from penstock.protocol.stored.dead_letter_identities import Identified

IDENTITY = st.none() | st.tuples(st.integers(1, 3), st.integers(-1, 4), st.sampled_from([0, 7, -(2**63)]))
STEPS = st.lists(st.lists(IDENTITY, max_size=9), max_size=6)


def identified(step: list[tuple[int, int, int] | None]) -> Identified:
    rows = np.array([one or (0, 0, 0) for one in step], np.int64).reshape(-1, 3)
    return Identified(np.arange(len(step) + 1), rows, np.array([one is not None for one in step], bool))


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(1, 12), st.integers(0, 80), st.integers(0, 60), st.integers(0, 60))
def test_an_event_is_repeated_if_an_earlier_one_has_its_identity(
    steps: list[list[tuple[int, int, int] | None]], at_once: int, expected: int, first: int, count: int
) -> None:
    """`expected` need not be right, and any range may be asked for."""

    async def found() -> list[bool]:
        repeated = RepeatedEvents(MemoryScratch(), expected)
        for step in steps:
            await repeated.add(identified(step))
        await repeated.find()
        return [bool(one) for one in await repeated.among(first, count)]

    given_events = [one for step in steps for one in step]
    wanted = [one is not None and one in given_events[:number] for number, one in enumerate(given_events)]
    wanted += [False] * (first + count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeated_events, "EVENTS_AT_ONCE", at_once)
        assert asyncio.run(found()) == wanted[first : first + count]


def test_identities_are_spread_evenly_over_partitions() -> None:
    """Offsets of one segment lie apart by the size of an event."""
    rows = np.zeros((100_000, 4), np.int64)
    rows[:, 0], rows[:, 1] = 12345, np.arange(100_000) * 128
    sizes = np.bincount(partitions_of(rows, 40), minlength=40)
    assert 0.9 < sizes.min() / 2500 <= sizes.max() / 2500 < 1.1
