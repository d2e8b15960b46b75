"""Spark's progress reports: as PySpark's objects, and as the JSON that the listener fetches."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

from penstock.spark.run.progress import Progress

OURS = {"epoch": 6, "watermark": 1_000, "control": False}
CONTROL = {"epoch": 5, "watermark": 900, "control": True}

REPORT: dict[str, Any] = {
    "batchId": 7,
    "batchDuration": 40,
    "processedRowsPerSecond": 2.5,
    "durationMs": {"addBatch": 30, "walCommit": 0},
    "stateOperators": [
        {"numRowsTotal": 3, "memoryUsedBytes": 100, "customMetrics": {"rocksdbLoadLatencyMs": 5}},
        {"numRowsTotal": 4, "memoryUsedBytes": 200, "customMetrics": {}},
    ],
    "sources": [
        {"endOffset": OURS, "numInputRows": 10},
        {"endOffset": CONTROL, "numInputRows": 99},
        {"endOffset": 12, "numInputRows": 1},
        {"endOffset": "not JSON", "numInputRows": 1},
        {"endOffset": None, "numInputRows": 0},
    ],
}


def as_text(offset: object) -> object:
    return offset if isinstance(offset, str | None) else json.dumps(offset)


@pytest.mark.parametrize("form", [lambda offset: offset, as_text], ids=["as JSON", "as text"])
def test_only_offsets_of_penstock_loads_count_in_either_form(form: Any) -> None:
    sources = [source | {"endOffset": form(source["endOffset"])} for source in REPORT["sources"]]
    progress = Progress.of(REPORT | {"sources": sources})
    assert progress == Progress(
        epoch=7,
        cut=5,
        watermark_us=900,
        rows=12,
        rows_per_second=2.5,
        batch_ms=40,
        state_rows=7,
        state_bytes=300,
        stages_ms={"addBatch": 30, "walCommit": 0},
        state_load_ms=5,
    )
    assert progress.stages_text == "addBatch 30 ms, state load 5 ms"


def test_a_rate_that_is_not_a_number_is_zero() -> None:
    without = {name: value for name, value in REPORT.items() if name != "processedRowsPerSecond"}
    assert Progress.of(without).rows_per_second == 0
