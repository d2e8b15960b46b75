"""Where sinks store their rows, for every transactional connector: it can be copied, and restored from a copy."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import psycopg

from penstock.connectors.file import read_committed_parts
from penstock.connectors.registry import make_connector
from penstock.connectors.tables import no_schema
from tests.client.sink.sink_process import SinkProcess


class Place(Protocol):
    """Where a sink stores its rows. It can be copied, and restored from the copy, while no worker uses it."""

    @property
    def url(self) -> str: ...

    def sink(self) -> Any: ...

    def rows(self) -> list[str]: ...

    def copy(self, name: str) -> None: ...

    def restore(self, name: str) -> None: ...


class FilePlace:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "files"
        self._folder.mkdir()
        self._path = self._folder / "out"

    @property
    def url(self) -> str:
        return f"file:{self._path}"

    def sink(self) -> Any:
        return make_connector("file", {"mode": "write", "path": str(self._path)}).make_sink("p/s", no_schema)

    def rows(self) -> list[str]:
        data = b"".join(part.path.read_bytes()[: part.size] for part in read_committed_parts(self._path))
        return [json.loads(line)["value"] for line in data.splitlines()]

    def copy(self, name: str) -> None:
        shutil.copytree(self._folder, self._folder.with_name(name))

    def restore(self, name: str) -> None:
        shutil.rmtree(self._folder)
        shutil.copytree(self._folder.with_name(name), self._folder)


class SqlitePlace(FilePlace):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = self._folder / "rows.db"
        self._query("CREATE TABLE rows (number INTEGER PRIMARY KEY AUTOINCREMENT, value TEXT)")

    @property
    def url(self) -> str:
        return f"sqlite:{self._path}?table=rows&format=json"

    def sink(self) -> Any:
        config = {"path": str(self._path), "table": "rows", "format": "json"}
        return make_connector("sqlite", config).make_sink("p/s", no_schema)

    def rows(self) -> list[str]:
        return [value for (value,) in self._query("SELECT value FROM rows ORDER BY number")]

    def _query(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self._path)) as database:
            return database.execute(statement).fetchall()


class PostgresPlace:
    """The copy is one of the database, as `CREATE DATABASE … TEMPLATE` makes it. The URL needs PGHOST."""

    def __init__(self, host: str, database: str) -> None:
        self._host = host
        self._database = database
        self._administer(f"CREATE DATABASE {database}")
        self._query("CREATE TABLE rows (number bigserial, value text)")

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/{self._database}?table=rows&format=json"

    def sink(self) -> Any:
        config = {"host": self._host, "user": "postgres", "dbname": self._database, "table": "rows"}
        return make_connector("postgres", config).make_sink("p/s", no_schema)

    def rows(self) -> list[str]:
        return [value for (value,) in self._query("SELECT value FROM rows ORDER BY number")]

    def copy(self, name: str) -> None:
        self._administer(f"CREATE DATABASE {self._database}_{name} TEMPLATE {self._database}")

    def restore(self, name: str) -> None:
        self._administer(f"DROP DATABASE {self._database} WITH (FORCE)")
        self._administer(f"CREATE DATABASE {self._database} TEMPLATE {self._database}_{name}")

    def _administer(self, statement: str) -> None:
        self._run("postgres", statement)

    def _query(self, statement: str) -> list[Any]:
        return self._run(self._database, statement)

    def _run(self, database: str, statement: Any) -> list[Any]:
        with psycopg.connect(host=self._host, user="postgres", dbname=database, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


class ProgramPlace(FilePlace):
    """A program on the sink SDK, in its own process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.process = SinkProcess("-m", "tests.delivery.matrix.sink_program", str(self._folder), "ADDRESS")
        self.process.start()

    @property
    def url(self) -> str:
        return f"connector://{self.process.address}"

    def sink(self) -> Any:
        host, _, port = self.process.address.rpartition(":")
        return make_connector("connector-protocol", {"host": host, "port": int(port)}).make_sink("p/s", no_schema)

    def rows(self) -> list[str]:
        committed = self._folder / "committed"
        found = [json.loads(line) for line in committed.read_text().splitlines()] if committed.exists() else []
        return [json.loads(row)["value"] for _, _, _, rows in found for row in rows]

    def copy(self, name: str) -> None:
        self.process.kill()
        super().copy(name)
        self.process.start()

    def restore(self, name: str) -> None:
        self.process.kill()
        super().restore(name)
        self.process.start()
