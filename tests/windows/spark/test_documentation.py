"""The examples of docs/windows.md do what the page says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.spark import Pipeline, pipeline
from penstock.spark.codecs.codec import Branch
from penstock.spark.run.attempt import plan_of
from tests.windows.spark.running import Bench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TEXT = (Path(__file__).parents[3] / "docs" / "windows.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_rows_of_the_documented_pipeline_are_as_shown(bench: Bench) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(blocks("python")[0], names)
    turnover = names["turnover"]
    assert isinstance(turnover, Pipeline)
    (shown,) = (json.loads(line) for line in blocks("json"))
    noon_ms = 1_769_860_800_000
    sales = [(noon_ms + 1_000 * second, {"shop": "north", "amount": 10.0 + second}) for second in range(17)]
    bench.send(*sales, (noon_ms + 60_000, {"shop": "north", "amount": 0.0}))
    bench.run(turnover)
    (row,) = bench.panes("turnover")
    assert row == shown
    assert list(row) == list(shown)


def test_the_documented_windows_are_computed_by_readers(spark: SparkSession) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(next(one for one in blocks("python") if "where=" in one), names)
    branch = Branch("json", "shop string, amount double, currency string")
    declared = replace(pipeline(names["turnover"]), decoding={"sales": (branch,)})
    (note,) = plan_of(spark, declared).operators
    assert (note.not_fused, note.columns) == (None, ("amount", "currency", "event_time", "shop"))


def test_the_pipeline_that_orders_events_is_the_example() -> None:
    shown = next(one for one in blocks("python") if "windows.ordered" in one)
    assert (Path(__file__).parents[3] / "examples" / "account_history.py").read_text().endswith(f"\n\n{shown}")


def test_the_documented_aggregate_can_be_split_and_merged_anywhere() -> None:
    names: dict[str, Any] = {}
    exec(next(one for one in blocks("python") if "class Spread" in one), names)
    spread = names["Spread"]()
    values, groups = pa.array([5.0, 1.0, 9.0, 4.0]), np.array([0, 1, 1, 0])
    whole = spread.add([values], groups, 2)
    halves = [spread.add([values[:2]], groups[:2], 2), spread.add([values[2:]], np.array([1, 0]), 2)]
    merged = spread.merge(pa.concat_arrays(halves), np.array([0, 1, 0, 1]), 2)
    assert spread.result(whole).to_pylist() == spread.result(merged).to_pylist() == [1.0, 8.0]
    assert spread.result_type([pa.float64()]) == pa.float64()
