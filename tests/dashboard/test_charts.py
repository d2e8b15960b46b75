"""Charts, from a worker's history."""

import pytest
from msgspec.structs import replace

from penstock.dashboard.charts import EPOCHS_SHOWN, TIMELINE_EPOCHS, epoch_bars, over_time, phases, timeline
from penstock.protocol.api.history import EpochTimes, WorkerHistory

HISTORY = WorkerHistory(seconds=5, times=[10.0, 15.0], series={"a": [1.0, None], "b": [2.0, 3.0]}, epochs={})


def test_a_line_for_each_series_that_there_is() -> None:
    options = over_time(HISTORY, {"a": "first", "missing": "second"}, "events/s")
    assert [(one["name"], one["data"]) for one in options["series"]] == [("first", [[10_000, 1.0], [15_000, None]])]
    assert options["title"]["text"] == "events/s"


def test_the_first_sample_is_a_point_in_the_last_minute() -> None:
    first = WorkerHistory(seconds=5, times=[100.0], series={"a": [1.0]}, epochs={})
    options = over_time(first, {"a": "first"}, "events/s")
    assert (options["xAxis"]["min"], options["series"][0]["showSymbol"]) == (40_000, True)


def test_a_chart_without_a_series_says_so() -> None:
    options = over_time(HISTORY, {"missing": "x"}, "events/s")
    assert (options["title"]["text"], options["title"]["subtext"]) == ("events/s", "nothing in the last hour")
    assert options["series"] == []


def test_a_chart_says_which_series_the_worker_has_no_room_for() -> None:
    full = replace(HISTORY, not_kept=["x", "y"])
    assert over_time(full, {"a": "first"}, "events/s")["title"]["text"] == "events/s"
    some = over_time(full, {"a": "first", "x": "second", "y": "third"}, "events/s")
    assert some["title"]["text"] == "events/s (2 more are not kept)"
    none = over_time(full, {"x": "second"}, "events/s")
    assert none["title"]["subtext"] == "not kept: the worker has more series than its history has room for"


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (EpochTimes(1, 9.0, 10.0, 12.0, 12.5), (1.0, 2.0, 0.5)),
        (EpochTimes(1, None, 10.0, None, 12.5), (0.0, 2.5, 0.0)),
        (EpochTimes(1, 11.0, 10.0, 12.0, 12.0), (0.0, 2.0, 0.0)),
    ],
)
def test_an_epoch_is_made_of_waiting_spark_and_delivery(
    epoch: EpochTimes, expected: tuple[float, float, float]
) -> None:
    assert phases(epoch) == expected


def test_only_the_last_epochs_are_shown() -> None:
    epochs = [EpochTimes(number, None, 1.0, 2.0, 3.0) for number in range(EPOCHS_SHOWN + 5)]
    options = epoch_bars(epochs)
    assert options["xAxis"]["data"][0] == "5"
    assert [len(one["data"]) for one in options["series"]] == 3 * [EPOCHS_SHOWN]


def test_bytes_are_shown_in_the_unit_of_the_largest() -> None:
    history = WorkerHistory(seconds=5, times=[10.0, 15.0], series={"a": [512.0, 3 * 2**20]}, epochs={})
    options = over_time(history, {"a": "lag"}, "to read", "B")
    assert options["title"]["text"] == "to read, MiB"
    assert [value for _, value in options["series"][0]["data"]] == [0.0, 3.0]


def test_lines_differ_without_colours() -> None:
    lines = over_time(HISTORY, {"a": "first", "b": "second"}, "events/s")["series"]
    assert lines[0]["symbol"] != lines[1]["symbol"]
    assert lines[0]["lineStyle"] != lines[1]["lineStyle"]


def test_an_epoch_stands_in_the_timeline_where_it_was_and_the_running_one_reaches_to_now() -> None:
    options = timeline([EpochTimes(7, 88.0, 90.0, 93.0, 94.0)], 100.0, 8, 2.5)
    assert options["yAxis"]["data"] == ["7", "8 runs"]
    assert {one["name"]: one["data"] for one in options["series"]} == {
        "": [6.0, 0.0],
        "delivery": [1.0, 0.0],
        "Spark": [3.0, 2.5],
        "until the cut": [2.0, 0.0],
        "merge": [[7.0, "7"]],
    }


def test_a_timeline_has_the_last_epochs() -> None:
    epochs = [EpochTimes(number, None, 1.0, 2.0, 3.0) for number in range(TIMELINE_EPOCHS + 5)]
    assert timeline(epochs, 4.0, None, None)["yAxis"]["data"][0] == "5"
