"""What tests of brokers share."""

import pytest

from penstock.core.errors import Unavailable
from penstock.protocol.api.deployment import ReconnectSpec
from penstock.testing.brokers import Broker, installed

QUICKLY = ReconnectSpec(first_seconds=0.05, max_seconds=0.2)
"""How connectors of tests come back."""


def need(broker: type[Broker]) -> None:
    """Skips where it is not installed."""
    try:
        installed(broker.program)
    except Unavailable as error:
        pytest.skip(str(error))
