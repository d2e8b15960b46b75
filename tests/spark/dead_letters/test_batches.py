"""What runs in Spark's Python workers: rows that a function raises for become dead letters, the others continue."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from penstock.spark.dead_letters.batches import Applied
from penstock.spark.side_outputs import Rejected

UTC_US = pa.timestamp("us", "UTC")
WHEN = datetime(2026, 1, 31, 12, tzinfo=UTC)
OUT = pa.schema([("y", pa.int64())])


def events(*values: bytes | None, **more: Any) -> pa.RecordBatch:
    count = len(values)
    columns = {
        "value": pa.array(values, pa.binary()),
        "key": pa.array(["k"] * count, pa.string()),
        "event_time": pa.array([WHEN] * count, UTC_US),
        "segment": pa.array(["connector/s/0"] * count, pa.string()),
        "offset": pa.array(range(count), pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns | more)


class Staged:
    """Side outputs that are only recorded."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.reasons: list[str] = []

    def stage(self, rows: pa.Table, rejected: Rejected) -> None:
        assert rejected.port == "err"
        self.rows += rows.to_pylist()
        self.reasons += rejected.reasons


def applied(
    function: Callable[..., Any], batch: pa.RecordBatch, *, by_row: bool = False, keep: tuple[str, ...] = ()
) -> tuple[list[dict[str, Any]], Staged]:
    """The rows of the result, and the dead letters."""
    staged = Staged()
    found = Applied(function, by_row, OUT, keep).rejecting(iter([batch]), staged)  # type: ignore[arg-type]
    return [row for one in found for row in one.to_pylist()], staged


def failing(function: Callable[..., Any], batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return [row for one in Applied(function, False, OUT, ()).all_or_fail(iter([batch])) for row in one.to_pylist()]


def lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = batch.column("value").to_pylist()
    if b"bad" in values:
        raise ValueError("bad")
    return pa.RecordBatch.from_pydict({"y": pa.array([len(value or b"") for value in values], pa.int32())})


def test_poison_rows_become_dead_letters_and_the_rest_continues() -> None:
    rows, staged = applied(lengths, events(b"a", b"bad", b"ccc"), keep=("offset",))
    assert rows == [{"y": 1, "offset": 0}, {"y": 3, "offset": 2}]
    assert [(row["value"], row["segment"], row["offset"]) for row in staged.rows] == [(b"bad", "connector/s/0", 1)]
    assert staged.reasons == [f"ValueError: bad (at test_batches.py:{lengths.__code__.co_firstlineno + 3})"]


def test_a_row_with_a_time_beyond_the_calendar_can_be_a_dead_letter() -> None:
    staged = Staged()
    batch = events(b"a", event_time=pa.array([10**18], UTC_US))
    assert [*Applied(dict, True, OUT, ()).rejecting(iter([batch]), _without_reading(staged))] == []
    assert staged.reasons == ["OverflowError: date value out of range"]


def _without_reading(staged: Staged) -> Any:
    """Python cannot represent such times, so the rows are not read."""

    class Noted:
        def stage(self, rows: pa.Table, rejected: Rejected) -> None:
            staged.reasons += rejected.reasons

    return Noted()


def test_a_function_is_not_called_with_an_empty_batch() -> None:
    assert applied(lambda batch: batch.column("y")[0], events())[0] == []
    assert failing(lambda batch: batch.column("y")[0], events()) == []


def test_a_function_per_row_returns_one_row_or_several_or_none() -> None:
    def function(row: dict[str, Any]) -> Any:
        return {b"one": {"y": 1}, b"two": [{"y": 2}, {"y": 3}], b"none": None}[row["value"]]

    rows, staged = applied(function, events(b"one", b"two", b"none", b"else"), by_row=True, keep=("offset",))
    assert [(row["y"], row["offset"]) for row in rows] == [(1, 0), (2, 1), (3, 1)]
    place = f"test_batches.py:{function.__code__.co_firstlineno + 1}"
    assert staged.reasons == [f"KeyError: b'else' (at {place})"]


def test_results_that_do_not_match_the_schema_are_errors_of_their_rows() -> None:
    def function(batch: pa.RecordBatch) -> Any:
        texts = [value.decode() for value in batch.column("value").to_pylist()]
        return pa.table({"y": texts})

    rows, staged = applied(function, events(b"12", b"x"))
    assert [row["y"] for row in rows] == [12]
    assert "ArrowInvalid" in staged.reasons[0]
    _, staged = applied(lambda _: 5, events(b"a"))
    assert staged.reasons == ["RequestError: the function returns int, not an Arrow batch or table"]
    _, staged = applied(lambda batch: pa.table({"y": []}), events(b"a"), keep=("key",))
    assert "0 rows for 1" in staged.reasons[0]


def test_with_failing_an_error_names_its_event() -> None:
    with pytest.raises(ValueError, match="bad") as caught:
        failing(lengths, events(b"a", b"bad"))
    assert caught.value.__notes__ == ["at the event connector/s/0@1"]
    assert failing(lengths, events(b"a")) == [{"y": 1}]
