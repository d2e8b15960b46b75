"""Real peers that store: files, databases, programs, and the segments of a worker."""

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from penstock.client import DataFile, Sink
from penstock.client.sink import lines, read_committed
from penstock.connectors.file import read_committed_parts
from penstock.segment_server.server import SegmentServer
from penstock.segment_server.settings import ServerSettings
from penstock.store.file_journal import Committer, FileJournal
from penstock.store.files import RealFiles
from penstock.store.journal import Durability
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore
from penstock.testing.frame import Frame
from penstock.testing.peer import Line, Peer
from tests.client.sink.running_sink import RunningSink
from tests.connectors.stores.lakes import LakeStore
from tests.support.postgres_server import PostgresServer
from tests.support.segment_bytes import split_events


class FileLine:
    """A file that grows, and is removed when its writer is done."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def send(self, data: bytes) -> None:
        await asyncio.to_thread(self._append, data)

    def _append(self, data: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(data)

    async def end(self) -> None:
        await asyncio.to_thread(self._path.unlink, missing_ok=True)

    async def break_off(self) -> None:
        """Files cannot break off."""

    def received(self) -> bytes:
        return b""

    def stop_reading(self) -> None: ...

    def continue_reading(self) -> None: ...


class GrowingFiles(Peer):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def config(self) -> Mapping[str, Any]:
        path = str(self._folder / "*.log")
        return {"mode": "tail", "path": path, "poll": "10ms", "linger": "50ms", "chunk": "16KiB"}

    async def line(self, frame: Frame) -> Line:
        self._count += 1
        return FileLine(self._folder / f"{self._count}.log")


class AppendedFile(Peer):
    def __init__(self, folder: Path) -> None:
        self._path = folder / "out"

    def config(self) -> Mapping[str, Any]:
        return {"mode": "append", "path": str(self._path), "format": "raw"}

    def received(self) -> bytes:
        return self._path.read_bytes() if self._path.exists() else b""


class WrittenParts(Peer):
    """Reads what is committed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "out"

    def config(self) -> Mapping[str, Any]:
        return {"mode": "write", "path": str(self._path), "rotate_bytes": 1000}

    def received(self) -> bytes:
        if not (self._path / "state" / "log").exists():
            return b""
        return b"".join(part.path.read_bytes()[: part.size] for part in read_committed_parts(self._path))


class SqliteRows(Peer):
    def __init__(self, folder: Path) -> None:
        self._path = folder / "rows.db"
        self._query("CREATE TABLE rows (number INTEGER PRIMARY KEY AUTOINCREMENT, value TEXT)")

    def config(self) -> Mapping[str, Any]:
        return {"path": str(self._path), "table": "rows", "format": "json"}

    def received(self) -> bytes:
        rows = self._query("SELECT value FROM rows ORDER BY number")
        return b"".join(value.encode() + b"\n" for (value,) in rows)

    def _query(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self._path)) as database:
            return database.execute(statement).fetchall()


class SqlRows(SqliteRows):
    def config(self) -> Mapping[str, Any]:
        return {"url": f"sqlite:///{self._path}", "table": "rows"}


class SqlitePolled(SqliteRows):
    def config(self) -> Mapping[str, Any]:
        return {"mode": "poll", "path": str(self._path), "table": "rows"}


class LakeRows(Peer):
    """The raw events in a table of files."""

    def __init__(self, store: LakeStore) -> None:
        self._store = store

    def config(self) -> Mapping[str, Any]:
        return self._store.config(format="raw")

    def received(self) -> bytes:
        if not Path(self._store.place).exists():
            return b""
        rows = sorted(self._store.rows(), key=lambda row: (row["message_id"], len(row["value"])))
        return b"".join(row["value"] + b"\n" for row in rows)


class PostgresRows(Peer):
    """Each has its own table, in its own server, which it can stop."""

    def __init__(self) -> None:
        self._server = PostgresServer()
        self._is_up = True
        self._kept = b""

    def config(self) -> Mapping[str, Any]:
        host = self._server.socket_folder
        return {"host": host, "user": "postgres", "dbname": "postgres", "table": "rows", "format": "raw"}

    async def start(self) -> None:
        if not self._is_up:
            await asyncio.to_thread(self._server.start)
            self._is_up = True

    async def stop(self) -> None:
        if self._is_up:
            self._kept, self._is_up = self.received(), False
            await asyncio.to_thread(self._server.kill)

    def remove(self) -> None:
        self._server.stop()

    def received(self) -> bytes:
        if not self._is_up:
            return self._kept
        with psycopg.connect(host=self._server.socket_folder, user="postgres", dbname="postgres") as connection:
            if connection.execute("SELECT to_regclass('rows')").fetchone() == (None,):
                return b""
            rows = connection.execute("SELECT value FROM rows ORDER BY message_id").fetchall()
        return b"".join(value + b"\n" for (value,) in rows)


class CalledFunction(Peer):
    def __init__(self, folder: Path) -> None:
        self._out, self._file = folder / "out", folder / "mine.py"
        self._file.write_text(
            "def keep(name, rows):\n"
            f"    with open({str(self._out)!r}, 'ab') as out:\n"
            "        out.write(b''.join(row.value + b'\\n' for row in rows))\n"
        )

    def config(self) -> Mapping[str, Any]:
        return {"path": str(self._file), "function": "keep"}

    def received(self) -> bytes:
        return self._out.read_bytes() if self._out.exists() else b""


class SinkProgram(Peer):
    """A program with the SDK, which writes lines to a file."""

    def __init__(self, folder: Path) -> None:
        self._path, self._state = folder / "out.txt", folder / "state"
        self._address = "127.0.0.1:0"
        self._running: RunningSink | None = None

    def config(self) -> Mapping[str, Any]:
        return {"port": int(self._address.rpartition(":")[2])}

    async def start(self) -> None:
        sink = Sink(self._address, DataFile(self._path), state=self._state, encode=lines)
        self._running = await asyncio.to_thread(RunningSink, sink)
        self._address = self._running.address

    async def stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await asyncio.to_thread(running.stop)

    def received(self) -> bytes:
        return self._path.read_bytes()[: read_committed(self._state).size] if self._path.exists() else b""


class AnotherWorker(Peer):
    """A worker with its segment port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = 0
        self._store: SegmentStore | None = None
        self._kept = b""

    def config(self) -> Mapping[str, Any]:
        return {"segment": "numbers", "worker": f"127.0.0.1:{self._port}", "timeout": "200ms"}

    async def start(self) -> None:
        settings = StoreSettings(chapter_bytes=1 << 20, reserve_bytes=1 << 20)
        self._journal = FileJournal(RealFiles(self._folder / "journal"), settings)
        self._store = SegmentStore(self._journal, settings)
        self._committer = Committer(self._journal, settings.idle_proof_seconds)
        self._committer.start()
        durability = Durability(self._journal, asyncio.get_running_loop(), lambda: None)
        self._server = SegmentServer(self._store, durability, ServerSettings(port=self._port))
        self._port = await self._server.start()

    async def stop(self) -> None:
        if self._store is None:
            return
        self._kept = self.received()
        self._store = None
        await self._server.stop()
        self._committer.stop()
        self._journal.close()

    def received(self) -> bytes:
        if self._store is None:
            return self._kept
        if not self._store.exists("numbers"):
            return b""
        data, at = b"", 0
        while part := self._store.read("numbers", at, 1 << 20):
            data += part
            at += len(part)
        return b"".join(map(bytes, split_events(data)))
