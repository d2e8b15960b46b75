"""A table with the last value of each key.

TABLE                     key, value, event_time, epoch
penstock_staged_TABLE     the rows of the transaction that is being written, or is in doubt
"""

import sqlite3

from penstock.delivery.block import Block
from penstock.delivery.sqlite.statements import quoted
from penstock.protocol.stored.event import NO_TIME


class LastValues:
    """A Layout."""

    def __init__(self, table: str) -> None:
        target, staged = quoted(table), quoted(f"penstock_staged_{table}")
        columns = "key BLOB PRIMARY KEY, value BLOB, event_time INTEGER"
        self._tables = (
            f"CREATE TABLE IF NOT EXISTS {target} ({columns}, epoch INTEGER)",
            f"CREATE TABLE IF NOT EXISTS {staged} ({columns}) WITHOUT ROWID",
        )
        self._stage = f"INSERT OR REPLACE INTO {staged} VALUES (?, ?, ?)"  # noqa: S608 (quoted, as all below)
        self._move = f"""
            INSERT INTO {target} (key, value, event_time, epoch)
            SELECT key, value, event_time, ? FROM {staged} WHERE true
            ON CONFLICT (key) DO UPDATE
            SET value = excluded.value, event_time = excluded.event_time, epoch = excluded.epoch
        """  # noqa: S608
        self._clear = f"DELETE FROM {staged}"  # noqa: S608

    def make_tables(self, database: sqlite3.Connection) -> None:
        for statement in self._tables:
            database.execute(statement)

    def fit(self, database: sqlite3.Connection) -> None:
        database.execute(f"EXPLAIN {self._move}", (0,))

    def stage(self, database: sqlite3.Connection, block: Block) -> str:
        times = [None if time == NO_TIME else time for time in block.times.tolist()]
        # The last one of each key is left.
        last = dict(zip(block.keys.rows(), zip(block.values.rows(), times, strict=True), strict=True))
        database.executemany(self._stage, [(key, *rest) for key, rest in last.items()])
        return ""

    def refusal(self, database: sqlite3.Connection, epoch: int) -> str:
        """Tries what a commit will do: a table may have rules of its own."""
        database.execute("SAVEPOINT trial")
        self.move(database, epoch)
        database.execute("ROLLBACK TO trial")
        return ""

    def move(self, database: sqlite3.Connection, epoch: int) -> None:
        database.execute(self._move, (epoch,))

    def clear(self, database: sqlite3.Connection) -> None:
        database.execute(self._clear)
