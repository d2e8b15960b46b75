"""A database of its own for each test, in one real server."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.connectors.databases.database import Database
from tests.support.postgres_server import PostgresServer

_numbers = count(1)


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    found = Database(postgres_server, f"test_{next(_numbers)}")
    try:
        yield found
    finally:
        found.drop()
