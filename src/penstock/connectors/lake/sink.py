"""A sink that writes Parquet files and adds them to a table, exactly once, for every kind of table.

    write      rows become columns, and columns files, which no reader sees
    prepare    the table gets the columns that it lacks; the vote, with the names of the files, goes to the record
    commit     the files become part of the table, under the number of the vote; then the record says so
    open       a vote in doubt: was its number committed? Otherwise it is committed if that was decided, else its files
               are deleted

A crash before the vote leaves files that nothing refers to. Those in the sink's own folder are deleted by the next
`open`; complete ones in a table's own folders by the table's vacuum.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import msgspec
import pyarrow as pa

from penstock.connectors.lake.files import STAGED, EpochFiles
from penstock.connectors.lake.options import LakeFormat, LakeOptions
from penstock.connectors.lake.places import Place, full_is, place_of
from penstock.connectors.lake.record import Record, SinkState, VoteRecord
from penstock.connectors.lake.rows import RAW, BadRow, json_rows, raw_rows
from penstock.connectors.lake.schemas import (
    Refused,
    check_partitions,
    fit,
    schema_of_ddl,
    schema_of_rows,
)
from penstock.connectors.sink_api import (
    YES,
    Block,
    CheckReport,
    SinkLost,
    SinkReport,
    Transaction,
    Vote,
    accept_any,
)
from penstock.connectors.tables import SchemaOf, UnknownFields, no_schema
from penstock.core.errors import PenstockError

FOLDER = "_penstock"
"""The folder in a table that belongs to sinks."""


class LakeTable(Protocol):
    """A table that files are added to. Raises `errors`, OSError or PenstockError; Refused is a vote of no."""

    errors: tuple[type[Exception], ...]
    """What its library raises."""
    keeps_partitions: bool
    """Whether files contain the partition columns."""
    is_staged: bool
    """Whether files must not be in their places before the commit, because readers look for files."""
    folder: str
    """Where its files are: empty, or a folder with a slash."""
    log: str
    """The folder in which its library writes what names the files; empty if there is none."""

    def load(self, state: SinkState) -> None:
        """Reads the newest version of the table. Called before everything else, and before each epoch."""

    @property
    def schema(self) -> pa.Schema | None:
        """None if it does not exist."""

    @property
    def partition_by(self) -> tuple[str, ...] | None:
        """None if it does not exist."""

    @property
    def version(self) -> int:
        """The highest number of a vote of this sink that is part of the table; 0 if that is not known."""

    def extend(self, schema: pa.Schema, added: tuple[pa.Field, ...], partition_by: tuple[str, ...]) -> None:
        """Create the table, or add columns: durable before the vote, and harmless if the epoch is aborted."""

    def commit(self, vote: VoteRecord) -> None:
        """Add the files, in one step if the table has transactions. Idempotent, also if another process does the same
        at the same time.
        """

    def close(self) -> None: ...


MakeTable = Callable[[Place, str, str], LakeTable]
"""From the place, the sink's folder in it, and its name."""


class LakeSink:
    """A BlockingSink, exactly once. `name` must be the same whenever the sink runs."""

    def __init__(self, options: LakeOptions, name: str, make: MakeTable, schema: SchemaOf = no_schema) -> None:
        self._options = options
        self._name = name
        self._home = f"{FOLDER}/{folder_name(name)}"
        self._make = make
        self._schema = schema
        self._table: LakeTable | None = None
        self._record: Record | None = None
        self._place: Place | None = None
        self._files: EpochFiles | None = None
        self._columns: pa.Schema | None = None
        self._added: tuple[pa.Field, ...] = ()
        self._by: tuple[str, ...] = ()
        self._rows = 0
        self._refusal = ""

    def open(self, decided: bytes, check: CheckReport = accept_any) -> None:
        with self._lost():
            self._place = place_of(self._options.path, self._options.directory)
            self._table = self._make(self._place, self._home, self._name)
            self._record = Record.open(self._place.records(self._home), self._name)
            self._table.load(self._record.state)
            self._note_committed()
            in_doubt = self._record.state.in_doubt
            check(SinkReport(self._record.state.committed, None if in_doubt is None else in_doubt.position))
            if in_doubt is not None and in_doubt.id == decided:
                self._finish(in_doubt)
            else:
                self._void()
            self._place.clear(f"{self._home}/{STAGED}")

    def write(self, block: Block) -> None:
        if self._refusal:
            return
        with self._lost(), self._refusing():
            if self._files is None:
                self._files = self._begin(block.first_id)
            self._files.write(self._columns_of(block))
            self._rows += len(block)

    def prepare(self, transaction: Transaction) -> Vote:
        _, record = self._opened()
        with self._lost():
            with self._refusing():
                if not self._refusal and self._files is not None:
                    self._files.finish()
                    self._extend()
            if not self._refusal:
                self._vote(record, transaction)
                return YES
        no = Vote(False, f"{self._where}: {self._refusal}")
        self.abort()
        return no

    def commit(self, transaction: Transaction) -> None:
        _, record = self._opened()
        in_doubt = record.state.in_doubt
        with self._lost():
            if in_doubt is not None and in_doubt.is_of(transaction):
                self._finish(in_doubt)
            elif record.state.transaction.encode() != transaction.id:
                raise SinkLost(
                    f"{self._where}: it has not voted on {transaction.id.decode()}, which is to be committed", _RESTORED
                )

    def abort(self) -> None:
        self._opened()
        with self._lost():
            if self._files is not None:
                self._files.discard()
            self._reset()
            self._void()

    def close(self) -> None:
        with suppress(Exception):
            if self._files is not None:
                self._files.discard()
        with suppress(Exception):
            if self._table is not None:
                self._table.close()
        self._reset()
        self._table, self._record, self._place = None, None, None

    @property
    def _where(self) -> str:
        return f"table {self._options.path}"

    def _opened(self) -> tuple[LakeTable, Record]:
        if self._table is None or self._record is None:
            raise SinkLost(f"{self._where}: it is not open")
        return self._table, self._record

    def _reset(self) -> None:
        self._files, self._columns, self._added, self._rows, self._refusal = None, None, (), 0, ""

    # An epoch.

    def _begin(self, start: int) -> EpochFiles:
        """Find out which columns the files of this epoch have. Raises Refused."""
        table, record = self._opened()
        assert self._place is not None
        table.load(record.state)
        options = self._options
        fitted = fit(self._wanted(), table.schema, create=options.create, unknown=options.unknown_fields)
        by = table.partition_by
        if by is None:
            by = options.partition_by
        elif options.partition_by and options.partition_by != by:
            raise Refused(
                f"it is partitioned by {by or 'nothing'}, not by {options.partition_by}", "Leave partition_by out."
            )
        check_partitions(fitted.schema, by)
        self._columns, self._added, self._by = fitted.schema, fitted.added, by
        return EpochFiles(
            self._place,
            self._home,
            f"{table.folder}{{}}part-{start:020}",
            fitted.schema,
            by,
            file_bytes=options.file_bytes,
            keeps_partitions=table.keeps_partitions,
            staged=self._staged,
        )

    def _wanted(self) -> pa.Schema | None:
        if self._options.format is LakeFormat.RAW:
            return RAW
        if self._options.columns:
            return schema_of_ddl(self._options.columns)
        found = self._schema()
        return None if found is None else schema_of_rows(found)

    def _columns_of(self, block: Block) -> pa.Table:
        assert self._columns is not None
        if self._options.format is LakeFormat.JSON:
            ignores = self._options.unknown_fields is UnknownFields.IGNORE
            return json_rows(block, self._columns, self._rows, ignores_unknown=ignores)
        rows = raw_rows(block)
        missing = [name for name in self._columns.names if name not in RAW.names]
        for name in missing:
            rows = rows.append_column(name, pa.nulls(len(rows), self._columns.field(name).type))
        return rows.select(self._columns.names).cast(self._columns)

    def _extend(self) -> None:
        if self._added:
            assert self._columns is not None
            table, record = self._opened()
            record.check()
            table.extend(self._columns, self._added, self._by)
            if table.log:
                self._check_extended(table, self._columns)

    def _check_extended(self, table: LakeTable, columns: pa.Schema) -> None:
        """Another writer may have created or changed the table meanwhile."""
        _, record = self._opened()
        table.load(record.state)
        fit(columns, table.schema, create=False)
        if table.partition_by != self._by:
            raise Refused(f"another writer has created it, partitioned by {table.partition_by}", "It is tried again.")

    def _vote(self, record: Record, transaction: Transaction) -> None:
        table, _ = self._opened()
        version = max(record.state.version, table.version) + 1
        vote = VoteRecord(
            transaction.id.decode(),
            transaction.epoch,
            transaction.start,
            transaction.end,
            version,
            () if self._files is None else tuple(self._files.files),
            b"" if self._columns is None else remembered(self._columns, self._by),
        )
        record.write(msgspec.structs.replace(record.state, in_doubt=vote, version=version))
        self._reset()

    # Votes in doubt.

    def _note_committed(self) -> None:
        """The process ended after the commit, and before the record said so."""
        table, record = self._opened()
        in_doubt = record.state.in_doubt
        if in_doubt is not None and in_doubt.files and in_doubt.version <= table.version:
            self._sync(table)
            record.write(_committed(record.state, in_doubt))

    def _finish(self, vote: VoteRecord) -> None:
        table, record = self._opened()
        if vote.files:
            record.check()
            table.commit(vote)
            self._sync(table)
        record.write(_committed(record.state, vote))

    def _sync(self, table: LakeTable) -> None:
        if table.log and self._place is not None:
            self._place.sync(table.log)

    def _void(self) -> None:
        _, record = self._opened()
        assert self._place is not None
        in_doubt = record.state.in_doubt
        if in_doubt is not None:
            # First the vote: what it names must exist as long as it can be committed.
            record.write(msgspec.structs.replace(record.state, in_doubt=None))
            self._place.delete([self._staged(file.key) for file in in_doubt.files])

    def _staged(self, key: str) -> str:
        table, _ = self._opened()
        return staged_key(self._home, key) if table.is_staged else key

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        assert self._place is not None
        try:
            with full_is(Refused, self._place.url):
                yield
        except (Refused, BadRow) as error:
            self._refusal = f"{error}. {error.hint}" if error.hint else str(error)

    @contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except SinkLost:
            raise
        except PenstockError as error:
            raise SinkLost(f"{self._where}: {error}", error.hint) from error
        except Exception as error:
            theirs = () if self._table is None else self._table.errors
            if not isinstance(error, (OSError, pa.ArrowException, *theirs)):
                raise
            raise SinkLost(f"{self._where}: {error}") from error


def _committed(state: SinkState, vote: VoteRecord) -> SinkState:
    schema = vote.schema or state.schema
    return msgspec.structs.replace(state, transaction=vote.transaction, end=vote.end, in_doubt=None, schema=schema)


_PARTITIONS = b"penstock.partition_by"


def remembered(schema: pa.Schema, partition_by: tuple[str, ...]) -> bytes:
    """For `recalled`."""
    metadata = {_PARTITIONS: msgspec.json.encode(partition_by)}
    return bytes(schema.with_metadata(metadata).serialize().to_pybytes())


def recalled(data: bytes) -> tuple[pa.Schema, tuple[str, ...]]:
    schema = pa.ipc.read_schema(pa.py_buffer(data))
    by = msgspec.json.decode(schema.metadata[_PARTITIONS], type=tuple[str, ...])
    return schema.remove_metadata(), by


def folder_name(sink: str) -> str:
    """A name for every file system and bucket, different for different sinks."""
    return f"{re.sub(r'[^A-Za-z0-9-]', '.', sink)}-{hashlib.sha256(sink.encode()).hexdigest()[:8]}"


def staged_key(home: str, key: str) -> str:
    """Without the suffix of Parquet files, so that no reader takes it for one."""
    return f"{home}/{STAGED}/{key.rpartition('/')[2].removesuffix('.parquet')}"


_RESTORED = "Is the table older than the worker's data? Restore both from the same copy."
