"""The key-value sink in an SQLite database."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import ValidationError

from penstock.connectors.sink_api import SinkLost
from penstock.connectors.sqlite import sink as sqlite_sink
from penstock.connectors.sqlite.sink import SqliteOptions, SqliteSink
from tests.connectors.stores.contract import StoreContract, opened
from tests.connectors.stores.kinds import SqliteStore
from tests.connectors.stores.rounds import Round, chain, example
from tests.delivery.fake_epoch import Row


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "values.db"


class TestContract(StoreContract):
    @pytest.fixture
    def store(self, path: Path) -> SqliteStore:
        return SqliteStore(str(path))


@pytest.fixture
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """A database of another program."""
    path.parent.mkdir(exist_ok=True)
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    yield connection
    connection.close()


def plain(path: Path, table: str = "t") -> SqliteSink:
    return SqliteSink(SqliteOptions(path=path, table=table))


def test_the_last_value_of_a_key_wins_within_and_across_epochs(path: Path, database: sqlite3.Connection) -> None:
    first, second = chain([[Row(b"1", b"a", 7), Row(b"2", b"a"), Row(b"3", b"b", 8)], [Row(b"4", b"b", -9)]])
    sink = plain(path)
    sink.open(b"")
    first.deliver(sink)
    second.deliver(sink)
    sink.close()
    rows = database.execute("SELECT key, value, event_time, epoch FROM t ORDER BY key").fetchall()
    assert rows == [(b"a", b"2", None, 0), (b"b", b"4", -9, 1)]


def test_events_without_a_key_share_the_row_of_the_empty_key(path: Path, database: sqlite3.Connection) -> None:
    sink = plain(path)
    sink.open(b"")
    Round(1, [Row(b"1"), Row(b"2", b"k"), Row(b"3")]).deliver(sink)
    sink.close()
    assert database.execute("SELECT key, value FROM t ORDER BY key").fetchall() == [(b"", b"3"), (b"k", b"2")]


def test_two_sinks_share_a_database(path: Path) -> None:
    one, other = plain(path, "one"), plain(path, "other")
    first, second = example(2)
    one.open(b"")
    other.open(b"")
    assert first.prepare(one).yes
    assert first.prepare(other).yes
    other.abort()
    one.commit(first.transaction)
    second.deliver(one)
    first.again().deliver(other)
    one.close()
    other.close()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT max(epoch) FROM one").fetchone() == (1,)
        assert database.execute("SELECT max(epoch) FROM other").fetchone() == (0,)
        assert database.execute("SELECT target, epoch FROM penstock_ledger ORDER BY 1, 2").fetchall() == [
            ("one", 0),
            ("one", 1),
            ("other", 0),
        ]
    database.close()


def test_a_reader_of_the_database_does_not_block_the_sink(path: Path) -> None:
    store = SqliteStore(str(path))
    first, second = example(2)
    with opened(store) as sink:
        first.deliver(sink)
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM penstock_ledger").fetchone() == (1,)
        second.deliver(sink)
        assert reader.execute("SELECT count(*) FROM penstock_ledger").fetchone() == (1,)
        reader.close()
    assert store.found() == store.expected([first, second])


def test_a_database_locked_by_another_program_loses_the_sink(
    path: Path, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_sink, "BUSY_SECONDS", 0.05)
    first, second = example(2)
    sink = plain(path)
    sink.open(b"")
    first.deliver(sink)
    database.execute("BEGIN IMMEDIATE")
    with pytest.raises(SinkLost, match="database is locked"):
        second.write(sink)
    database.execute("ROLLBACK")
    sink.close()
    sink.open(first.id)
    assert second.again().prepare(sink).yes
    database.execute("BEGIN IMMEDIATE")
    with pytest.raises(SinkLost, match="database is locked"):
        sink.commit(second.again().transaction)
    sink.close()
    with pytest.raises(SinkLost, match="database is locked"):
        sink.open(second.again().id)
    sink.close()
    database.execute("ROLLBACK")
    sink.open(second.again().id)
    sink.close()
    assert database.execute("SELECT count(*) FROM t WHERE epoch = 1").fetchone() == (5,)


def test_a_full_database_is_a_vote_of_no_until_there_is_room(path: Path) -> None:
    store = SqliteStore(str(path))
    small, large = chain([[Row(b"1", b"a")], [Row(bytes(50_000), b"%d" % number) for number in range(20)]])
    with opened(store) as sink:
        assert isinstance(sink, SqliteSink)
        small.deliver(sink)
        assert sink._database is not None
        sink._database.execute("PRAGMA max_page_count = 100")
        vote = large.prepare(sink)
        assert not vote.yes
        assert "database or disk is full" in vote.reason
        assert store.found() == store.expected([small])
        sink._database.execute("PRAGMA max_page_count = 100000")
        large.again().deliver(sink)
    assert store.found() == store.expected([small, large])


def test_a_violated_constraint_is_a_vote_of_no(path: Path, database: sqlite3.Connection) -> None:
    database.execute(
        "CREATE TABLE t (key BLOB PRIMARY KEY, value BLOB CHECK (length(value) < 5), event_time INTEGER, epoch INTEGER)"
    )
    sink = plain(path)
    sink.open(b"")
    vote = Round(1, [Row(b"long value", b"a")]).prepare(sink)
    assert not vote.yes
    assert vote.reason.endswith("CHECK constraint failed: length(value) < 5")
    Round(1, [Row(b"tiny", b"a")], attempt=2).deliver(sink)
    sink.close()
    assert database.execute("SELECT value FROM t").fetchall() == [(b"tiny",)]


def test_a_table_with_other_columns_is_reported_at_once(path: Path, database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    sink = plain(path)
    with pytest.raises(SinkLost, match="no column named key"):
        sink.open(b"")
    sink.close()


def test_the_ledger_keeps_only_the_latest_epochs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_sink, "LEDGER_EPOCHS_MAX", 3)
    store = SqliteStore(str(path))
    with opened(store) as sink:
        for one in example(5):
            one.deliver(sink)
    assert store.query("SELECT epoch FROM penstock_ledger ORDER BY epoch") == [(2,), (3,), (4,)]


def test_a_vote_survives_in_an_existing_database_of_another_program(path: Path, database: sqlite3.Connection) -> None:
    """The journal mode of the database is not changed."""
    database.execute("CREATE TABLE mine (a)")
    store = SqliteStore(str(path))
    first, second = example(2)
    with opened(store) as sink:
        first.deliver(sink)
        assert second.prepare(sink).yes
    with opened(store, second.id):
        assert store.found() == store.expected([first, second])
    assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)


@pytest.mark.parametrize("table", ["", "penstock_ledger", "sqlite_master", "a\0b"])
def test_a_name_that_cannot_be_a_table_is_refused(path: Path, table: str) -> None:
    with pytest.raises(ValidationError, match="is not a valid table"):
        SqliteOptions(path=path, table=table)


def test_a_second_sink_on_the_table_is_refused(path: Path) -> None:
    one, other = plain(path), plain(path)
    one.open(b"")
    with pytest.raises(SinkLost, match="locked by another sink"):
        other.open(b"")
    other.close()
    one.close()
    other.open(b"")
    other.close()


def test_a_path_with_a_file_as_its_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkLost, match="Not a directory"):
        plain(tmp_path / "file" / "values.db").open(b"")


def test_a_file_that_is_not_a_database_is_reported(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"precious" * 1000)
    sink = plain(path)
    with pytest.raises(SinkLost, match="file is not a database"):
        sink.open(b"")
    sink.close()
    assert path.read_bytes() == b"precious" * 1000


@pytest.mark.parametrize(
    ("change", "version"),
    [
        ("DROP TABLE penstock_format", r"a development version before 0\.1 \(no format version; this version reads"),
        ("UPDATE penstock_format SET version = 2", r"a newer version of Penstock \(format 2; this version reads"),
    ],
)
def test_bookkeeping_of_another_format_is_refused_and_left_alone(path: Path, change: str, version: str) -> None:
    store = SqliteStore(str(path))
    with opened(store) as sink:
        example(1)[0].deliver(sink)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(change)
    before = [*database.iterdump()]
    refusing = store.sink()
    with pytest.raises(SinkLost, match=f"the bookkeeping of sinks in {path} was written by {version}") as refused:
        refusing.open(b"")
    refusing.close()
    assert "penstock_" in refused.value.hint or "version" in refused.value.hint
    assert [*database.iterdump()] == before
    database.close()
