"""What the state contains, which plans may continue it, and how large it may become."""

import pickle
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from penstock.core.errors import Damaged, LimitExceeded, RequestError
from penstock.windows.aggregates import Aggregate, Collect, Count, Groups, Max, Sum
from penstock.windows.engine import Plan, advance, prepare
from penstock.windows.kinds import Session, Sliding, Tumbling
from tests.windows.engine.driving import DictState, Driver, table_of

PLAN = Plan(
    window=Tumbling(size_us=10),
    keys=("key",),
    aggregates={"n": Count()},
    schema=pa.schema({"key": pa.string(), "value": pa.int64()}),
    buckets=1,
    carry=("value",),
    lateness_us=20,
)


def row(time: int, key: str = "k", value: int = 1) -> dict[str, Any]:
    return {"t": time, "key": key, "value": value}


def test_only_windows_that_were_touched_are_written() -> None:
    driver = Driver(PLAN)
    driver.batch([[row(0), row(10), row(20)]], 5)
    state = driver.states[0]
    assert sorted(state.puts) == [0, 10, 20]
    state.puts.clear()
    driver.batch([[row(11)]], 25)
    assert state.puts == [10]


def test_a_batch_that_changes_nothing_writes_nothing() -> None:
    driver = Driver(PLAN)
    driver.batch([[row(0)]], 5)
    state = driver.states[0]
    state.puts.clear()
    state.head, before = None if state.head is None else bytes(state.head), state.head
    driver.batch([], 5)
    assert state.head == before
    assert not state.puts


def test_state_of_a_newer_version_is_refused_with_both_versions() -> None:
    driver = Driver(PLAN)
    driver.batch([[row(0)]], 5)
    state = driver.states[0]
    assert state.head is not None
    version, *fields = msgpack.unpackb(state.head, strict_map_key=False)
    state.head = msgpack.packb([version + 1, *fields, "unknown"])
    with pytest.raises(
        RequestError, match=rf"newer version of Penstock .format {version + 1}; this version reads format {version}"
    ):
        driver.batch([[row(1)]], 6)


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAN, window=Tumbling(size_us=20)),
        replace(PLAN, window=Tumbling(size_us=10, offset_us=1)),
        replace(PLAN, window=Sliding(size_us=10, slide_us=5)),
        replace(PLAN, window=Session(gap_us=10)),
        replace(PLAN, keys=("value",)),
        replace(PLAN, keys=("key", "value")),
        replace(PLAN, aggregates={"n": Count(("value",))}),
        replace(PLAN, aggregates={"n": Sum(("value",))}),
        replace(PLAN, schema=pa.schema({"key": pa.binary(), "value": pa.int64()})),
        replace(PLAN, buckets=2),
        replace(PLAN, meaning=("another column",)),
    ],
)
def test_an_incompatible_plan_does_not_take_over_the_state(other: Plan) -> None:
    driver = Driver(PLAN)
    driver.batch([[row(0)]], 5)
    with pytest.raises(RequestError, match="other windows") as raised:
        advance(other, 0, driver.states[0], [], 5, 6)
    assert "reset" in raised.value.hint


def test_the_parameters_of_an_aggregate_are_part_of_the_plan() -> None:
    some, more = (replace(PLAN, aggregates={"n": Collect(("value", "t"), limit)}) for limit in (5, 6))
    assert some.stored != more.stored


@pytest.mark.parametrize(
    "other", [replace(PLAN, late="drop"), replace(PLAN, carry=()), replace(PLAN, bucket_bytes_max=9999)]
)
def test_options_that_the_state_does_not_depend_on_may_change(other: Plan) -> None:
    driver = Driver(PLAN)
    driver.batch([[row(0)]], 5)
    assert advance(other, 0, driver.states[0], [], 5, 10).panes.num_rows == 1


def test_the_fingerprint_of_a_plan_is_the_same_in_another_process() -> None:
    assert pickle.loads(pickle.dumps(PLAN)).fingerprint == PLAN.fingerprint


def test_a_batch_that_does_not_begin_where_the_state_ends_is_refused() -> None:
    driver = Driver(PLAN)
    driver.batch([[row(0)]], 5)
    for before in (None, 4, 6):
        with pytest.raises(RequestError, match="ends at watermark 5"):
            advance(PLAN, 0, driver.states[0], [], before, 10)


def test_rows_checked_against_another_watermark_are_refused() -> None:
    blobs = prepare(PLAN, table_of(PLAN, [row(0)]), 3).partials
    with pytest.raises(RequestError, match="compared with watermark 3"):
        advance(PLAN, 0, DictState(), blobs.values(), 5, 10)


def test_a_bucket_over_its_limit_is_an_error_and_stays_unchanged() -> None:
    plan = replace(PLAN, bucket_bytes_max=5000)
    driver = Driver(plan)
    driver.batch([[row(0, f"key {number}") for number in range(100)]], 5)
    before = deepcopy(driver.states[0])
    with pytest.raises(LimitExceeded, match="bucket 0 use") as raised:
        driver.batch([[row(0, f"other {number}") for number in range(2000)]], 5)
    assert "more buckets" in raised.value.hint
    assert driver.states[0] == before


def test_missing_state_that_the_index_lists_is_damage() -> None:
    driver = Driver(PLAN)
    driver.batch([[row(0)]], 5)
    driver.states[0].data.clear()
    with pytest.raises(Damaged, match="missing"):
        driver.batch([[row(0)]], 5)


def test_statistics_count_windows_keys_and_bytes() -> None:
    driver = Driver(PLAN)
    driver.batch([[row(0, "a"), row(0, "b"), row(10, "a")]], 5)
    stats = driver.stats[0]
    assert (stats.open_windows, stats.keys) == (2, 3)
    assert stats.state_bytes == sum(map(len, driver.states[0].data.values()))


def test_late_rows_are_counted_since_the_state_was_created() -> None:
    driver = Driver(PLAN)
    driver.batch([], 1000)
    for _ in range(3):
        _, late = driver.batch([[row(0, value=7)]], 1000)
        assert late == [{"value": 7, "t": 0, "watermark": 1000, "behind": 1000}]
    assert driver.stats[0].late_kept == 3


def test_results_have_the_schemas_of_the_plan_even_without_rows() -> None:
    result = advance(PLAN, 0, DictState(), [], None, None)
    assert result.panes.schema == PLAN.pane_schema
    assert result.late.schema == PLAN.late_schema


def test_without_rows_no_blobs_are_made() -> None:
    assert prepare(PLAN, table_of(PLAN, []), None).partials == {}


def test_record_batches_and_chunked_tables_are_prepared_alike() -> None:
    table = table_of(PLAN, [row(time) for time in range(5)])
    pieces = pa.concat_tables([table.slice(0, 2), table.slice(2)])
    [batch] = table.to_batches()
    results = [
        advance(PLAN, 0, DictState(), prepare(PLAN, each, None).partials.values(), None, 10).panes
        for each in (table, pieces, batch)
    ]
    assert results[0] == results[1] == results[2]
    assert results[0].column("n").to_pylist() == [5]


def test_columns_are_cast_to_the_types_of_the_plan() -> None:
    schema = pa.schema({"key": pa.string(), "value": pa.timestamp("us", "UTC")})
    plan = replace(PLAN, schema=schema, aggregates={"n": Max(("value",))})
    table = table_of(PLAN, [row(0, value=7)])
    elsewhere = table.set_column(1, "value", table.column("value").cast(pa.timestamp("us", "Europe/Berlin")))
    panes = advance(plan, 0, DictState(), prepare(plan, elsewhere, None).partials.values(), None, 10).panes
    assert panes.schema.field("n").type == pa.timestamp("us", "UTC")
    assert panes.column("n").cast(pa.int64()).to_pylist() == [7]


def test_blobs_may_come_in_any_order() -> None:
    blobs = [prepare(PLAN, table_of(PLAN, [row(0), row(time)]), None).partials[0] for time in (1, 11)]
    one, other = (advance(PLAN, 0, DictState(), order, None, 30).panes for order in (blobs, blobs[::-1]))
    assert one.sort_by("window_start") == other.sort_by("window_start")


@pytest.mark.parametrize(
    "change",
    [
        {"lateness_us": -1},
        {"keys": ("nothing",)},
        {"carry": ("nothing",)},
        {"aggregates": {"n": Sum(("nothing",))}},
        {"aggregates": {"n": Sum(("key",))}},
        {"aggregates": {"key": Count()}},
        {"aggregates": {"pane": Count()}},
    ],
)
def test_plans_that_contradict_themselves_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        replace(PLAN, **change)


@pytest.mark.parametrize(
    ("kind", "lengths"),
    [
        (Tumbling, {"size_us": 0}),
        (Tumbling, {"size_us": -5}),
        (Tumbling, {"size_us": 2**63}),
        (Tumbling, {"size_us": 10, "offset_us": 2**63}),
        (Sliding, {"size_us": 10, "slide_us": 0}),
        (Sliding, {"size_us": 10, "slide_us": 11}),
        (Session, {"gap_us": 0}),
    ],
)
def test_invalid_window_lengths_are_refused(kind: type[Any], lengths: dict[str, int]) -> None:
    with pytest.raises(RequestError):
        kind(**lengths)


class Wrong(Count):
    """A user-defined aggregate with a bug."""

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        return partials.slice(0, count - 1)


def test_an_aggregate_that_returns_too_few_partials_is_named() -> None:
    driver = Driver(replace(PLAN, aggregates={"mine": Wrong()}))
    with pytest.raises(RequestError, match="'mine' returned 0 values of int64, not 1"):
        driver.batch([[row(0)]], 5)


class Plain(Aggregate):
    """A user-defined aggregate that is not a dataclass."""

    inputs = ("value",)

    def __init__(self, step: int) -> None:
        self.step = step
        self._cache = object()

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> Any:
        return Max(self.inputs).add(columns, groups, count)

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        return Max(self.inputs).merge(partials, groups, count)

    def result(self, partials: pa.Array) -> Any:
        return partials


def test_a_user_defined_aggregate_with_another_parameter_is_another_plan() -> None:
    one, same, other = (replace(PLAN, aggregates={"mine": Plain(step)}) for step in (1, 1, 2))
    assert one.stored == same.stored
    assert one.stored != other.stored


class NumPyPartials(Plain):
    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> Any:
        return super().add(columns, groups, count).to_numpy(zero_copy_only=False)


class NumPyResults(Plain):
    def result(self, partials: pa.Array) -> Any:
        return partials.to_numpy(zero_copy_only=False)


@pytest.mark.parametrize(("kind", "method"), [(NumPyPartials, "add"), (NumPyResults, "result")])
def test_an_aggregate_that_does_not_return_an_arrow_array_is_refused(kind: type[Plain], method: str) -> None:
    with pytest.raises(RequestError, match=f"`{method}` of the aggregate {kind.__name__} returns ndarray") as caught:
        replace(PLAN, aggregates={"mine": kind(1)})
    assert "pa.array" in caught.value.hint


def test_an_aggregate_that_does_not_return_an_arrow_array_once_there_are_rows_is_refused() -> None:
    class Sometimes(Plain):
        def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> Any:
            return super().add(columns, groups, count) if not count else None

    with pytest.raises(RequestError, match="'mine' returned NoneType, not 1 of int64"):
        Driver(replace(PLAN, aggregates={"mine": Sometimes(1)})).batch([[row(0)]], 5)
