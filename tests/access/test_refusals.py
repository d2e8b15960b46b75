"""How long a refused peer waits before it can ask again."""

import pytest

from penstock.access.refusals import REFUSAL_SECONDS_MAX, REFUSALS_AT_ONCE, REFUSALS_PER_SECOND, RefusalPace


def test_after_many_refusals_each_waits_for_its_turn() -> None:
    pace = RefusalPace()
    at_once = [pace.delay(1000.0) for _ in range(REFUSALS_AT_ONCE)]
    assert max(at_once) == 0.0
    step = 1 / REFUSALS_PER_SECOND
    assert [pace.delay(1000.0) for _ in range(3)] == pytest.approx([step, 2 * step, 3 * step])
    assert pace.delay(1000.0 + 2 * step) == pytest.approx(2 * step)
    assert pace.delay(2000.0) == 0.0


def test_a_flood_of_refusals_delays_nobody_for_longer_than_the_limit() -> None:
    pace = RefusalPace()
    delays = [pace.delay(1000.0) for _ in range(100_000)]
    assert max(delays) == pytest.approx(REFUSAL_SECONDS_MAX)
    assert pace.delay(1000.0 + REFUSAL_SECONDS_MAX) == pytest.approx(1 / REFUSALS_PER_SECOND), "the flood is over"
