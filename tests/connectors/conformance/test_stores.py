"""Connectors to what stores events, in the real frame, each with a real peer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Protocol

import pytest

from penstock.connectors.callback import Callback
from penstock.connectors.connector_protocol.connector import ConnectorProtocol
from penstock.connectors.delta.connector import Delta
from penstock.connectors.file.connector import File
from penstock.connectors.iceberg.connector import Iceberg
from penstock.connectors.parquet.connector import Parquet
from penstock.connectors.postgres.connector import Postgres
from penstock.connectors.segment import Segment
from penstock.connectors.sql.connector import Sql
from penstock.connectors.sqlite.connector import Sqlite
from penstock.testing.conformance import ConnectorConformance
from penstock.testing.peer import Peer
from tests.connectors.conformance.stored_peers import (
    AnotherWorker,
    AppendedFile,
    CalledFunction,
    GrowingFiles,
    LakeRows,
    PostgresRows,
    SinkProgram,
    SqlitePolled,
    SqliteRows,
    SqlRows,
    WrittenParts,
)
from tests.connectors.stores.lakes import DeltaStore, IcebergStore, ParquetStore
from tests.support.postgres_server import need_postgres


class MakePeer(Protocol):
    def __call__(self, folder: Path, /) -> Peer: ...


class StoreConformance(ConnectorConformance):
    """With a peer in the test's folder. Most stores do not send: they have no port `out`."""

    peer: ClassVar[MakePeer]
    speaks = False

    def make_peer(self, folder: Path) -> Peer:
        return self.peer(folder)


class TestFileTail(StoreConformance):
    """A file accepts everything that is written: only how much of it is read can be limited."""

    connector = File
    speaks = True
    breaks_off = False
    feels_it = False
    peer = GrowingFiles


class TestFileAppend(StoreConformance):
    connector = File
    peer = AppendedFile


class TestSegment(StoreConformance):
    connector = Segment
    is_dialled = True
    peer = AnotherWorker


class TestFileWrite(StoreConformance):
    connector = File
    peer = WrittenParts


class TestSqlite(StoreConformance):
    connector = Sqlite
    peer = SqliteRows

    def given(self, value: bytes) -> bytes:
        return json.dumps({"value": value.decode()}).encode()


class TestSqlitePoll(StoreConformance):
    """Rows are not lines: what it reads is tested in tests/connectors/databases."""

    connector = Sqlite
    peer = SqlitePolled


class TestSql(StoreConformance):
    connector = Sql
    peer = SqlRows

    def given(self, value: bytes) -> bytes:
        return json.dumps({"value": value.decode()}).encode()


class TestParquet(StoreConformance):
    connector = Parquet

    def make_peer(self, folder: Path) -> Peer:
        return LakeRows(ParquetStore(str(folder / "table")))


class TestDelta(StoreConformance):
    connector = Delta

    def make_peer(self, folder: Path) -> Peer:
        return LakeRows(DeltaStore(str(folder / "table")))


class TestIceberg(StoreConformance):
    connector = Iceberg

    def make_peer(self, folder: Path) -> Peer:
        return LakeRows(IcebergStore(str(folder / "table")))


@pytest.mark.process
class TestPostgres(ConnectorConformance):
    connector = Postgres
    speaks = False
    is_dialled = True

    @pytest.fixture(autouse=True)
    def server(self) -> Iterator[None]:
        need_postgres()
        self.peers: list[PostgresRows] = []
        yield
        for peer in self.peers:
            peer.remove()

    def make_peer(self, folder: Path) -> Peer:
        self.peers.append(PostgresRows())
        return self.peers[-1]


class TestCallback(StoreConformance):
    connector = Callback
    peer = CalledFunction


class TestConnectorProtocol(StoreConformance):
    """Its port `out` is the sessions of the program server, which are tested in tests/ingest."""

    connector = ConnectorProtocol
    is_dialled = True
    peer = SinkProgram
