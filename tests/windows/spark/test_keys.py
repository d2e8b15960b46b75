"""Keys of every plain type, windows over windows, and what the state does not allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import windows
from tests.windows.spark.scene import Scene

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark

SECOND = 1_000_000
MINUTE = windows.tumbling("1 minute")
KEYS = {
    "text": "nullif(text, '')",
    "bytes": "cast(nullif(text, '') as binary)",
    "flag": "number > 1",
    "byte": "cast(number as tinyint)",
    "long": "number * 10000000000",
    "float": "if(number = 1, cast('NaN' as double), if(number = 2, -0.0D, 0.0D))",
    "money": "cast(number as decimal(20, 2))",
    "day": "date_add(date '1969-12-31', cast(number as int))",
    "instant": "timestamp_micros(number)",
    "local": "cast('2026-03-29 02:30:00' as timestamp_ntz)",
}


class Range(windows.Aggregate):
    """The greatest minus the least value, with a class that only this file defines."""

    inputs = ("number",)

    def add(self, columns: Any, groups: windows.Groups, count: int) -> pa.Array:
        values = columns[0].to_numpy()
        return self._pairs(values, values, groups, count)

    def merge(self, partials: pa.Array, groups: windows.Groups, count: int) -> pa.Array:
        return self._pairs(partials.field("low").to_numpy(), partials.field("high").to_numpy(), groups, count)

    def result(self, partials: pa.Array) -> pa.Array:
        return pa.compute.subtract(partials.field("high"), partials.field("low"))

    def _pairs(self, lows: Any, highs: Any, groups: windows.Groups, count: int) -> pa.Array:
        low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
        np.minimum.at(low, groups, lows)
        np.maximum.at(high, groups, highs)
        return pa.StructArray.from_arrays([pa.array(low), pa.array(high)], ["low", "high"])


def keyed(events: DataFrame) -> DataFrame:
    rows = events.selectExpr("event_time", "from_json(cast(value as string), 'text string, number bigint') v")
    rows = rows.select("event_time", "v.*").selectExpr(
        "event_time", "number", *(f"{e} as {k}" for k, e in KEYS.items())
    )
    return windows.aggregate(rows, windows.tumbling("1 second"), keys=[*KEYS], n=windows.count(), range=Range())


def whole(events: DataFrame) -> DataFrame:
    rows = events.selectExpr("event_time", "cast(get_json_object(cast(value as string), '$.number') as bigint) number")
    return windows.aggregate(rows, windows.tumbling("1 second"), buckets=2, n=windows.count(), range=Range())


def plain(row: Any) -> dict[str, Any]:
    """Comparable, with one zero, as in Spark's own grouping."""
    values = row.asDict(recursive=True)
    values = {name: bytes(value) if isinstance(value, bytearray) else value for name, value in values.items()}
    return values | {"float": values["float"] + 0.0}


def test_keys_can_be_of_every_plain_type_and_null(scene: Scene) -> None:
    rows = [("a", 1), ("a", 1), ("", 2), ("", 2), ("b", 3)]
    scene.ingest(*((1, 100, {"text": text, "number": number}) for text, number in rows))
    scene.ingest((1, 2 * SECOND, {"text": "end", "number": 9}))
    found = [plain(row) for row in scene.run(keyed)]
    expected = scene.spark.createDataFrame(rows, "text string, number bigint").distinct()
    wanted = [plain(row) for row in expected.selectExpr(*(f"{e} as {k}" for k, e in KEYS.items())).collect()]
    assert sorted(repr({name: row[name] for name in KEYS}) for row in found) == sorted(map(repr, wanted))
    assert sorted(row["n"] for row in found) == [1, 2, 2]


def test_without_keys_there_is_one_result_and_a_later_run_needs_the_same_plan(scene: Scene) -> None:
    scene.ingest(*((1, 100, {"number": number}) for number in (5, 1, 9)))
    scene.ingest((1, 2 * SECOND, {"number": 4}))
    (row,) = scene.run(whole)
    assert (row["n"], row["range"], row["pane"], row["revision"]) == (3, 8, "on_time", 0)
    scene.ingest((1, 4 * SECOND, {"number": 4}))

    def other_window(events: DataFrame) -> DataFrame:
        return windows.aggregate(events, windows.tumbling("2 seconds"), buckets=2, n=windows.count())

    with pytest.raises(Exception, match="was written by other windows, keys or aggregates") as caught:
        scene.run(other_window)
    assert "penstock pipeline reset" in str(caught.value)


def test_a_bucket_that_outgrows_its_limit_ends_the_query_with_a_hint(scene: Scene) -> None:
    scene.ingest(*((1, 100, {"text": f"{number}", "number": number}) for number in range(300)))

    def limited(events: DataFrame) -> DataFrame:
        keys = [events["message_id"]]
        return windows.aggregate(events, MINUTE, keys=keys, buckets=1, bucket_bytes_max="1KiB", n=windows.count())

    with pytest.raises(Exception, match="the limit is 1,024") as caught:
        scene.run(limited)
    assert "Use more buckets" in str(caught.value)


def test_windows_over_windows_in_one_query_lose_nothing_and_have_no_late_events(scene: Scene) -> None:
    for second in range(6):
        scene.ingest(*((1, second * SECOND + number, {"number": number}) for number in range(3)))
    scene.ingest((1, 0, {"number": 9}), (1, 8 * SECOND, {"number": 0}))

    def chained(events: DataFrame) -> DataFrame:
        inner = windows.aggregate(events, windows.tumbling("1 second"), buckets=2, name="inner", n=windows.count())
        return windows.aggregate(
            inner, windows.tumbling("2 seconds"), buckets=2, name="outer", n=windows.sum("n"), panes=windows.count()
        )

    rows = scene.run(chained)
    assert sorted((row["n"], row["panes"], row["pane"]) for row in rows) == [(6, 2, "on_time")] * 3
    assert [late.payload for late in scene.left()] == [b'{"number": 9}'], "of the inner one"
    assert {one["operator"]: one["late_kept"] for one in scene.numbers()} == {"inner": 1, "outer": 0}
