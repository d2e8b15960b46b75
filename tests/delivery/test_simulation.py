"""After any sequence of failures every sink has a prefix of the output, and eventually all of it."""

import pytest

from tests.delivery.simulation import simulate


@pytest.mark.parametrize("seed", range(40))
def test_sinks_have_each_epoch_once_and_in_order(seed: int) -> None:
    simulate(seed)
