"""`penstock.display`: the newest rows of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.core.errors import RequestError
from penstock.spark.display import NewestRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_table_is_text_in_a_terminal_and_html_in_a_notebook() -> None:
    table = NewestRows(["key", "value"], [("a", b"<x>"), ("b", None)], 1200)
    assert repr(table) == "key  value\na    <x>\nb    None\n(the newest 2 of 1,200 rows)"
    assert "<td>a</td><td>&lt;x&gt;</td>" in table._repr_html_()


def test_a_cell_is_one_line_of_limited_length() -> None:
    table = repr(NewestRows(["value"], [(b"a\nb",), (b"\xff",), ("x" * 200,)], 3))
    assert table.splitlines()[1:4] == ["a b", "\\xff", "x" * 79 + "…"]


@pytest.mark.spark
def test_the_newest_rows_of_a_stream_are_printed_as_they_arrive(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    one_task = {"rowsPerBatch": 5, "numPartitions": 1}
    ticks = spark.readStream.format("rate-micro-batch").options(**one_task).load()
    with penstock.display(ticks.select("value"), rows=2) as live:
        live.wait_for(10)
    assert live.count >= 10
    printed = capsys.readouterr().out
    assert printed.startswith("value\n(no rows yet)\n")
    assert "8\n9\n(the newest 2 of 10 rows)" in printed
    with pytest.raises(RequestError, match="the query was stopped"):
        live.wait_for(10**9)


@pytest.mark.spark
def test_only_streaming_frames_are_displayed(spark: SparkSession) -> None:
    with pytest.raises(RequestError, match="shows streams"):
        penstock.display(spark.range(3))
    with pytest.raises(RequestError, match="0 rows cannot be shown"):
        penstock.display(spark.readStream.format("rate").load(), rows=0)
