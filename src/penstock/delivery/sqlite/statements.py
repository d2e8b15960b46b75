"""The tables of an SQLite sink, and the statements that name them.

    TABLE                     the last value of each key
    penstock_staged_TABLE     the rows of the transaction that is being written, or is in doubt
    penstock_in_doubt         votes of yes that are not decided, one at most for each table
    penstock_ledger           the latest transactions that were committed

Names cannot be parameters of a statement: here they are quoted.
"""

IN_DOUBT = """
    CREATE TABLE IF NOT EXISTS penstock_in_doubt (
        target TEXT PRIMARY KEY, transaction_id BLOB NOT NULL, epoch INTEGER NOT NULL,
        start_id INTEGER NOT NULL, end_id INTEGER NOT NULL
    )
"""

LEDGER = """
    CREATE TABLE IF NOT EXISTS penstock_ledger (
        target TEXT, epoch INTEGER, transaction_id BLOB NOT NULL,
        start_id INTEGER NOT NULL, end_id INTEGER NOT NULL, PRIMARY KEY (target, epoch)
    ) WITHOUT ROWID
"""


class Statements:
    """Of the sink that owns this table."""

    def __init__(self, table: str) -> None:
        target, staged = quoted(table), quoted(f"penstock_staged_{table}")
        columns = "key BLOB PRIMARY KEY, value BLOB, event_time INTEGER"
        self.tables = (
            f"CREATE TABLE IF NOT EXISTS {target} ({columns}, epoch INTEGER)",
            f"CREATE TABLE IF NOT EXISTS {staged} ({columns}) WITHOUT ROWID",
            IN_DOUBT,
            LEDGER,
        )
        self.stage = f"INSERT OR REPLACE INTO {staged} VALUES (?, ?, ?)"  # noqa: S608 (quoted, as all below)
        self.move = f"""
            INSERT INTO {target} (key, value, event_time, epoch)
            SELECT key, value, event_time, ? FROM {staged} WHERE true
            ON CONFLICT (key) DO UPDATE
            SET value = excluded.value, event_time = excluded.event_time, epoch = excluded.epoch
        """  # noqa: S608
        self.clear = f"DELETE FROM {staged}"  # noqa: S608


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
