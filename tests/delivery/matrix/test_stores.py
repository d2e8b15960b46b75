"""Vote × where the sink is lost × whether the worker is killed there, for the stores that vote inside the worker.

They have no process of their own: `tests/connectors/stores` kills the whole process at each of their steps. Every cell
has three epochs; it happens in the second one. "Lost" is what the connection is to a sink program: the call fails.
"""

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from penstock.client.sink.log import open_log
from penstock.connectors.file import read_committed_parts
from penstock.connectors.registry import make_connector
from penstock.connectors.sink_api import CheckReport, Epoch, SinkLost, Transaction, Vote, VotingSink, accept_any
from penstock.connectors.tables import no_schema
from penstock.core.retry import RetryPolicy
from penstock.delivery import backoff, service
from tests.connectors.stores.lakes import LAKES, LakeStore
from tests.delivery.matrix.cells import TABLE, Answer, Attempt, Cell, Killed, Lost
from tests.delivery.stage import PIPELINE, Stage

CELLS = [cell for cell in TABLE if cell.killed is not Killed.SINK]
EPOCHS = [[b'{"value": "%d of epoch %d"}' % (number, epoch) for number in range(3)] for epoch in range(3)]
VALUES = [json.loads(value)["value"] for epoch in EPOCHS for value in epoch]
STRUCK = 1
"""The epoch in which it happens."""

_numbers = count(1)


class Store(Protocol):
    def sink(self) -> VotingSink: ...

    def found(self) -> list[str]:
        """What is committed."""

    def in_doubt(self) -> bool:
        """The transactions in doubt. Call it while no sink has the store open."""


class FileStore:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "out"

    def sink(self) -> Any:
        return make_connector("file", {"mode": "write", "path": str(self._path)}).make_sink("p/s", no_schema)

    def found(self) -> list[str]:
        data = b"".join(part.path.read_bytes()[: part.size] for part in read_committed_parts(self._path))
        return [json.loads(line)["value"] for line in data.splitlines()]

    def in_doubt(self) -> bool:
        log = open_log(self._path / "state")
        try:
            return log.state.in_doubt is not None
        finally:
            log.close()


class SqliteStore:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "rows.db"
        self._query("CREATE TABLE rows (number INTEGER PRIMARY KEY AUTOINCREMENT, value TEXT)")

    def sink(self) -> Any:
        config = {"path": str(self._path), "table": "rows", "format": "json"}
        return make_connector("sqlite", config).make_sink("p/s", no_schema)

    def found(self) -> list[str]:
        return [value for (value,) in self._query("SELECT value FROM rows ORDER BY number")]

    def in_doubt(self) -> bool:
        return bool(self._query("SELECT 1 FROM penstock_in_doubt"))

    def _query(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self._path)) as database:
            return database.execute(statement).fetchall()


class PostgresStore:
    def __init__(self, host: str) -> None:
        self._host = host
        self._table = f"rows_{next(_numbers)}"
        self._query(SQL("CREATE TABLE {} (number bigserial, value text)").format(Identifier(self._table)))

    def sink(self) -> Any:
        config = {"host": self._host, "user": "postgres", "dbname": "postgres", "table": self._table}
        return make_connector("postgres", config).make_sink(f"p/{self._table}", no_schema)

    def found(self) -> list[str]:
        rows = self._query(SQL("SELECT value FROM {} ORDER BY number").format(Identifier(self._table)))
        return [value for (value,) in rows]

    def in_doubt(self) -> bool:
        return bool(self._query(SQL("SELECT 1 FROM penstock_in_doubt WHERE sink = {}").format(f"p/{self._table}")))

    def _query(self, statement: Any) -> list[Any]:
        with psycopg.connect(host=self._host, user="postgres", dbname="postgres", autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


class FilesStore:
    """A table in files."""

    def __init__(self, store: LakeStore) -> None:
        self._store = store

    def sink(self) -> Any:
        config = self._store.config(columns="value STRING")
        return make_connector(self._store.kind, config).make_sink("p/s", no_schema)

    def found(self) -> list[str]:
        """Rows of a table have no order: those of the epochs that it should have are sorted."""
        return sorted((row["value"] for row in self._store.rows()), key=lambda value: (value[-1], value))

    def in_doubt(self) -> bool:
        records = [Path(str(path)) for key, path in self._store.files().items() if key.endswith("/record")]
        return any(json.loads(path.read_bytes())["in_doubt"] is not None for path in records)


@pytest.fixture(params=["file", "sqlite", *LAKES, pytest.param("postgres", marks=pytest.mark.process)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param in LAKES:
        return FilesStore(LAKES[request.param](str(tmp_path / "table")))
    if request.param == "postgres":
        return PostgresStore(request.getfixturevalue("postgres_server").socket_folder)
    return FileStore(tmp_path) if request.param == "file" else SqliteStore(tmp_path)


class Struck:
    """What has happened in a cell, across all sinks that the worker has opened on the store."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.has_happened = asyncio.Event()
        self.attempts: set[bytes] = set()
        """At the epoch in which it happens."""
        self.in_doubt: bool | None = None
        """When the store was opened the next time."""
        self.refused = False


class Tripping:
    """Wraps the store's VotingSink; it is lost once, where the cell says."""

    def __init__(self, store: Store, struck: Struck) -> None:
        self._store = store
        self._struck = struck
        self._cell = struck.cell
        self._sink = store.sink()

    @property
    def is_open(self) -> bool:
        return self._sink.is_open

    async def open(self, decided: bytes, check: CheckReport = accept_any) -> None:
        if self._struck.has_happened.is_set() and self._struck.in_doubt is None:
            self._struck.in_doubt = await asyncio.to_thread(self._store.in_doubt)
        await self._sink.open(decided, check)

    async def prepare(self, epoch: Epoch) -> Vote:
        if epoch.name != f"{PIPELINE}:1:{STRUCK}":
            return await self._sink.prepare(epoch)
        self._struck.attempts.add(epoch.transaction_id)
        await self._trip(Lost.BEFORE_PHASE1)
        vote = await self._sink.prepare(epoch)
        assert vote.yes, vote.reason
        if self._cell.answer is Answer.NO and not self._struck.refused:
            self._struck.refused = True
            await self._sink.abort(epoch.transaction_id)
            vote = Vote(False, "not today")
        await self._trip(Lost.AFTER_PHASE1)
        await self._trip(Lost.BEFORE_REPLY)
        if self._is_now(Lost.AFTER_REPLY):
            await self._sink.close()
            self._struck.has_happened.set()
        return vote

    async def commit(self, transaction: Transaction) -> None:
        is_struck = transaction.epoch == STRUCK
        if is_struck:
            await self._trip(Lost.BEFORE_PHASE2)
        await self._sink.commit(transaction)
        if is_struck:
            await self._trip(Lost.AFTER_PHASE2)

    async def abort(self, transaction_id: bytes) -> None:
        await self._trip(Lost.BEFORE_PHASE2)
        await self._sink.abort(transaction_id)
        await self._trip(Lost.AFTER_PHASE2)

    async def end(self) -> None:
        await self._sink.end()

    async def close(self) -> None:
        await self._sink.close()

    def _is_now(self, lost: Lost) -> bool:
        return self._cell.lost is lost and not self._struck.has_happened.is_set()

    async def _trip(self, lost: Lost) -> None:
        if self._is_now(lost):
            await self._sink.close()  # a process that dies leaves the same
            self._struck.has_happened.set()
            if self._cell.killed is Killed.WORKER:
                await asyncio.Event().wait()
            raise SinkLost(f"lost {lost.value}")


@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_every_epoch_is_committed_once_and_in_order(
    store: Store, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck = Struck(cell)

    def make(pipeline: str, name: str, sink: Any, wake: Callable[[], None] | None = None) -> Tripping:
        return Tripping(store, struck)

    monkeypatch.setattr(service.Delivery, "_make", staticmethod(make))
    monkeypatch.setattr(backoff, "RETRIES", RetryPolicy(0.01, 0.05))
    stage = Stage()
    await stage.open()
    try:
        await stage.bind(voting="s")
        for rows in EPOCHS:
            await stage.put_out({"out": rows})
        await asyncio.wait_for(struck.has_happened.wait(), 60)
        if cell.killed is Killed.WORKER:
            await stage.crash()
        await stage.scene.until(stage.is_delivered, 60)
    finally:
        await stage.close()
    assert store.found() == VALUES
    assert not store.in_doubt()
    outcome = TABLE[cell]
    if outcome.committed is not Attempt.EITHER:
        assert struck.in_doubt is outcome.in_doubt
        assert (len(struck.attempts) > 1) is (outcome.committed is Attempt.LATER)
