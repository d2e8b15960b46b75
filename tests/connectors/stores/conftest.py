"""The servers that the stores' tests need."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock.testing.seaweedfs import SeaweedFS
from tests.connectors.stores.dying_store import DyingStores
from tests.connectors.stores.kinds import PostgresStore
from tests.connectors.stores.tables import PostgresTable, SqliteTable, Table
from tests.support.postgres_server import PostgresServer

_numbers = count(1)


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> PostgresStore:
    """A table and a sink that no other test has."""
    return PostgresStore(f"{postgres_server.socket_folder}|Table {next(_numbers)} %")


@pytest.fixture(scope="session")
def dying() -> Iterator[DyingStores]:
    with DyingStores() as dying:
        yield dying


@pytest.fixture(scope="session")
def dying_in_buckets(seaweedfs: SeaweedFS) -> Iterator[DyingStores]:
    with DyingStores(**seaweedfs.environment()) as dying:
        yield dying


each_database = pytest.mark.parametrize(
    "table", [pytest.param("postgres", marks=pytest.mark.process), "sqlite"], indirect=True
)


@pytest.fixture
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """In the database that the parameter names."""
    if request.param == "sqlite":
        return SqliteTable(tmp_path / "rows.db")
    return PostgresTable(request.getfixturevalue("postgres"))
