"""Charts, from a worker's history."""

import pytest

from penstock.dashboard.charts import EPOCHS_SHOWN, epoch_bars, over_time, phases
from penstock.protocol.api.history import EpochTimes, WorkerHistory

HISTORY = WorkerHistory(seconds=5, times=[10.0, 15.0], series={"a": [1.0, None], "b": [2.0, 3.0]}, epochs={})


def test_a_line_for_each_series_that_there_is() -> None:
    options = over_time(HISTORY, {"a": "first", "missing": "second"}, "events/s")
    assert [(one["name"], one["data"]) for one in options["series"]] == [("first", [[10_000, 1.0], [15_000, None]])]
    assert options["title"]["text"] == "events/s"


def test_a_chart_without_a_series_says_so() -> None:
    assert over_time(HISTORY, {"missing": "x"}, "events/s")["title"]["text"] == "events/s: nothing yet"


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
