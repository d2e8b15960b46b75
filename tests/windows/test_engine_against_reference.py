"""The engine against a reference in plain Python: panes and late events are equal, however the stream is cut."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.windows.kinds import Session, Sliding, Tumbling, Window
from tests.windows.campaign import KEYS, UNITS, VALUES, run
from tests.windows.reference import Event
from tests.windows.scenario import Epoch, Scenario, check

CAMPAIGN_SEEDS = 25

LENGTHS = st.integers(1, 12)
OFFSETS = st.integers(-15, 15)
TUMBLING = st.builds(Tumbling, size_us=LENGTHS, offset_us=OFFSETS)
SLIDING = st.builds(
    lambda slide, more, offset: Sliding(size_us=slide + more, slide_us=slide, offset_us=offset),
    LENGTHS,
    st.integers(0, 15),
    OFFSETS,
)
SESSION = st.builds(Session, gap_us=LENGTHS)
LATENESS = st.tuples(st.just("window"), st.integers(0, 20)) | st.just(("strict", 0))
EVENTS = st.lists(st.tuples(st.integers(-30, 30), st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=12)
STEPS = st.none() | st.integers(0, 25)
"""By how much a cut's watermark is above the one before; None while it is unknown."""
EPOCHS = st.lists(st.tuples(EVENTS, STEPS, st.integers(1, 3), st.integers(0, 1)), min_size=1, max_size=6)


def scenario_of(window: Window, lateness: tuple[Any, int], epochs: list[Any]) -> Scenario:
    watermark, made, number = None, [], 0
    for events, step, tasks, crashes in epochs:
        numbered = tuple(Event(t, key, value, number + place) for place, (t, key, value) in enumerate(events))
        number += len(events)
        if step is not None:
            watermark = step - 35 if watermark is None else watermark + step
        made.append(Epoch(numbered, watermark, tasks, crashes))
    return Scenario(window, lateness[1], lateness[0], tuple(made))


@pytest.mark.slow
@pytest.mark.parametrize("windows", [TUMBLING, SLIDING, SESSION], ids=["tumbling", "sliding", "session"])
def test_all_panes_and_late_events_match_the_reference(windows: st.SearchStrategy[Window]) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(windows, LATENESS, EPOCHS, st.sampled_from(UNITS), st.integers(0, 99))
    def holds(window: Window, lateness: tuple[Any, int], epochs: list[Any], unit: int, seed: int) -> None:
        check(scenario_of(window, lateness, epochs).in_units(unit), seed)

    holds()


@pytest.mark.parametrize("seed", range(CAMPAIGN_SEEDS))
def test_streams_of_different_speeds_with_silences_have_the_panes_of_the_reference(seed: int) -> None:
    run(seed)
