"""The brokers that tests share, and those that tests kill."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.brokers import Mosquitto, NatsServer, RabbitMqServer
from tests.connectors.brokers.servers import need
from tests.support.ports import free_port


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    need(NatsServer)
    folder = tmp_path / "nats"
    folder.mkdir()
    with NatsServer(folder, free_port=free_port) as server:
        yield server


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    need(Mosquitto)
    folder = tmp_path / "mosquitto"
    folder.mkdir()
    with Mosquitto(folder, free_port=free_port) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMqServer]:
    """It takes seconds to start: one for all tests, which use queues of their own."""
    need(RabbitMqServer)
    with RabbitMqServer(tmp_path_factory.mktemp("rabbitmq"), free_port=free_port) as server:
        yield server
