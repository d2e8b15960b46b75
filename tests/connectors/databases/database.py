"""A database in a real PostgreSQL server, and a connector that reads it in a process that can be killed."""

import asyncio
import multiprocessing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from penstock.testing.frame import Event, Frame
from tests.connectors.databases.reading_process import read
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import SECONDS_MAX, until

FORK = multiprocessing.get_context("fork")


class Database:
    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name
        with self._connect("postgres") as connection:
            connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        self._session: psycopg.Connection | None = None

    def _connect(self, name: str) -> psycopg.Connection:
        return psycopg.connect(host=self.server.socket_folder, user="postgres", dbname=name, autocommit=True)

    def session(self) -> psycopg.Connection:
        """Another one, to be closed by the test."""
        return self._connect(self.name)

    def query(self, statement: str) -> list[Any]:
        if self._session is None or self._session.closed:
            self._session = self.session()
        cursor = self._session.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def config(self, **more: Any) -> dict[str, Any]:
        return {"host": self.server.socket_folder, "user": "postgres", "dbname": self.name, **more}

    def changes(self, **more: Any) -> dict[str, Any]:
        """The options of mode `changes`, for a slot that no other test has."""
        slot = {"mode": "changes", "slot": f"slot_{self.name}", "publication": "published", "create": True}
        return self.config(**(slot | more))

    def restart(self) -> None:
        """After a crash of the server."""
        self.forget()
        self.server.kill()
        self.server.start()

    def forget(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def allow_connections(self, *, allow: bool) -> None:
        """New ones; those that are open stay."""
        self.query("SELECT 1")
        with self._connect("postgres") as connection:
            alter = SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
            connection.execute(alter.format(Identifier(self.name), Literal(allow)))

    def drop(self) -> None:
        self.forget()
        with self._connect("postgres") as connection:
            mine = SQL("FROM pg_replication_slots WHERE database = {}").format(Literal(self.name))
            # A walsender is gone a moment after its client.
            until(lambda: not connection.execute(SQL("SELECT {} AND active").format(mine)).rowcount)
            connection.execute(SQL("SELECT pg_drop_replication_slot(slot_name) {}").format(mine))
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(self.name)))


async def stored_in(frame: Frame, count: int) -> list[Event]:
    """The events, once there are this many: also those from before this frame."""
    async with asyncio.timeout(SECONDS_MAX):
        while len(events := await frame.events()) < count:  # noqa: ASYNC110  another process may have stored them
            await asyncio.sleep(0.05)
    return events


class ReadingProcess:
    """A connector in a frame in a process of its own, which is killed. It is forked: nothing has to be imported."""

    def __init__(self, folder: Path, type_name: str, config: Mapping[str, Any]) -> None:
        self._stored = FORK.Value("q", 0)
        self._process = FORK.Process(target=read, args=(folder, type_name, config, self._stored), daemon=True)
        self._process.start()

    def until_stored(self, count: int) -> None:
        """Returns when it has stored this many events since its start."""
        until(lambda: self._stored.value >= count, lambda: f"{self._stored.value}, {self._process.exitcode}")

    def kill(self) -> None:
        self._process.kill()
        self._process.join(SECONDS_MAX)
        self._process.close()


def killed_again_and_again(
    folder: Path, type_name: str, config: Mapping[str, Any], kills: int, write: Callable[[int], None]
) -> None:
    """Each process is killed in the middle of what was written for it."""
    for number in range(kills):
        process = ReadingProcess(folder, type_name, config)
        try:
            write(number)
            process.until_stored(1)
        finally:
            process.kill()
