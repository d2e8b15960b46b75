"""Any sequence of failures leaves every sink with a prefix of the output, and in the end with all of it."""

import pytest

from tests.delivery.simulation import simulate


@pytest.mark.parametrize("seed", range(40))
def test_sinks_hold_each_epoch_once_and_in_order(seed: int) -> None:
    simulate(seed)
