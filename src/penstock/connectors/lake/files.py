"""The Parquet files of one epoch: by partition, of limited size, with bounded memory."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from typing import IO, Any
from urllib.parse import quote
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.lake.places import Place
from penstock.connectors.lake.rows import partitions
from penstock.connectors.lake.schemas import Refused

BUFFER_BYTES_MAX = 64 << 20
"""Rows of all partitions that wait to be written, as Arrow has them in memory: row groups should not be small."""

GROUP_BYTES = 32 << 20
"""Rows of one partition that are written as one row group, as Arrow has them in memory."""

FILES_OPEN_MAX = 100
"""Partitions of an epoch whose files are open at a time: each needs a descriptor. With more of them, files get
smaller."""

STAGED = "staged"
"""The folder of a sink for files that are being written, or wait for the commit."""

FOLDER_BYTES_MAX = 255
"""What file systems have room for; on buckets too, so that a table can be copied."""

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name of the directory for null."""


class DataFile(msgspec.Struct, frozen=True):
    """A file that was written, before it is part of the table."""

    key: str
    """In the table."""
    size: int
    rows: int
    partition: dict[str, str | None]
    """The values of the partition columns as texts."""
    stats: str = ""
    """Of Delta: the number of rows, and the bounds and nulls of columns, as JSON."""


def text_of(value: Any) -> str | None:
    """A value of a partition column, as Hive, Delta and Iceberg write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else value.isoformat() if isinstance(value, date) else str(value)


def folder_of(partition: dict[str, str | None]) -> str:
    """`date=2026-01-31/`; empty texts have the name of null, as in Hive. Raises Refused for one that is too long."""
    folders = {name: f"{_escaped(name)}={_escaped(value or NULL_PARTITION)}" for name, value in partition.items()}
    for name, folder in folders.items():
        if len(folder.encode()) > FOLDER_BYTES_MAX:
            raise Refused(
                f"partition_by names {name!r}, which has a text that is too long for a folder: {folder[:40]}…",
                "Shorten it in the pipeline's function, or partition by another column.",
            )
    return "".join(f"{folder}/" for folder in folders.values())


def _escaped(text: str) -> str:
    """Letters beyond ASCII stay as they are: Hive and Spark take each escaped byte for a letter."""
    return re.sub(r"[\x00-\x7f]+", lambda found: quote(found[0], safe=" "), text)


@dataclass(slots=True)
class _Partition:
    values: dict[str, str | None]
    folder: str
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0
    file: IO[bytes] | None = None
    writer: pq.ParquetWriter | None = None
    rows: int = 0


class EpochFiles:
    """`write` rows, then `finish`. Or `discard`, also after `finish`.

    Memory is bounded by the limits above and by one block, whatever the epoch's size: rows wait in memory until a row
    group is full, and files are on disk, or in the bucket as soon as they are complete.
    """

    def __init__(
        self,
        place: Place,
        home: str,
        stem: str,
        schema: pa.Schema,
        partition_by: Sequence[str],
        *,
        file_bytes: int,
        keeps_partitions: bool,
        staged: Callable[[str], str],
    ) -> None:
        """`home` is the sink's own folder; `stem` is how keys start, with `{}` for the partition's folders; `staged` is
        where a file is until the commit. `keeps_partitions`: whether files contain the partition columns.
        """
        self.files: list[DataFile] = []
        self._place = place
        self._spool = f"{home}/{STAGED}"
        self._stem = stem
        self._by = [*partition_by]
        names = schema.names if keeps_partitions else [name for name in schema.names if name not in self._by]
        self._schema = pa.schema([schema.field(name) for name in names])
        self._file_bytes = file_bytes
        self._staged = staged
        self._open: dict[tuple[Any, ...], _Partition] = {}

    def write(self, table: pa.Table) -> None:
        for key, rows in partitions(table, self._by):
            one = self._open.get(key)
            if one is None:
                values = {name: text_of(value) for name, value in zip(self._by, key, strict=True)}
                one = self._open[key] = _Partition(values, folder_of(values))
            one.waiting.append(rows.select(self._schema.names))
            one.waiting_bytes += rows.nbytes
            if one.waiting_bytes >= GROUP_BYTES:
                self._flush(one)
        self._limit()

    def finish(self) -> None:
        for one in self._open.values():
            self._flush(one)
            self._close(one)
        self._open.clear()

    def discard(self) -> None:
        for one in self._open.values():
            if one.writer is not None and one.file is not None:
                _abandon(one.writer)
                self._place.drop(one.file)
        self._open.clear()
        self._place.delete([self._staged(file.key) for file in self.files])
        self.files.clear()

    def _limit(self) -> None:
        """Write what waits longest in memory until it is little enough."""
        total = sum(one.waiting_bytes for one in self._open.values())
        for one in sorted(self._open.values(), key=lambda one: -one.waiting_bytes):
            if total <= BUFFER_BYTES_MAX:
                break
            total -= one.waiting_bytes
            self._flush(one)

    def _flush(self, one: _Partition) -> None:
        if not one.waiting:
            return
        if one.writer is None:
            self._start(one)
        assert one.writer is not None
        assert one.file is not None
        group = pa.concat_tables(one.waiting)
        one.writer.write_table(group)
        one.rows += len(group)
        one.waiting, one.waiting_bytes = [], 0
        if one.file.tell() >= self._file_bytes:
            self._close(one)

    def _start(self, one: _Partition) -> None:
        has_file = [other for other in self._open.values() if other.writer is not None]
        if len(has_file) >= FILES_OPEN_MAX:
            self._close(max(has_file, key=lambda other: other.rows))
        one.file = self._place.spool(self._spool)
        one.writer = pq.ParquetWriter(one.file, self._schema, compression="zstd", store_schema=False)

    def _close(self, one: _Partition) -> None:
        if one.writer is None or one.file is None:
            return
        with one.file:
            one.writer.close()
            stem = self._stem.format(one.folder)
            key = f"{stem}-{len(self.files):05}-{uuid4().hex[:12]}.parquet"
            size = one.file.tell()
            stats = stats_of(pq.read_metadata(one.file), self._schema)
            self._place.put(one.file, self._staged(key))
        self.files.append(DataFile(key, size, one.rows, one.values, stats))
        one.file, one.writer, one.rows = None, None, 0


def _abandon(writer: pq.ParquetWriter) -> None:
    """Without the footer that `close` would write, perhaps to a full disk."""
    writer.is_open = False


_BOUNDED = (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp)
"""Types whose bounds are exact and short. Bounds of texts may be cut, and those of floats leave out NaN."""


def stats_of(metadata: pq.FileMetaData, schema: pa.Schema) -> str:
    """As Delta has them, from the file's footer."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    columns = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    for column in schema:
        at = columns.get(column.name)
        found = (
            [] if at is None else [metadata.row_group(g).column(at).statistics for g in range(metadata.num_row_groups)]
        )
        if not found or any(one is None or one.null_count is None for one in found):
            continue
        nulls[column.name] = sum(one.null_count for one in found)
        bounds = [one for one in found if one.has_min_max]
        if bounds and any(is_kind(column.type) for is_kind in _BOUNDED):
            with suppress(OverflowError, ValueError):  # a year that Python's dates do not have: without bounds
                low[column.name], high[column.name] = (
                    _as_json(min(one.min for one in bounds)),
                    _as_json(max(one.max for one in bounds)),
                )
    return json.dumps({"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls})


def _as_json(value: Any) -> Any:
    if isinstance(value, int):
        return value
    text: str = value.isoformat()
    return text.replace("+00:00", "Z")
