"""Spark reads what the sinks of tables in files have written."""

import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.connectors.stores.lakes import ODD_TEXTS, DeltaStore, IcebergStore, ParquetStore
from tests.connectors.stores.tables import epoch, opened

pytestmark = pytest.mark.spark

SCHEMA = [("id", "bigint"), ("at", "timestamp"), ("price", "decimal(10,2)"), ("day", "date"), ("m", "map<string,int>")]
ROW = '{"id":1,"at":"2026-01-02T03:04:05.678Z","price":1.50,"day":"2026-01-02","m":{"a":1}}'


def test_spark_reads_partitions_types_and_added_columns_of_parquet_files(spark: SparkSession, tmp_path: Path) -> None:
    store = ParquetStore(str(tmp_path / "table"))
    with opened(store.sink(lambda: SCHEMA, partition_by=["day"])) as sink:
        epoch(1, [ROW, '{"id":2,"day":null}']).deliver(sink)
    with opened(store.sink(lambda: [*SCHEMA, ("more", "string")], partition_by=["day"])) as sink:
        epoch(2, ['{"id":3,"more":"x","day":"2026-01-03"}']).deliver(sink)
    frame = spark.read.option("mergeSchema", True).parquet(store.place)
    assert {*frame.dtypes} == {*SCHEMA, ("more", "string")}
    first, second, third = frame.selectExpr("*", "unix_millis(at) AS ms").orderBy("id").collect()
    assert (first.ms, first.price, first.day, first.m) == (1767323045678, Decimal("1.50"), date(2026, 1, 2), {"a": 1})
    assert (second.day, second.at, third.more, third.day) == (None, None, "x", date(2026, 1, 3))


def test_spark_reads_odd_values_of_partition_columns(spark: SparkSession, tmp_path: Path) -> None:
    store = ParquetStore(str(tmp_path / "table"))
    rows = [json.dumps({"id": number, "text": text}) for number, text in enumerate(ODD_TEXTS)]
    with opened(store.sink(lambda: [("id", "bigint"), ("text", "string")], partition_by=["text"])) as sink:
        epoch(1, rows).deliver(sink)
    frame = spark.read.parquet(store.place)
    assert {row.id: row.text for row in frame.collect()} == dict(enumerate(ODD_TEXTS))


@pytest.mark.parametrize("kind", [DeltaStore, IcebergStore])
def test_spark_reads_the_files_that_a_table_names(
    spark: SparkSession, tmp_path: Path, kind: type[DeltaStore | IcebergStore]
) -> None:
    store = kind(str(tmp_path / "table"))
    with opened(store.sink(lambda: SCHEMA)) as sink:
        epoch(1, [ROW]).deliver(sink)
    files = [str(path) for key, path in store.files().items() if key.endswith(".parquet") and "_delta_log" not in key]
    frame = spark.read.parquet(*files)
    assert [name for name, _ in frame.dtypes] == [name for name, _ in SCHEMA]
    assert [(row.id, row.price, row.m) for row in frame.collect()] == [(1, Decimal("1.50"), {"a": 1})]
