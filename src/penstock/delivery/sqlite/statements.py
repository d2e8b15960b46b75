"""The tables that all SQLite sinks of a database share.

penstock_in_doubt         votes of yes that are not decided, one at most for each table
penstock_ledger           the latest transactions that were committed
penstock_format           one row: the version of the format of these tables
"""

FORMAT = 1
"""Tables without one were made before 0.1, when epochs were not numbered as Spark's batches are."""

FORMAT_TABLE = "CREATE TABLE IF NOT EXISTS penstock_format (version INTEGER NOT NULL)"

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


def quoted(name: str) -> str:
    """Names cannot be parameters of a statement."""
    return '"' + name.replace('"', '""') + '"'


def folded(name: str) -> str:
    """Equal for names that SQLite takes for the same: only ASCII letters lose their case."""
    return name.encode().lower().decode()
