"""The PostgreSQL sink: what is specific to it. JSON rows are in `test_postgres_json.py`."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from pydantic import ValidationError

from penstock.connectors.postgres import sink as postgres_sink
from penstock.connectors.postgres import statements as postgres_statements
from penstock.connectors.postgres.sink import PostgresFormat, PostgresOptions, PostgresSink
from penstock.connectors.postgres.statements import staged_name
from penstock.connectors.sink_api import SinkLost
from tests.connectors.stores.contract import StoreContract, opened
from tests.connectors.stores.kinds import PostgresStore
from tests.connectors.stores.rounds import Round, chain, example
from tests.delivery.fake_epoch import Row
from tests.support.postgres_server import PostgresServer


class TestContract(StoreContract):
    @pytest.fixture
    def store(self, postgres: PostgresStore) -> PostgresStore:
        return postgres


def table(postgres: PostgresStore, definition: str) -> None:
    postgres.query(SQL("CREATE TABLE {} ({})").format(Identifier(postgres.table), SQL(definition)))


def test_the_staging_table_is_empty_between_epochs(postgres: PostgresStore) -> None:
    staged = SQL("SELECT count(*) FROM {}").format(Identifier(staged_name(postgres.table)))
    first, second = example(2)
    with opened(postgres) as sink:
        first.deliver(sink)
        assert postgres.query(staged) == [(0,)]
        assert second.prepare(sink).yes
        assert postgres.query(staged) == [(7,)]
        sink.abort()
        assert postgres.query(staged) == [(0,)]


def test_two_sinks_in_one_database_do_not_affect_each_other(postgres: PostgresStore) -> None:
    """Not even in the same table."""
    raw = postgres.options(format=PostgresFormat.RAW)
    one, other = PostgresSink(raw, f"{postgres.table} one"), PostgresSink(raw, f"{postgres.table} other")
    first, second = example(2)
    one.open(b"")
    other.open(b"")
    first.write(one)
    assert second.prepare(other).yes
    assert one.prepare(first.transaction).yes
    one.close()
    other.abort()
    one.open(first.id)
    other.close()
    one.close()
    assert len(postgres.rows()) == len(first.rows)
    ledger = SQL("SELECT sink FROM penstock_ledger WHERE sink LIKE {}").format(postgres.table.replace("%", "_") + " %")
    assert postgres.query(ledger) == [(f"{postgres.table} one",)]


def test_one_connection_at_a_time_can_use_the_sink(postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_sink, "LOCK_SECONDS", 1)
    with opened(postgres):
        other = postgres.sink()
        with pytest.raises(SinkLost, match="another session has the sink"):
            other.open(b"")
        other.close()
    with opened(postgres):
        pass


def test_many_sinks_can_create_their_tables_at_once(postgres: PostgresStore) -> None:
    lost: list[SinkLost] = []

    def work(number: int) -> None:
        try:
            with opened(postgres.sibling(f"at once {number}")) as sink:
                example(1)[0].deliver(sink)
        except SinkLost as error:
            lost.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not lost


def test_a_raw_row_is_replaced_by_key_with_upsert(postgres: PostgresStore) -> None:
    sink = PostgresSink(postgres.options(format=PostgresFormat.RAW, upsert=("key",)), postgres.table)
    first, second = chain([[Row(b"1", b"a"), Row(b"2", b"b"), Row(b"3", b"a")], [Row(b"4", b"b"), Row(b"5", b"c")]])
    sink.open(b"")
    first.deliver(sink)
    second.deliver(sink)
    sink.close()
    assert sorted(row[2:] for row in postgres.rows()) == [(b"a", b"3"), (b"b", b"4"), (b"c", b"5")]


def test_a_time_outside_the_range_of_postgresql_is_a_vote_of_no(postgres: PostgresStore) -> None:
    with opened(postgres) as sink:
        vote = Round(1, [Row(b"12345", time_us=1), Row(b"6", time_us=-(2**63) + 1), Row(b"7")] * 2).prepare(sink)
        assert not vote.yes
        assert vote.reason == f"table {postgres.table}: message 5: timestamp out of range"
        Round(1, [Row(b"1", time_us=-210_866_803_200_000_000)], attempt=2).deliver(sink)
        Round(2, [Row(b"2", time_us=2**63 - 1)], start=1).deliver(sink)
    wanted = SQL("SELECT event_time::text FROM {}").format(Identifier(postgres.table))
    assert [time[:4] for (time,) in postgres.query(wanted)] == ["4714", "2942"]


RAW = "message_id bigint, event_time timestamptz, key bytea, value bytea"


@pytest.mark.parametrize(
    ("definition", "is_tried"),
    [
        ("", False),
        (RAW, False),
        (f"{RAW}, more int", True),
        (f"{RAW}, CHECK (length(value) < 9999)", True),
        (f"{RAW}, UNIQUE (message_id, value)", True),
        (RAW.replace("timestamptz", "timestamptz DEFAULT now()"), False),
        (RAW.replace("bigint", "numeric"), True),
    ],
)
def test_where_the_table_could_refuse_rows_the_move_is_tried_before_the_vote(
    postgres: PostgresStore, definition: str, is_tried: bool
) -> None:
    if definition:
        table(postgres, definition)
    (first,) = example(1)
    with opened(postgres) as sink:
        assert first.prepare(sink).yes
        (size,) = postgres.query(SQL("SELECT pg_relation_size({}) > 0").format(f'"{postgres.table}"'))
        sink.commit(first.transaction)
    assert size == (is_tried,)
    assert len(postgres.rows()) == 7


@pytest.mark.parametrize(
    ("definition", "message", "reason"),
    [
        (f"{RAW}, CHECK (value <> 'c')", 2, "violates check constraint"),
        (RAW.replace("timestamptz", "timestamptz NOT NULL"), 1, 'null value in column "event_time"'),
        (f"{RAW}, UNIQUE (key)", 3, "duplicate key"),
        (RAW.replace("bigint", "bigint CHECK (message_id > 0)"), 0, "violates check constraint"),
    ],
)
def test_a_refused_raw_row_is_named(postgres: PostgresStore, definition: str, message: int, reason: str) -> None:
    table(postgres, definition)
    rows = [Row(b"a", b"1", 5), Row(b"b", b"2"), Row(b"c", b"3", 5), Row(b"d", b"1", 5)]
    with opened(postgres) as sink:
        vote = Round(1, rows).prepare(sink)
        assert not vote.yes
        assert vote.reason.startswith(f"table {postgres.table}: message {message} (row {message + 1} of the epoch): ")
        assert reason in vote.reason
    assert postgres.rows() == []


def test_a_dropped_target_table_is_a_vote_of_no(postgres: PostgresStore) -> None:
    (first,) = example(1)
    with opened(postgres) as sink:
        postgres.query(SQL("DROP TABLE {}").format(Identifier(postgres.table)))
        vote = first.prepare(sink)
        assert not vote.yes
        assert "does not exist" in vote.reason
        sink.close()
        sink.open(b"")
        first.again().deliver(sink)
    assert postgres.found() == postgres.expected([first])


def test_a_missing_table_that_cannot_be_created_is_reported(postgres: PostgresStore) -> None:
    sink = PostgresSink(postgres.options(), postgres.table)
    with pytest.raises(SinkLost, match="no such table") as lost:
        sink.open(b"")
    sink.close()
    assert "format=raw" in lost.value.hint


def test_a_table_with_other_columns_is_reported_at_once(postgres: PostgresStore) -> None:
    table(postgres, "id int")
    sink = postgres.sink()
    with pytest.raises(SinkLost, match=r'column "message_id" of relation .* does not exist'):
        sink.open(b"")
    sink.close()


def test_columns_without_a_unique_index_cannot_be_upserted(postgres: PostgresStore) -> None:
    table(postgres, "id int, name text")
    sink = PostgresSink(postgres.options(upsert=("id",)), postgres.table)
    with pytest.raises(SinkLost, match="no unique or exclusion constraint matching"):
        sink.open(b"")
    sink.close()


def test_a_role_that_cannot_create_tables_can_use_existing_ones(postgres: PostgresStore) -> None:
    first, second = example(2)
    with opened(postgres) as sink:
        first.deliver(sink)
    role = Identifier(f"writer of {postgres.table}")
    staged = Identifier(staged_name(postgres.table))
    postgres.query(SQL("CREATE ROLE {} LOGIN").format(role))
    bookkeeping = map(Identifier, ("penstock_format", "penstock_ledger", "penstock_in_doubt"))
    for name in (Identifier(postgres.table), staged, *bookkeeping):
        postgres.query(SQL("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON {} TO {}").format(name, role))
    raw = postgres.options(format=PostgresFormat.RAW)
    options = raw.model_copy(update={"user": f"writer of {postgres.table}"})
    sink = PostgresSink(options, postgres.table)
    sink.open(first.id)
    second.deliver(sink)
    sink.close()
    assert postgres.found() == postgres.expected([first, second])


def test_a_table_in_a_schema_is_found(postgres: PostgresStore) -> None:
    postgres.query("CREATE SCHEMA IF NOT EXISTS other")
    options = PostgresOptions(
        host=postgres.host,
        user="postgres",
        dbname="postgres",
        table=f"other.{postgres.table}",
        format=PostgresFormat.RAW,
    )
    sink = PostgresSink(options, postgres.table)
    sink.open(b"")
    example(1)[0].deliver(sink)
    sink.close()
    rows = postgres.query(SQL("SELECT * FROM {}").format(Identifier("other", postgres.table)))
    assert len(rows) == 7


@pytest.mark.parametrize("moment", ["write", "prepare", "commit", "abort"])
def test_a_lost_connection_loses_the_sink_and_the_next_open_recovers(postgres: PostgresStore, moment: str) -> None:
    first, second = example(2)
    sink = postgres.sink()
    sink.open(b"")
    first.deliver(sink)
    calls: dict[str, Callable[[], Any]] = {
        "write": lambda: second.write(sink),
        "prepare": lambda: sink.prepare(second.transaction),
        "commit": lambda: sink.commit(second.transaction),
        "abort": sink.abort,
    }
    for name, call in calls.items():
        if name == moment:
            break
        call()
    _cut(postgres)
    with pytest.raises(SinkLost):
        calls[moment]()
    sink.close()
    is_decided = moment == "commit"
    sink.open(second.id if is_decided else first.id)
    if not is_decided and moment != "abort":
        second.again().deliver(sink)
    sink.close()
    assert postgres.found() == postgres.expected([first, second])


def _cut(postgres: PostgresStore) -> None:
    wanted = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = {}"
    assert postgres.query(SQL(wanted).format(f"penstock {postgres.table}")) == [(True,)]


@pytest.mark.process
def test_votes_and_epochs_survive_a_kill_of_the_server(
    postgres: PostgresStore, postgres_server: PostgresServer
) -> None:
    first, second, third = example(3)
    sink = postgres.sink()
    sink.open(b"")
    first.deliver(sink)
    assert second.prepare(sink).yes
    postgres_server.kill()
    with pytest.raises(SinkLost):
        sink.commit(second.transaction)
    sink.close()
    with pytest.raises(SinkLost, match="connection"):
        sink.open(second.id)
    sink.close()
    postgres_server.start()
    sink.open(second.id)
    third.deliver(sink)
    sink.close()
    assert postgres.found() == postgres.expected([first, second, third])


def test_a_vote_is_durable_whatever_synchronous_commit_the_role_has(postgres: PostgresStore) -> None:
    postgres.query("ALTER ROLE postgres SET synchronous_commit = off")
    try:
        with opened(postgres) as sink:
            assert isinstance(sink, PostgresSink)
            assert sink._connection is not None
            assert sink._connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    finally:
        postgres.query("ALTER ROLE postgres RESET synchronous_commit")


def test_the_ledger_keeps_only_the_latest_epochs(postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_statements, "LEDGER_EPOCHS_MAX", 3)
    with opened(postgres) as sink:
        for one in example(5):
            one.deliver(sink)
    assert [epoch for epoch, *_ in postgres.ledger()] == [2, 3, 4]


def test_no_error_contains_the_password(postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "very secret")
    options = PostgresOptions.model_validate(
        {"host": "127.0.0.1", "port": 1, "user": "u", "table": "t", "connect_timeout": "2s"}
    )
    with pytest.raises(SinkLost) as lost:
        PostgresSink(options, "s").open(b"")
    assert "refused" in str(lost.value)
    error: BaseException | None = lost.value
    while error is not None:
        assert "very secret" not in repr(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("table", ["", ".", "a.", "a.b.c", "a\0"])
def test_a_name_that_cannot_be_a_table_is_refused(table: str) -> None:
    with pytest.raises(ValidationError, match=r"is not a valid table|name the table"):
        PostgresOptions(table=table)


def test_staging_tables_of_long_names_are_different() -> None:
    names = {staged_name("pipeline/" + "x" * 100 + end) for end in ("a", "b")}
    assert len(names) == 2
    assert all(len(name.encode()) <= 63 for name in names)


def test_psycopg_uses_its_compiled_implementation() -> None:
    assert psycopg.pq.__impl__ == "binary"


@pytest.mark.parametrize(
    ("change", "back", "version"),
    [
        (
            "ALTER TABLE penstock_format RENAME TO renamed",
            "ALTER TABLE renamed RENAME TO penstock_format",
            r"a development version before 0\.1 \(no format version; this version reads format 1\)",
        ),
        (
            "UPDATE penstock_format SET version = 2",
            "UPDATE penstock_format SET version = 1",
            r"a newer version of Penstock \(format 2; this version reads format 1\)",
        ),
    ],
)
def test_bookkeeping_of_another_format_is_refused(
    postgres: PostgresStore, change: str, back: str, version: str
) -> None:
    with opened(postgres):
        pass
    postgres.query(change)
    try:
        sink = postgres.sink()
        with pytest.raises(SinkLost, match=f"the bookkeeping of sinks was written by {version}"):
            sink.open(b"")
        sink.close()
    finally:
        postgres.query(back)
