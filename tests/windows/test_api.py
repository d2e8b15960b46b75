"""Errors that can be detected without Spark are reported without it."""

import subprocess
import sys
from typing import Any

import pytest

from penstock import windows
from penstock.core.errors import RequestError


def test_importing_windows_imports_neither_spark_nor_arrow() -> None:
    code = "import sys, penstock.windows; print({'pyspark', 'pyarrow', 'numpy', 'pandas'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: windows.tumbling("soon"), "size: 'soon' is not"),
        (lambda: windows.tumbling("0 seconds"), "a window's size of 0 µs is out of range"),
        (lambda: windows.sliding("1 minute", "2 minutes"), "leave gaps"),
        (lambda: windows.sliding("365 days", "1 second"), "contain each event more than 16,384 times"),
        (lambda: windows.session("-1 s"), "a window's gap"),
        (lambda: windows.tumbling("1 minute", offset="1 month"), "offset: '1 month' is not"),
        (lambda: windows.collect("x", 0), "collect: limit=0 is not valid"),
    ],
)
def test_invalid_windows_are_refused(make: Any, why: str) -> None:
    with pytest.raises(RequestError, match=why) as caught:
        make()
    assert caught.value.hint


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"n": windows.count(), "window": "1 minute"}, "'1 minute' is not a window"),
        ({}, "no results to compute"),
        ({"n": "count"}, "n='count' is neither an aggregate nor an option"),
        ({"n": windows.count(), "allowed_latenes": "1 minute"}, "allowed_latenes='1 minute' is neither"),
        ({"n": windows.count(), "late": "ignore"}, "late='ignore' is not valid"),
        ({"n": windows.count(), "late_rule": "lax"}, "late_rule='lax' is not valid"),
        ({"n": windows.count(), "buckets": 0}, "buckets=0 is not valid"),
        ({"n": windows.count(), "allowed_lateness": "x"}, "allowed_lateness: 'x' is not"),
    ],
)
def test_invalid_calls_are_refused(options: dict[str, Any], why: str) -> None:
    window = options.pop("window", windows.tumbling("1 minute"))
    with pytest.raises(RequestError, match=why) as caught:
        windows.aggregate(None, window, **options)  # type: ignore[arg-type]  # it is not looked at
    assert caught.value.hint


@pytest.mark.parametrize("inputs", [None, "amount"])
def test_an_aggregate_that_does_not_declare_its_columns_is_refused(inputs: Any) -> None:
    class Mine(windows.Aggregate):
        def add(self, columns: Any, groups: Any, count: int) -> Any: ...
        def merge(self, partials: Any, groups: Any, count: int) -> Any: ...
        def result(self, partials: Any) -> Any: ...

    mine = Mine()
    if inputs is not None:
        mine.inputs = inputs
    with pytest.raises(RequestError, match="not a tuple of column names") as caught:
        windows.aggregate(None, windows.tumbling("1 minute"), n=mine)  # type: ignore[arg-type]  # it is not looked at
    assert 'inputs = ("amount",)' in caught.value.hint
