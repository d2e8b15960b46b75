"""Writes a pipeline's output to a table of an SQLite database, exactly once, however often it is killed.

python examples/sink_sqlite.py DATABASE [HOST:PORT]
"""

import sqlite3
import sys
from collections.abc import Sequence
from contextlib import suppress

from penstock.client.sink import Message, Sink, Transaction

TABLES = """
    CREATE TABLE IF NOT EXISTS messages (at INTEGER, time INTEGER, key BLOB, payload BLOB);
    CREATE TABLE IF NOT EXISTS staged (at INTEGER, time INTEGER, key BLOB, payload BLOB);
    CREATE TABLE IF NOT EXISTS last_transaction (id BLOB)
"""


class Table:
    def __init__(self, path: str) -> None:
        self.database = sqlite3.connect(path)
        self.database.executescript(TABLES)

    def write(self, messages: Sequence[Message]) -> None:
        rows = [(message.id, message.event_time, message.key, message.payload) for message in messages]
        self.database.executemany("INSERT INTO staged VALUES (?, ?, ?, ?)", rows)

    def prepare(self, transaction: Transaction) -> bool:
        self.database.commit()  # the staged rows are durable now
        return True

    def commit(self, transaction: Transaction) -> None:
        with self.database:  # the rows and the transaction's id, or neither
            if self.database.execute("SELECT id FROM last_transaction").fetchone() != (transaction.id,):
                self.database.execute("INSERT INTO messages SELECT * FROM staged")
                self.database.execute("DELETE FROM staged")
                self.database.execute("DELETE FROM last_transaction")
                self.database.execute("INSERT INTO last_transaction VALUES (?)", (transaction.id,))

    def abort(self, transaction: Transaction) -> None:
        with self.database:
            self.database.execute("DELETE FROM staged WHERE at >= ?", (transaction.start,))


if __name__ == "__main__":
    address = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:7200"
    sink = Sink(address, Table(sys.argv[1]), state=f"{sys.argv[1]}.state")
    with suppress(KeyboardInterrupt):
        sink.run(lambda listening: print(f"listening on {listening}", flush=True))
