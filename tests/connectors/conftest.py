"""The brokers that tests share, and those that tests kill."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.connectors.brokers.servers import Mosquitto, NatsServer, RabbitMqServer


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    folder = tmp_path / "nats"
    folder.mkdir()
    with NatsServer(folder) as server:
        yield server


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    folder = tmp_path / "mosquitto"
    folder.mkdir()
    with Mosquitto(folder) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMqServer]:
    """It takes seconds to start: one for all tests, which use queues of their own."""
    with RabbitMqServer(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server
