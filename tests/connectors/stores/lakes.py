"""Tables in files, each with what a reader finds in it: read by another library than the one that writes."""

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from penstock.bucket.stores import open_bucket
from penstock.connectors.lake.sink import LakeSink
from penstock.connectors.registry import make_connector
from penstock.connectors.tables import SchemaOf, no_schema
from penstock.protocol.stored import NO_TIME
from tests.connectors.stores.rounds import Round


class LakeStore:
    """`place` is a directory or a prefix in a bucket."""

    kind: str

    def __init__(self, place: str) -> None:
        self.place = place

    def config(self, **options: Any) -> dict[str, Any]:
        return {"path": self.place, **options}

    def sink(self, schema: SchemaOf = no_schema, name: str = "p/s", **options: Any) -> LakeSink:
        given = {"format": "json"} if options or schema is not no_schema else {"format": "raw"}
        made: Any = make_connector(self.kind, self.config(**given | options)).make_sink(name, schema)
        sink: LakeSink = made._sink
        return sink

    def files(self) -> dict[str, str | bytes]:
        """Everything that is stored, by key: the local path, or the content."""
        if "://" not in self.place:
            root = Path(self.place)
            return {str(path.relative_to(root)): str(path) for path in root.rglob("*") if path.is_file()}
        bucket = open_bucket(self.place)
        return {each.key: bucket.get(each.key).data for each in bucket.list("")}

    def table(self) -> pa.Table:
        """All rows, by the order of the keys of the files."""
        raise NotImplementedError

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table().to_pylist()
        return found

    def found(self) -> Any:
        table = self.table()
        if not len(table):
            return []
        times = table["event_time"].cast(pa.int64()).to_pylist()
        rows = [table[name].to_pylist() for name in ("message_id", "key", "value")]
        return sorted(zip(rows[0], times, rows[1], rows[2], strict=True), key=lambda row: (row[0], len(row[3])))

    def expected(self, rounds: Sequence[Round]) -> Any:
        rows, at = [], 0
        for row in [row for round_ in rounds for row in round_.rows]:
            rows.append((at, None if row.time_us == NO_TIME else row.time_us, row.key, row.value))
            at += len(row.value)
        return rows

    def sibling(self, name: str) -> Any:
        return type(self)(f"{self.place}.{name}")


def read_file(content: str | bytes) -> pa.Table:
    return pq.read_table(content if isinstance(content, str) else pa.BufferReader(content), partitioning=None)


def is_data(key: str) -> bool:
    """As Spark, Hive and Arrow see it: what starts with `_` or `.` is hidden."""
    return key.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in key.split("/"))


class ParquetStore(LakeStore):
    kind = "parquet"

    def table(self) -> pa.Table:
        tables = [read_file(content) for key, content in sorted(self.files().items()) if is_data(key)]
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


class DeltaStore(LakeStore):
    """Reads the log as the protocol's specification describes it, and the files by Arrow."""

    kind = "delta"

    def table(self) -> pa.Table:
        files = self.files()
        live: dict[str, dict[str, Any]] = {}
        for key in sorted(key for key in files if key.startswith("_delta_log/") and key.endswith(".json")):
            content = files[key]
            text = Path(content).read_text() if isinstance(content, str) else content.decode()
            for action in map(json.loads, text.splitlines()):
                if "add" in action:
                    live[action["add"]["path"]] = action["add"]
                if "remove" in action:
                    live.pop(action["remove"]["path"])
        tables = [_with(read_file(files[unquote(path)]), add["partitionValues"]) for path, add in live.items()]
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


def _with(table: pa.Table, values: dict[str, str | None]) -> pa.Table:
    for name, value in values.items():
        table = table.append_column(name, pa.array([value] * len(table), pa.string()))
    return table


class IcebergStore(LakeStore):
    """The catalogue is a file beside the table, or on this machine if the table is in a bucket. The table names the
    files, which Arrow reads.
    """

    kind = "iceberg"

    @property
    def catalog(self) -> Path:
        folder = Path(tempfile.gettempdir()) if "://" in self.place else Path(self.place).parent
        return folder / f"{self.place.rpartition('/')[2]}.catalog.db"

    def config(self, **options: Any) -> dict[str, Any]:
        return {"path": self.place, "catalog": f"sqlite:///{self.catalog}", "table": "lake.rows", **options}

    def opened(self) -> Any:
        """The table as pyiceberg has it; None if there is none."""
        settings = {"s3.endpoint": os.environ.get("AWS_ENDPOINT_URL", ""), "s3.region": "us-east-1"}
        with closing(SqlCatalog("default", uri=f"sqlite:///{self.catalog}", **settings)) as catalog:
            try:
                return catalog.load_table("lake.rows")
            except NoSuchTableError:
                return None

    def table(self) -> pa.Table:
        opened = self.opened()
        paths = [] if opened is None else sorted(task.file.file_path for task in opened.scan().plan_files())
        files = self.files()
        tables = [read_file(files[f"data/{path.partition('/data/')[2]}"]) for path in paths]
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


ODD_TEXTS = ("a b", " a", "a/b", "50%", "%20", "a=b", "ü", "a+b", "a:b", "'\"", "#?", None)
"""Which folders cannot have as they are."""

LAKES: dict[str, type[LakeStore]] = {store.kind: store for store in (ParquetStore, DeltaStore, IcebergStore)}
