"""`run_pipeline` runs users' pipelines as production does: on a real Spark session, through a real worker."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import dead_letters, windows
from penstock.core.errors import RequestError
from penstock.spark import pipeline
from penstock.testing import Event, run_pipeline
from penstock.testing.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"
ORDER = "shop STRING, amount DOUBLE"


def per_shop(orders: DataFrame) -> DataFrame:
    return windows.aggregate(
        orders, windows.tumbling("10 seconds"), keys=["shop"], orders=windows.count(), total=windows.sum("amount")
    )


def order(second: float, shop: str = "north", amount: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"shop": shop, "amount": amount, "event_time": second, **more}


def test_windows_close_and_late_events_leave_in_the_epochs_of_the_test(spark: SparkSession) -> None:
    """The application's own file names codec and schema; the watermark follows from the events."""
    epochs = [
        [order(1), order(2, amount=2), Event(value=b"no order", event_time=3)],
        [order(11)],
        [order(4, amount=9), order(12)],
    ]
    result = run_pipeline(EXAMPLES / "shop.yaml", {"orders": epochs}, spark=spark)
    first, second, third, last = result.epochs
    assert [(one.reason, one.value, one.source) for one in first.dead_letters] == [
        ("`value` is not valid JSON", b"no order", "orders")
    ]
    assert first.dead_letters[0].segment == "connector/orders/0"
    assert first.windows == [], "the watermark is at second 3"
    (pane,) = second.windows
    assert (pane.start.second, pane.end.second, pane.pane) == (0, 10, "on_time")
    assert pane.values == {"shop": "north", "orders": 2, "total": 3.0}
    assert [(one.watermark, one.behind_us) for one in third.late] == [(11_000_000, 7_000_000)]
    assert third.late[0].value == b'{"shop":"north","amount":9}'
    assert [one.values["orders"] for one in last.windows] == [2], "the end of the source closes the last window"
    assert [one.watermark for one in result.epochs[:2]] == [_second(3), _second(11)]
    assert (len(result.dead_letters), len(result.late), len(result.windows)) == (1, 1, 2)
    assert result.rows == [one.row for one in result.windows]


def test_a_given_watermark_is_exactly_the_one_that_windows_see(spark: SparkSession) -> None:
    epochs = [[order(25), order(1)], [order(2)], []]
    result = run_pipeline(per_shop, {"orders": epochs}, schema=ORDER, watermark=[5, None, 20], spark=spark)
    assert [one.watermark for one in result.epochs] == [_second(5), _second(5), _second(20)]
    assert result.epochs[1].late == [], "the window is still open at second 5"
    assert [one.values["orders"] for one in result.windows] == [2], "and the one of second 25 at second 20"
    assert [len(one.windows) for one in result.epochs] == [0, 0, 1]


def test_the_slowest_stream_sets_the_watermark(spark: SparkSession) -> None:
    given = [[order(100, stream="fast"), order(1, stream="slow")], [order(3, stream="slow")]]
    result = run_pipeline(per_shop, {"orders": given}, schema=ORDER, end=False, spark=spark)
    assert [one.watermark for one in result.epochs] == [_second(1), _second(3)]
    assert (result.late, result.windows) == ([], [])


TIMED = """
connector:
  - id: orders
    type: http-server
    config: {port: 8080}
    codec: json
    schema: shop STRING, amount DOUBLE
    event_time: {field: at, format: s}

pipeline:
  - id: per-shop
    spark: shop.py:per_shop

binding:
  id: main
  links:
    connector/orders/out: pipeline/per-shop/in
"""


@pytest.fixture
def timed(tmp_path: Path) -> Path:
    """An application that finds event times in the data."""
    (tmp_path / "shop.py").write_bytes((EXAMPLES / "shop.py").read_bytes())
    file = tmp_path / "shop.yaml"
    file.write_text(TIMED)
    return file


def test_what_has_no_event_time_in_its_data_is_a_dead_letter_of_its_epoch(spark: SparkSession, timed: Path) -> None:
    at_one, untimed = {"shop": "north", "amount": 1.0, "at": 1}, {"shop": "north", "amount": 2.0}
    epochs = [[at_one, Event(data=untimed, key="k")], [untimed], [{**at_one, "at": "soon"}, {**at_one, "at": 12}]]
    result = run_pipeline(timed, {"orders": epochs}, spark=spark)
    assert [[one.value for one in epoch.dead_letters] for epoch in result.epochs] == [
        [b'{"shop":"north","amount":2.0}'],
        [b'{"shop":"north","amount":2.0}'],
        [b'{"shop":"north","amount":1.0,"at":"soon"}'],
        [],
    ]
    first, _, last = result.dead_letters
    assert (first.source, first.stream, first.key, first.segment) == ("orders", "test", b"k", None)
    assert first.reason == 'no event time: the field "at" is missing'
    assert "\"at\" ('soon')" in last.reason
    assert [one.values["total"] for one in result.windows] == [1.0, 1.0]


def test_an_event_time_beside_the_data_is_refused_where_the_data_have_it(spark: SparkSession, timed: Path) -> None:
    with pytest.raises(RequestError, match="takes it from the field 'at' of the data") as refused:
        run_pipeline(timed, {"orders": [order(1, at=5)]}, spark=spark)
    assert "in the format 's'" in str(refused.value.hint)


@pipeline(outputs=["large", "small"])
def by_size(numbers: DataFrame) -> dict[str, DataFrame]:
    """Raw bytes in, as a program's source sends them."""

    def parsed(row: Any) -> dict[str, int]:
        return {"number": int(row["value"])}

    parsed_numbers = dead_letters.apply(numbers, parsed, "number int", per="row", keep=["key"])
    return {
        "large": parsed_numbers.where("number >= 10").select("number"),
        "small": parsed_numbers.where("number < 10").selectExpr("cast(number as string) value", "key"),
    }


def test_rows_are_those_of_each_port_and_poison_rows_are_dead_letters(spark: SparkSession) -> None:
    given = [Event(value=text, key=f"k{text}") for text in ("7", "12", "x", "10")]
    result = run_pipeline(by_size, {"numbers": given}, spark=spark)
    assert result["large"] == [{"number": 12}, {"number": 10}], "in the order of the events"
    assert result["small"] == [{"value": b"7"}]
    assert result["small"][0].key == b"k7"
    (dead_letter,) = result.dead_letters
    assert (dead_letter.value, dead_letter.key) == (b"x", b"kx")
    assert dead_letter.reason.startswith("ValueError: invalid literal for int()")
    with pytest.raises(RequestError, match="no port 'big'"):
        result["big"]


def test_an_error_in_the_function_is_raised_as_it_is(spark: SparkSession) -> None:
    def broken(orders: DataFrame) -> DataFrame:
        raise LookupError("no such shop")

    with pytest.raises(LookupError, match="no such shop") as raised:
        run_pipeline(broken, {"orders": []}, spark=spark)
    assert raised.traceback[-1].path == Path(__file__)


def test_an_error_in_a_task_names_the_user_s_line(spark: SparkSession) -> None:
    def checked(orders: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        def check(value: bytes) -> str:
            raise LookupError("no such shop")

        return orders.select(functions.udf(check, "string", useArrow=False)("value").alias("checked"))

    with pytest.raises(RequestError, match="no such shop") as raised:
        run_pipeline(checked, {"orders": [b"x"]}, spark=spark)
    assert f'File "{__file__}"' in str(raised.value)
    assert 'raise LookupError("no such shop")' in str(raised.value)


def test_nothing_is_left_running(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[RunningWorker] = []
    start = RunningWorker.start

    def noted(worker: RunningWorker) -> None:
        started.append(worker)
        start(worker)

    monkeypatch.setattr(RunningWorker, "start", noted)
    result = run_pipeline(lambda orders: orders.where("amount > 1"), {"orders": [order(1)]}, schema=ORDER, spark=spark)
    assert result.rows == []
    assert not started[0]._thread.is_alive()
    assert spark.streams.active == []


def test_several_watermarks_need_as_many_epochs() -> None:
    with pytest.raises(RequestError, match="2 watermarks for 1 epochs"):
        run_pipeline(per_shop, {"orders": [order(1)]}, watermark=[1, 2])


def _second(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)
