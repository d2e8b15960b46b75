"""What runs in Spark's Python workers: rows that a function raises for become letters with their original bytes."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from penstock.spark.dead_letters.batches import Applied
from penstock.spark.dead_letters.column import LETTER, letter_arrow

UTC_US = pa.timestamp("us", "UTC")
WHEN = datetime(2026, 1, 31, 12, tzinfo=UTC)
OUT = pa.schema([("y", pa.int64())])


def events(*values: bytes | None, **more: Any) -> pa.RecordBatch:
    count = len(values)
    columns = {
        "value": pa.array(values, pa.binary()),
        "key": pa.array(["k"] * count, pa.string()),
        "event_time": pa.array([WHEN] * count, UTC_US),
        "source": pa.array(["s"] * count, pa.string()),
        "stream_id": pa.array([7] * count, pa.int64()),
        "segment": pa.array(["connector/s/0"] * count, pa.string()),
        "offset": pa.array(range(count), pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns | more)


def applied(
    function: Callable[..., Any],
    batch: pa.RecordBatch,
    *,
    by_row: bool = False,
    keep: tuple[str, ...] = (),
    keeps_errors: bool = True,
) -> list[dict[str, Any]]:
    lettered = LETTER in batch.schema.names
    made = Applied(function, by_row, OUT, keep, lettered, keeps_errors).batches(iter([batch]))
    return [row for one in made for row in one.to_pylist()]


def lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = batch.column("value").to_pylist()
    if b"bad" in values:
        raise ValueError("bad")
    return pa.RecordBatch.from_pydict({"y": pa.array([len(value or b"") for value in values], pa.int32())})


def test_poison_rows_become_dead_letters_and_the_rest_continues() -> None:
    rows = applied(lengths, events(b"a", b"bad", b"ccc"), keep=("offset",))
    assert [(row["y"], row["offset"]) for row in rows if row[LETTER] is None] == [(1, 0), (3, 2)]
    (letter,) = [row[LETTER] for row in rows if row[LETTER] is not None]
    assert letter == {
        "port": "err",
        "reason": f"ValueError: bad (at test_batches.py:{lengths.__code__.co_firstlineno + 3})",
        "value": b"bad",
        "key": b"k",
        "event_time": WHEN,
        "source": "s",
        "stream": None,
        "stream_id": 7,
        "message_id": None,
        "segment": "connector/s/0",
        "offset": 1,
        "watermark": None,
        "behind_us": None,
    }


def test_without_its_value_a_dead_letter_has_the_json_of_its_row_and_no_position() -> None:
    batch = events(b"a").drop_columns(["value"]).append_column("data", pa.array([b"\xff"]))
    (row,) = applied(lambda batch: batch["nothing"], batch)
    assert json.loads(row[LETTER]["value"]) == {
        "key": "k",
        "event_time": "2026-01-31 12:00:00+00:00",
        "source": "s",
        "stream_id": 7,
        "segment": "connector/s/0",
        "offset": 0,
        "data": "/w==",
    }
    assert (row[LETTER]["segment"], row[LETTER]["offset"]) == (None, None)


def test_times_beyond_the_calendar_do_not_keep_a_row_from_being_a_dead_letter() -> None:
    times = pa.array([10**18], UTC_US)
    made = Applied(dict, True, OUT, (), False, True)
    (batch,) = made.batches(iter([events(b"a", event_time=times).drop_columns(["value"])]))
    letter = batch.column(LETTER)
    assert letter.field("reason").to_pylist() == ["OverflowError: date value out of range"]
    assert "01:46:40" in json.loads(letter.field("value")[0].as_py())["event_time"]
    assert letter.field("event_time").cast(pa.int64()).to_pylist() == [10**18]


def test_columns_of_other_types_that_have_a_name_of_an_events_are_left_out() -> None:
    batch = events(b"bad", key=pa.array([5]), event_time=pa.array([WHEN.replace(tzinfo=None)], pa.timestamp("us")))
    (row,) = applied(lengths, batch)
    assert (row[LETTER]["key"], row[LETTER]["event_time"], row[LETTER]["value"]) == (None, None, b"bad")


def test_rows_that_are_dead_letters_already_bypass_the_function() -> None:
    letter = {"port": "late", "reason": "old", "value": b"x"}
    batch = events(b"a", b"bad", **{LETTER: pa.array([None, letter], letter_arrow())})
    rows = applied(lengths, batch)
    assert sorted(row[LETTER]["reason"] for row in rows if row[LETTER]) == ["old"]
    assert [row["y"] for row in rows if not row[LETTER]] == [1]


def test_a_function_is_never_given_nothing() -> None:
    letter = {"port": "late", "reason": "old", "value": b"x"}
    batch = events(b"a", **{LETTER: pa.array([letter], letter_arrow())})
    for keeps_errors in (True, False):
        (row,) = applied(lambda batch: batch.column("y")[0], batch, keeps_errors=keeps_errors)
        assert row[LETTER]["reason"] == "old"


def test_by_row_a_function_gives_one_row_or_several_or_none() -> None:
    def function(row: dict[str, Any]) -> Any:
        return {b"one": {"y": 1}, b"two": [{"y": 2}, {"y": 3}], b"none": None}[row["value"]]

    rows = applied(function, events(b"one", b"two", b"none", b"else"), by_row=True, keep=("offset",))
    assert [(row["y"], row["offset"]) for row in rows if not row[LETTER]] == [(1, 0), (2, 1), (3, 1)]
    place = f"test_batches.py:{function.__code__.co_firstlineno + 1}"
    assert [row[LETTER]["reason"] for row in rows if row[LETTER]] == [f"KeyError: b'else' (at {place})"]


def test_results_that_do_not_fit_the_schema_are_errors_of_their_rows() -> None:
    def function(batch: pa.RecordBatch) -> Any:
        texts = [value.decode() for value in batch.column("value").to_pylist()]
        return pa.table({"y": texts})

    rows = applied(function, events(b"12", b"x"))
    assert [row["y"] for row in rows if not row[LETTER]] == [12]
    assert "ArrowInvalid" in next(row[LETTER]["reason"] for row in rows if row[LETTER])
    (row,) = applied(lambda _: 5, events(b"a"))
    assert row[LETTER]["reason"] == "RequestError: the function returns int, not an Arrow batch or table"
    (row,) = applied(lambda batch: pa.table({"y": []}), events(b"a"), keep=("key",))
    assert "0 rows for 1" in row[LETTER]["reason"]


def test_a_null_value_is_an_empty_one_in_a_dead_letter() -> None:
    (row,) = applied(lambda _: 1 / 0, events(None))
    assert row[LETTER]["value"] == b""
    assert row[LETTER]["reason"].startswith("ZeroDivisionError: division by zero (at test_batches.py:")


def test_whoever_wants_to_fail_does_at_an_event_that_is_named() -> None:
    with pytest.raises(ValueError, match="bad") as caught:
        applied(lengths, events(b"a", b"bad"), keeps_errors=False)
    assert caught.value.__notes__ == ["at the event connector/s/0@1"]
    assert applied(lengths, events(b"a"), keeps_errors=False) == [{"y": 1}]
