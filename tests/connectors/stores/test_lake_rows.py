"""JSON objects as Arrow columns, and the rule by which a table's columns follow them."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.lake.files import folder_of, text_of
from penstock.connectors.lake.rows import BadRow, json_rows, partitions
from penstock.connectors.lake.schemas import Refused, check_partitions, fit, schema_of_ddl, schema_of_rows, widens
from penstock.connectors.tables import UnknownFields
from tests.delivery.fake_epoch import Row, block_of


def read(values: list[bytes], columns: str, *, ignores_unknown: bool = False) -> list[dict[str, Any]]:
    schema = schema_of_ddl(columns)
    table = json_rows(block_of([Row(value) for value in values], 100), schema, 10, ignores_unknown=ignores_unknown)
    assert table.schema == schema
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_plain_columns_are_read_as_a_whole_and_missing_fields_are_null() -> None:
    columns = "id BIGINT, name STRING, ok BOOLEAN, share DOUBLE, price DECIMAL(10,2), at TIMESTAMP, day DATE"
    values = [
        '{"id":9007199254740993,"name":"größe","ok":true,"share":0.5,"price":1.50,"at":"2026-01-02T03:04:05.678Z",'
        '"day":"2026-01-31"}'.encode(),
        b'{"at":"2026-01-02T03:04:05+01:00"}',
        b"{}",
    ]
    first, second, third = read(values, columns)
    assert first == {
        "id": 9007199254740993,
        "name": "größe",
        "ok": True,
        "share": 0.5,
        "price": Decimal("1.50"),
        "at": datetime(2026, 1, 2, 3, 4, 5, 678000, UTC),
        "day": date(2026, 1, 31),
    }
    assert second["at"] == datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)
    assert [*third.values()] == [None] * 7


def test_what_arrow_cannot_read_is_read_row_by_row() -> None:
    columns = "m MAP<STRING, INT>, v VARIANT, b BINARY, x DOUBLE, l ARRAY<STRUCT<a: INT, d: DATE>>"
    value = b'{"m":{"a":1,"b":null},"v":{"q":[1]},"b":"AAE=","x":"-Infinity","l":[{"a":1,"d":"2026-01-31"},null]}'
    assert read([value, b'{"v":"text"}'], columns) == [
        {
            "m": [("a", 1), ("b", None)],
            "v": '{"q":[1]}',
            "b": b"\0\1",
            "x": float("-inf"),
            "l": [{"a": 1, "d": date(2026, 1, 31)}, None],
        },
        {"m": None, "v": "text", "b": None, "x": None, "l": None},
    ]


def test_times_without_an_offset_stay_local_or_are_in_utc() -> None:
    (row,) = read([b'{"local":"2026-01-02T03:04:05","at":"2026-01-02T03:04:05"}'], "local TIMESTAMP_NTZ, at TIMESTAMP")
    assert row == {"local": datetime(2026, 1, 2, 3, 4, 5), "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"no json", "it is not a valid JSON object"),
        (b"", "it is not a valid JSON object"),
        (b'{"n":1}{"n":2}', "it is not a valid JSON object"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"s":"\xff"}', "it is not a valid JSON object"),
        (b'{"n":300}', "Expected `int` <= 127"),
        (b'{"n":"1"}', "got `str` - at `$.n`"),
        (b'{"n":1,"p":1.555}', "the column 'p' is decimal128(4, 2)"),
        (b'{"n":1,"zz":1}', "no column for its field 'zz'"),
        (b'{"n":null}', "the column 'n' must not be null"),
    ],
)
def test_a_row_that_does_not_fit_is_named(value: bytes, reason: str) -> None:
    with pytest.raises(BadRow) as caught:
        read([b'{"n":1}', value], "n TINYINT NOT NULL, p DECIMAL(4,2), s STRING")
    assert str(caught.value).startswith("message 107 (row 12 of the epoch): ")
    assert reason in str(caught.value)


def test_unknown_fields_can_be_ignored() -> None:
    assert read([b'{"n":1,"zz":{}}'], "n INT", ignores_unknown=True) == [{"n": 1}]
    assert read([b'{"m":{},"zz":{}}'], "m MAP<STRING, INT>", ignores_unknown=True) == [{"m": []}]


def test_rows_are_divided_by_the_values_of_the_partition_columns() -> None:
    table = pa.table({"a": ["x", "y", None, "x"], "n": [1, 2, 3, 4]})
    found = {key: rows["n"].to_pylist() for key, rows in partitions(table, ["a"])}
    assert found == {("x",): [1, 4], ("y",): [2], (None,): [3]}
    assert [rows for _, rows in partitions(table, [])] == [table]


def test_partitions_are_folders_in_hive_s_layout() -> None:
    values = {"day": text_of(date(2026, 1, 31)), "a b": text_of("x/y=1"), "n": text_of(None), "ok": text_of(True)}
    assert folder_of(values) == "day=2026-01-31/a b=x%2Fy%3D1/n=__HIVE_DEFAULT_PARTITION__/ok=true/"


# The rule.


def test_a_missing_column_is_added_and_accepts_nulls() -> None:
    fitted = fit(schema_of_ddl("id INT, b STRING NOT NULL"), schema_of_ddl("a STRING, id BIGINT"), create=True)
    assert fitted.schema == schema_of_ddl("a STRING, id BIGINT, b STRING")
    assert [field.name for field in fitted.added] == ["b"]


def test_without_create_a_missing_column_is_refused_or_ignored() -> None:
    wanted, found = schema_of_ddl("id INT, b STRING"), schema_of_ddl("id INT")
    with pytest.raises(Refused, match="it has no column 'b'"):
        fit(wanted, found, create=False)
    assert fit(wanted, found, create=False, unknown=UnknownFields.IGNORE).schema == found
    with pytest.raises(Refused, match="it does not exist"):
        fit(wanted, None, create=False)


def test_a_type_that_would_lose_values_is_refused() -> None:
    with pytest.raises(Refused, match="its column 'id' is int32, and the rows have int64 there"):
        fit(schema_of_ddl("id BIGINT"), schema_of_ddl("id INT"), create=True)
    with pytest.raises(Refused, match="differ in case only"):
        fit(schema_of_ddl("ID INT"), schema_of_ddl("id INT"), create=True)


def test_unknown_columns_need_a_table() -> None:
    with pytest.raises(Refused, match="its columns are not known"):
        fit(None, None, create=True)
    assert fit(None, schema_of_ddl("id INT"), create=True).schema == schema_of_ddl("id INT")


@pytest.mark.parametrize(
    ("given", "to", "fits"),
    [
        ("INT", "BIGINT", True),
        ("BIGINT", "DOUBLE", False),
        ("FLOAT", "DOUBLE", True),
        ("DECIMAL(10,2)", "DECIMAL(12,3)", True),
        ("DECIMAL(10,2)", "DECIMAL(10,3)", False),
        ("TIMESTAMP", "TIMESTAMP_NTZ", False),
        ("ARRAY<INT>", "ARRAY<BIGINT>", True),
        ("MAP<STRING, INT>", "MAP<STRING, BIGINT>", True),
        ("STRUCT<a: INT>", "STRUCT<a: BIGINT, b: STRING>", True),
        ("STRUCT<a: INT, c: INT>", "STRUCT<a: BIGINT>", False),
        ("STRING", "INT", False),
    ],
)
def test_a_type_is_converted_if_nothing_is_lost(given: str, to: str, fits: bool) -> None:
    assert widens(schema_of_ddl(f"c {given}").types[0], schema_of_ddl(f"c {to}").types[0]) is fits


def test_a_partition_column_must_exist_and_be_plain() -> None:
    schema = schema_of_rows([("id", "bigint"), ("x", "double"), ("at", "interval day to second")])
    assert schema.field("at").type == pa.string()
    check_partitions(schema, ["id"])
    for name, reason in (("zz", "which the rows do not have"), ("x", "which is double")):
        with pytest.raises(Refused, match=reason):
            check_partitions(schema, [name])
    with pytest.raises(Refused, match="names all columns"):
        check_partitions(schema_of_rows([("id", "bigint")]), ["id"])
