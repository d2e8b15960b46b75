"""A session of logical replication: the publication, the slot, its snapshot, and the stream of changes. Blocking.

    slot missing             ──▶ SLOT_snapshot is created, and its snapshot is read ──all rows are durable──▶ it is
                                 copied to SLOT, and dropped
    SLOT_snapshot, no SLOT   ──▶ killed in the middle: it is dropped, and all starts over
    SLOT                     ──▶ changes since its position

So a slot of the configured name exists only if its snapshot is stored. A snapshot lives in the transaction that has
created its slot, and cannot be continued by another one.
"""

import select
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import psycopg
from psycopg import errors
from psycopg.pq import ExecStatus
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from penstock.connectors.api import Lost
from penstock.connectors.postgres.changes import CHANGES, Batch, Changes, SnapshotRows, Table
from penstock.connectors.postgres.connection import connect, identifier_of, lost_if_broken
from penstock.connectors.postgres.options import PostgresOptions
from penstock.connectors.postgres.pgoutput import (
    Column,
    Keepalive,
    Relation,
    Row,
    lsn_text,
    parse_copy_data,
    parse_lsn,
    status,
)
from penstock.core.errors import RequestError

READ_SECONDS = 0.5
"""How long to wait for changes: so often the acknowledgement can be reported while there are none."""

REPORT_SECONDS = 5.0
"""A status is sent this often even if nothing has changed: the server disconnects after wal_sender_timeout, 60 s."""

BATCH_BYTES_MAX = 1 << 20
"""Read from the server before the changes are stored: bounds memory, and the work for one record."""


class Slot(NamedTuple):
    plugin: str
    database: str
    is_here: bool
    """Whether it belongs to the database of this connection."""
    wal_status: str
    confirmed: int = 0
    """The LSN from which it sends changes."""


class PublishedTable(NamedTuple):
    table: Table
    name: Identifier
    columns: Composed
    rows: Composable
    """The row filter of the publication."""
    only: bool
    """Whether it has its rows itself: a partitioned table has none."""


class Session:
    """One connection. `open` says how it begins: with a snapshot, which is then read by `read_snapshot` until None and
    ended by `end_snapshot`, or with changes. All calls raise Lost.
    """

    def __init__(self, options: PostgresOptions, name: str, confirmed: int = 0) -> None:
        """`confirmed`: that of an earlier session; 0: there was none since the worker has started."""
        self.confirmed = confirmed
        """What the slot may have as its position at most."""
        self._options = options
        self._name = name
        self._where = f"PostgreSQL, slot {options.slot}"
        self._connection: psycopg.Connection | None = None
        self._snapshot: Iterator[Batch] | None = None
        self._changes = Changes()
        self._flushed = 0
        self._reported_at = 0.0

    # The slot.

    def open(self, last_id: int) -> bool:
        """True: a snapshot comes first. `last_id` is that of the stream."""
        with lost_if_broken(self._where):
            self._connection = connection = connect(self._options, self._name, replication="database")
            self._check_server(connection)
            self._check_publication(connection)
            slot = _find_slot(connection, self._options.slot)
            if slot is not None:
                self._check_slot(slot)
                self.confirmed = max(self.confirmed, slot.confirmed)
                _drop_if_there(connection, self._snapshot_slot)
                return False
            return self._create_slot(connection, last_id)

    def _check_server(self, connection: psycopg.Connection) -> None:
        (level,) = connection.execute("SHOW wal_level").fetchone() or ("",)
        if level != "logical":
            raise RequestError(
                f"the server's wal_level is {level}, but logical replication needs logical",
                "As a superuser: ALTER SYSTEM SET wal_level = logical; then restart the server.",
            )

    def _check_publication(self, connection: psycopg.Connection) -> None:
        options, name = self._options, Identifier(self._options.publication)
        wanted = SQL("SELECT FROM pg_publication WHERE pubname = {}").format(Literal(options.publication))
        if connection.execute(wanted).rowcount:
            return
        tables = SQL(", ").join(map(identifier_of, options.tables))
        create = SQL("CREATE PUBLICATION {} FOR TABLE {}").format(name, tables)
        if not options.create or not options.tables:
            text = (
                create.as_string(connection) if options.tables else f"CREATE PUBLICATION {name.as_string()} FOR TABLE …"
            )
            raise RequestError(
                f"there is no publication {options.publication} in the database",
                f"{text}; or let the connector create it: create: true, with tables.",
            )
        connection.execute(create)

    def _check_slot(self, slot: Slot) -> None:
        name = self._options.slot
        if slot.plugin != "pgoutput" or not slot.is_here:
            raise RequestError(
                f"the slot {name} belongs to the database {slot.database} and the plugin {slot.plugin}",
                "Use another name for the slot.",
            )
        if slot.wal_status == "lost":
            raise RequestError(
                f"the server has removed changes that the slot {name} still needed (max_slot_wal_keep_size)",
                f"They are lost. {_START_OVER.format(name=name)}",
            )
        if slot.confirmed > self.confirmed > 0:
            raise RequestError(
                f"the slot {name} begins at {lsn_text(slot.confirmed)}, after {lsn_text(self.confirmed)}, up to which "
                "changes were acknowledged: it was dropped and created again, or moved",
                f"The changes between are lost. {_START_OVER.format(name=name)}",
            )

    def _create_slot(self, connection: psycopg.Connection, last_id: int) -> bool:
        options = self._options
        if last_id >= CHANGES:
            raise RequestError(
                f"the slot {options.slot} was removed, and with it the changes since the last that was read",
                f"They are lost. {_START_OVER.format(name=options.slot)}",
            )
        if not options.create:
            raise RequestError(
                f"there is no slot {options.slot}",
                f"SELECT pg_create_logical_replication_slot('{options.slot}', 'pgoutput'); or let the connector "
                "create it, and send all rows first: create: true.",
            )
        if not options.snapshot:
            connection.execute(_create(options.slot, "NOEXPORT_SNAPSHOT"))
            return False
        _drop_if_there(connection, self._snapshot_slot)
        self._snapshot = self._read_snapshot(connection, last_id)
        return True

    @property
    def _snapshot_slot(self) -> str:
        return f"{self._options.slot}_snapshot"

    # The snapshot.

    def read_snapshot(self) -> Batch | None:
        """The next rows; None: there are no more."""
        assert self._snapshot is not None
        with lost_if_broken(self._where):
            return next(self._snapshot, None)

    def end_snapshot(self) -> None:
        """All rows are durable: the slot gets its name."""
        with lost_if_broken(self._where):
            connection = self._opened()
            connection.execute("COMMIT")
            names = map(Literal, (self._snapshot_slot, self._options.slot))
            connection.execute(SQL("SELECT pg_copy_logical_replication_slot({}, {})").format(*names))
            _drop_if_there(connection, self._snapshot_slot)
            self._snapshot = None

    def _read_snapshot(self, connection: psycopg.Connection, last_id: int) -> Iterator[Batch]:
        connection.execute("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
        row = connection.execute(_create(self._snapshot_slot, "USE_SNAPSHOT")).fetchone()
        assert row is not None
        time_us = connection.execute("SELECT (extract(epoch FROM now()) * 1000000)::bigint").fetchone() or (0,)
        rows = SnapshotRows(last_id, parse_lsn(row[1]), time_us[0])
        tables = _published(connection, self._options.publication)
        if last_id:
            batch = Batch()
            rows.truncated([one.table for one in tables], batch)
            yield batch
        for one in tables:
            yield from self._read_table(connection, one, rows)

    def _read_table(self, connection: psycopg.Connection, one: PublishedTable, rows: SnapshotRows) -> Iterator[Batch]:
        wanted = SQL("DECLARE penstock_rows NO SCROLL CURSOR FOR SELECT {} FROM {} {} WHERE {}").format(
            one.columns, SQL("ONLY" if one.only else ""), one.name, one.rows
        )
        connection.execute(wanted)
        fetch = SQL("FETCH {} FROM penstock_rows").format(Literal(self._options.batch))
        while found := _fetched(connection, fetch, len(one.table.columns)):
            batch = Batch()
            rows.rows(one.table, found, batch)
            yield batch
        connection.execute("CLOSE penstock_rows")

    # The changes.

    def start(self) -> None:
        with lost_if_broken(self._where):
            connection, options = self._opened(), self._options
            publication = Literal(Identifier(options.publication).as_string())
            if not self.confirmed and (slot := _find_slot(connection, options.slot)) is not None:
                self.confirmed = slot.confirmed  # it was created since `open`, and nothing was acknowledged yet
            command = SQL("START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {})")
            try:
                cursor = connection.execute(command.format(Identifier(options.slot), publication))
            except errors.ObjectInUse as error:
                raise Lost(
                    f"{self._where}: {error.diag.message_primary}",
                    "Another program uses the slot, or the server still considers the previous connection open.",
                ) from error
            assert cursor.pgresult is not None
            assert cursor.pgresult.status == ExecStatus.COPY_BOTH
            connection.pgconn.nonblocking = 1
            self._changes, self._reported_at = Changes(), time.monotonic()

    def read(self, flushed: int) -> Batch:
        """What has arrived, after waiting for it a little. The server learns that everything before the LSN `flushed`
        is complete.
        """
        with lost_if_broken(self._where):
            self.report(flushed)
            batch = Batch()
            self._take(batch, READ_SECONDS)
            return batch

    def report(self, flushed: int, *, now: bool = False) -> None:
        """Sends the position if it has changed, or `now`, or if the last time is long ago: that keeps the connection
        alive while nothing is read.
        """
        seconds = time.monotonic() - self._reported_at
        if now or flushed > self._flushed or seconds >= REPORT_SECONDS:
            self._flushed, self._reported_at = max(flushed, self._flushed), time.monotonic()
            self.confirmed = max(self.confirmed, self._flushed)
            connection = self._opened().pgconn
            with lost_if_broken(self._where):
                connection.put_copy_data(status(self._changes.received, self._flushed, time.time_ns() // 1000))
                connection.flush()

    def close(self) -> None:
        self._snapshot = None
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _take(self, batch: Batch, seconds: float) -> None:
        connection, size, has_read = self._opened().pgconn, 0, False
        while size < BATCH_BYTES_MAX:
            count, data = connection.get_copy_data(1)
            if count > 0:
                size += count
                self._feed(bytes(data), batch)
            elif count < 0:
                self._ended()
            elif (has_read and size) or not _is_readable(connection.socket, 0.0 if size else seconds):
                return
            else:
                connection.consume_input()
                has_read = True

    def _feed(self, data: bytes, batch: Batch) -> None:
        message = parse_copy_data(data)
        self._changes.feed(message, batch)
        if isinstance(message, Keepalive) and message.wants_reply:
            self.report(self._flushed, now=True)

    def _ended(self) -> None:
        """The server has ended the stream: raises why."""
        result = self._opened().pgconn.get_result()
        text = result.error_message.decode(errors="replace").strip() if result is not None else ""
        raise Lost(f"{self._where}: {text or 'the server has ended the stream'}", "It is retried automatically.")

    def _opened(self) -> psycopg.Connection:
        if self._connection is None:
            raise Lost(f"{self._where}: it is not open")
        return self._connection


_START_OVER = (
    "Drop the slot if it is there (SELECT pg_drop_replication_slot('{name}')), and use another name for it: "
    "then a new snapshot comes first."
)


def _is_readable(socket: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _create(slot: str, snapshot: str) -> Composed:
    return SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput {}").format(Identifier(slot), SQL(snapshot))


def _find_slot(connection: psycopg.Connection, name: str) -> Slot | None:
    # Servers before 13 have no wal_status.
    wanted = SQL("""
        SELECT plugin, database, database = current_database(), coalesce(to_jsonb(s) ->> 'wal_status', ''),
            coalesce(confirmed_flush_lsn::text, '0/0')
        FROM pg_replication_slots s WHERE slot_name = {}
    """)
    found = connection.execute(wanted.format(Literal(name))).fetchone()
    if found is None:
        return None
    plugin, database, is_here, wal_status, confirmed = found
    return Slot(plugin, database, is_here, wal_status, parse_lsn(confirmed))


def _drop_if_there(connection: psycopg.Connection, slot: str) -> None:
    drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = {}"
    connection.execute(SQL(drop).format(Literal(slot)))


def _published(connection: psycopg.Connection, publication: str) -> list[PublishedTable]:
    """The tables of a publication, with its lists of columns and its row filters, in the order of their names. Servers
    before 15 have neither.
    """
    wanted = SQL("""
        SELECT c.oid, t.schemaname::text, t.tablename::text, c.relreplident::text, c.relkind = 'r',
            to_jsonb(t) -> 'attnames', to_jsonb(t) ->> 'rowfilter'
        FROM pg_publication_tables t
        JOIN pg_namespace n ON n.nspname = t.schemaname
        JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
        WHERE t.pubname = {} ORDER BY 2, 3
    """).format(Literal(publication))
    return [_table(connection, *row) for row in connection.execute(wanted).fetchall()]


def _table(
    connection: psycopg.Connection,
    oid: int,
    schema: str,
    name: str,
    identity: str,
    only: bool,
    listed: list[str] | None,
    rows: str | None,
) -> PublishedTable:
    wanted = SQL("""
        SELECT a.attname::text, a.atttypid::bigint, {identity} = 'f' OR coalesce(a.attnum = ANY (i.indkey), false)
        FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid
            AND CASE {identity} WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
        WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum
    """).format(identity=Literal(identity), oid=Literal(oid))
    columns = [Column(*one) for one in connection.execute(wanted) if listed is None or one[0] in listed]
    relation = Relation(oid, schema, name, identity, tuple(columns))
    return PublishedTable(
        Table(relation),
        Identifier(schema, name),
        SQL(", ").join(Identifier(one.name) for one in columns),
        SQL(rows) if rows else SQL("true"),
        only,
    )


def _fetched(connection: psycopg.Connection, fetch: Composed, width: int) -> list[Row]:
    with connection.cursor() as cursor:
        cursor.execute(fetch)
        found = cursor.pgresult
        assert found is not None
        value = found.get_value
        return [[value(row, column) for column in range(width)] for row in range(found.ntuples)]
