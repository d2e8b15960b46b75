"""Frames with letters: what cannot be processed leaves through `err` in the same query, and none is lost on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from penstock import dead_letters
from penstock.core.errors import RequestError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from penstock.spark.outputs import Leaving

pytestmark = pytest.mark.spark

COLUMNS = "source string, stream string, stream_id bigint, message_id bigint, event_time timestamp, key binary, "
COLUMNS += "value binary, segment string, offset bigint"
GOOD, TYPED, BROKEN = b'{"user":"a","amount":1}', b'{"user":"b","amount":"x"}', b"nope"
SCHEMA = "user string, amount int"
LONGER = (GOOD + b" rest", GOOD + b"," + GOOD, GOOD + b"]} " + GOOD, GOOD + b"}")
"""What follows a document: Spark's parser would not look at it."""


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    values = [GOOD, TYPED, BROKEN, b"", b'[{"user":"c"}]', b'{"user":"\xff"}', b'{"user":"d"}', *LONGER]
    rows = [
        ("roofs", "roof", 7, number, None, bytearray(b"k"), bytearray(value), "connector/roofs/0", 10 * number)
        for number, value in enumerate(values)
    ]
    spark.createDataFrame(rows, COLUMNS).coalesce(1).write.parquet(str(folder / "data"))
    return folder / "data"


@pytest.fixture
def events(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(COLUMNS).parquet(str(folder))


@pytest.fixture
def decoded(events: DataFrame) -> DataFrame:
    return dead_letters.decode_json(events, SCHEMA)


def left(given: object, declared: tuple[str, ...] | None = None) -> Leaving:
    from penstock.spark.outputs import leaving

    return leaving(given, declared)


def rows(frame: DataFrame | None, folder: Path) -> list[Row]:
    """What the sink would get, in one batch."""
    found: list[Row] = []

    def keep(batch: DataFrame, number: int) -> None:
        found.extend(batch.collect())

    assert frame is not None
    writer = frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    return found


def test_what_is_no_json_of_the_schema_leaves_through_err_with_its_bytes(decoded: DataFrame, tmp_path: Path) -> None:
    given = left(decoded.select("user", "amount", "letter"))
    assert given.ports == ("out", "err", "late")
    found = rows(given.frame, tmp_path)
    good = [json.loads(row["value"]) for row in found if row["port"] is None]
    assert good == [{"user": "a", "amount": 1}, {"user": "d", "amount": None}]
    bad = {row["message_id"]: row for row in found if row["port"] == "err"}
    assert {number: row["value"] for number, row in bad.items()} == {
        1: TYPED,
        2: BROKEN,
        3: b"",
        4: b'[{"user":"c"}]',
        5: b'{"user":"\xff"}',
        **dict(enumerate(LONGER, 7)),
    }
    assert bad[2].asDict() == {
        "value": BROKEN,
        "key": b"k",
        "event_time": None,
        "stream": "roof",
        "source": "roofs",
        "stream_id": 7,
        "message_id": 2,
        "port": "err",
        "metadata": bad[2]["metadata"],
    }
    assert msgpack.unpackb(bad[2]["metadata"]) == {
        "reason": "`value` is not valid JSON",
        "segment": "connector/roofs/0",
        "offset": 20,
    }


def test_dead_letters_bypass_later_functions_and_theirs_are_added(decoded: DataFrame, tmp_path: Path) -> None:
    def double(row: dict[str, Any]) -> dict[str, Any]:
        return {"twice": 2 * row["amount"]}

    certain = decoded.selectExpr("*", "1 AS `never null`")
    made = dead_letters.apply(certain, double, "twice int", per="row", keep=["user", "never null"])
    given = left({"results": dead_letters.where(made, "twice > 100")})
    assert given.ports == ("results", "err", "late")
    found = rows(given.frame, tmp_path)
    assert {row["message_id"] for row in found} == {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
    assert {row["port"] for row in found} == {"err"}
    (last,) = [row for row in found if row["message_id"] == 6]
    assert last["value"] == b'{"user":"d"}'
    assert msgpack.unpackb(last["metadata"])["reason"].startswith("TypeError: unsupported operand")
    line = double.__code__.co_firstlineno + 1
    assert msgpack.unpackb(last["metadata"])["reason"].endswith(f"(at test_frames.py:{line})")


def test_a_place_of_its_own_for_what_is_decoded(events: DataFrame, decoded: DataFrame) -> None:
    into = dead_letters.decode_json(events, SCHEMA, into="data")
    assert into.columns == [*events.columns, "data", "letter"]
    assert decoded.columns == [*events.columns, "user", "amount", "letter"]
    failing = dead_letters.decode_json(decoded.select("user", "letter"), "x int", column="user", on_error="fail")
    assert failing.columns == ["user", "letter", "x"]


def test_whoever_wants_to_fail_does(events: DataFrame, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    for number in (3, 7, 8):
        failing = dead_letters.decode_json(events.where(f"message_id = {number}"), SCHEMA, on_error="fail")
        assert "letter" not in failing.columns
        with pytest.raises(StreamingQueryException, match=r"`value` .*, at connector/roofs/0@"):
            rows(failing, tmp_path / str(number))


def test_split_lets_the_rest_go_where_dead_letters_cannot(decoded: DataFrame, tmp_path: Path) -> None:
    good, bad = dead_letters.split(decoded)
    assert bad.columns == ["letter"]
    assert left({"out": good.groupBy("user").count(), "err": bad}, ("out",)).ports == ("out", "err", "late")
    found = rows(left({"out": good.select("user"), "err": bad}).frame, tmp_path)
    assert sorted(row["port"] for row in found) == ["err"] * 9 + ["out"] * 2


LOST: dict[str, tuple[Callable[[DataFrame], Any], str]] = {
    "filter": (lambda f: f.where("amount > 1"), r"filter \(amount > 1\) ignores `letter`"),
    "select": (lambda f: f.select("user"), "a select leaves out the column `letter`"),
    "rename": (lambda f: f.withColumnRenamed("letter", "l"), "a select leaves out"),
    "aggregate": (lambda f: f.groupBy("user").count(), "an aggregate above rows"),
    "duplicates": (lambda f: f.dropDuplicates(["user"]), "dropDuplicates above rows"),
    "join": (lambda f: f.join(f.sparkSession.range(3), f["message_id"] == 1), "a join above rows"),
    "explode": (lambda f: f.selectExpr("letter", "explode(array(1))"), "explode above rows"),
    "function": (lambda f: f.mapInArrow(lambda batches: batches, "user string"), "MapInArrow above rows"),
    "deeper": (lambda f: dead_letters.where(f.where("amount > 1"), "amount > 2"), "ignores `letter`"),
    "next": (lambda f: dead_letters.decode_json(f.where("amount > 1"), "x int", column="user"), "ignores"),
    "union": (lambda f: f.union(f), "the same dead letters twice"),
    "ports": (lambda f: {"a": f.select("user", "letter"), "b": f.select("letter")}, "the same dead letters twice"),
}


@pytest.mark.parametrize("case", LOST)
def test_a_plan_that_would_lose_dead_letters_or_double_them_is_refused(case: str, decoded: DataFrame) -> None:
    make, said = LOST[case]
    with pytest.raises(RequestError, match=said) as caught:
        left(make(decoded))
    assert caught.value.hint


def test_plans_that_keep_dead_letters_or_discard_them_by_name_are_accepted(
    decoded: DataFrame, spark: SparkSession
) -> None:
    decoded.createOrReplaceTempView("decoded_events")
    for text in (
        "SELECT user, letter FROM decoded_events",
        "WITH d AS (FROM decoded_events) SELECT user, letter FROM d",
    ):
        assert left(spark.sql(text)).ports == ("out", "err", "late")
    assert left(decoded.where("letter IS NULL AND amount > 1").select("user")).ports == ("out",)
    kept = decoded.repartition(2).select("user", "letter").withColumn("more", decoded["user"])
    assert left(kept, ("results",)).ports == ("results", "err", "late")
    others = decoded.where("letter IS NULL").drop("letter").select("user")
    assert left({"a": decoded.select("user", "letter"), "b": others}).ports == ("a", "b", "err", "late")


def test_a_column_of_that_name_and_another_type_is_a_column_like_others(events: DataFrame, tmp_path: Path) -> None:
    given = left(events.selectExpr("'x' AS letter"))
    assert given.ports == ("out",)
    assert {row["value"] for row in rows(given.frame, tmp_path)} == {b'{"letter":"x"}'}


def test_what_cannot_be_meant_is_refused(events: DataFrame, decoded: DataFrame) -> None:
    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: dead_letters.decode_json(events, "Key string"), "has a column `Key` already"),
        (lambda: dead_letters.decode_json(events, SCHEMA, column="nothing"), "no column `nothing`"),
        (lambda: dead_letters.decode_json(events, SCHEMA, on_error="drop"), "on_error='drop' is not valid"),  # type: ignore[arg-type]
        (lambda: dead_letters.apply(events, print, "x int", per="table"), "per='table' is not valid"),  # type: ignore[arg-type]
        (lambda: dead_letters.apply(events, print, "x int", keep=["y"]), "keep names `y`"),
        (lambda: dead_letters.apply(events, print, "key int", keep=["key"]), "`key` would be there twice"),
        (lambda: dead_letters.apply(decoded, print, "x int", keep=["letter"]), "`letter` would be there twice"),
        (lambda: dead_letters.split(events), "the frame has no dead letters"),
        (lambda: dead_letters.decode_json(events.withColumn("letter", events["key"]), "x int"), "of another type"),
    ]
    for make, said in mistakes:
        with pytest.raises(RequestError, match=said) as caught:
            make()
        assert caught.value.hint
