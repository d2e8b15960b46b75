"""A batch that raises is halved until the rows it raises for are alone."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.stored.dead_letters import REASON_CHARACTERS_MAX
from penstock.spark.dead_letters.batches import Poison, halved, reason_of


def of(values: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": pa.array(values, pa.int64())})


def refusing(poison: set[int], calls: list[int]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        for value in batch.column("x").to_pylist():
            if value in poison:
                raise ValueError(f"not {value}")
        return batch

    return function


@given(st.integers(0, 60), st.sets(st.integers(0, 59)))
def test_every_row_comes_out_once_in_order_and_only_poison_rows_fail(count: int, poison: set[int]) -> None:
    calls: list[int] = []
    good: list[int] = []
    bad: list[Poison] = []
    for made in halved(refusing(poison, calls), of([*range(count)])):
        if isinstance(made, Poison):
            bad.append(made)
        else:
            good += made.column("x").to_pylist()
    found = sorted(poison & {*range(count)})
    assert [one.row for one in bad] == found
    assert all(one.reason.startswith(f"ValueError: not {one.row} (at test_halving.py:") for one in bad)
    assert good == [row for row in range(count) if row not in poison]
    assert len(calls) <= 1 + 2 * len(found) * max(1, count.bit_length())


def test_a_batch_without_errors_is_processed_in_one_call() -> None:
    calls: list[int] = []
    assert len([*halved(refusing(set(), calls), of([*range(1000)]))]) == 1
    assert calls == [1000]
    assert [*halved(refusing(set(), calls), of([]))] == []


def test_a_reason_is_the_text_of_the_exception_with_a_bounded_length() -> None:
    assert reason_of(KeyError("user")) == "KeyError: 'user'"
    assert reason_of(ValueError()) == "ValueError"
    long = reason_of(ValueError("x" * 10_000))
    assert (len(long), long[-1]) == (REASON_CHARACTERS_MAX, "…")


def test_a_reason_has_the_users_line_however_long_the_text_is() -> None:
    def fail() -> None:
        raise ValueError("x" * 10_000)

    with pytest.raises(ValueError, match="x") as caught:
        fail()
    reason = reason_of(caught.value)
    assert len(reason) == REASON_CHARACTERS_MAX
    assert reason.endswith(f"… (at test_halving.py:{fail.__code__.co_firstlineno + 1})")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


def test_an_unusual_exception_does_not_stop_the_other_rows() -> None:
    assert reason_of(ValueError("half \ud800 a pair")) == "ValueError: half \\ud800 a pair"
    assert reason_of(Mute()) == "Mute: (its text is not available)"
