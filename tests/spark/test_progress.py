"""Spark's progress reports: as PySpark's objects and as JSON, and how a query is asked for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

from penstock.spark.run import progress as module
from penstock.spark.run.progress import Progress, ProgressReader
from penstock.spark.source.fused import EVENTS_READ
from tests.support.waiting import until

OURS = {"epoch": 6, "watermark": 1_000, "control": False}
CONTROL = {"epoch": 5, "watermark": 900, "control": True}

REPORT: dict[str, Any] = {
    "batchId": 7,
    "batchDuration": 40,
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
        rows_per_second=300.0,
        batch_ms=40,
        state_rows=7,
        state_bytes=300,
        stages_ms={"addBatch": 30, "walCommit": 0},
        state_load_ms=5,
    )
    assert progress.stages_text == "addBatch 30 ms, state load 5 ms"


def test_a_batch_that_took_no_time_has_no_rate() -> None:
    assert Progress.of(REPORT | {"batchDuration": 0}).rows_per_second == 0


def test_events_that_readers_have_counted_are_rows() -> None:
    metrics = {
        f"{EVENTS_READ}001 windows": {"events": 30},
        f"{EVENTS_READ}002": {"events": None},
        "mine": {"events": 1},
    }
    assert Progress.of(REPORT | {"observedMetrics": metrics}).rows == 12 + 30


class Query:
    """Its reports of batches of ten rows each, as Spark keeps them."""

    def __init__(self) -> None:
        self.isActive = True
        self.reports: list[dict[str, Any]] = []
        self.looks = 0
        """At all of its reports."""

    def run(self, *batches: int) -> None:
        self.reports += [
            REPORT | {"batchId": batch, "sources": [{"endOffset": OURS, "numInputRows": 10}]} for batch in batches
        ]

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        if self.reports is GONE:
            raise ConnectionError
        return self.reports[-1] if self.reports else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        self.looks += 1
        return self.reports[-100:]


GONE: list[dict[str, Any]] = []


class Watched:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "ASK_SECONDS", 0.001)
        self.now = 0.0
        self.told: list[tuple[int, int]] = []
        self.query = Query()
        query: Any = self.query
        self.reader = ProgressReader(query, self._take, lambda: self.now)

    def _take(self, progress: Progress, rows: int) -> None:
        self.told.append((progress.epoch, rows))

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.told)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    made = Watched(monkeypatch)
    yield made
    made.reader.stop()


def test_each_new_batch_is_reported_once(watched: Watched) -> None:
    for batch in range(3):
        watched.query.run(batch)
        until(lambda batch=batch: len(watched.told) == batch + 1)  # type: ignore[misc]
    assert watched.told == [(0, 10), (1, 10), (2, 10)]
    assert not watched.query.looks, "the last report says it all"


def test_the_rows_of_batches_in_between_are_counted_with_few_looks_at_them(watched: Watched) -> None:
    watched.query.run(*range(5))
    until(lambda: watched.told)
    assert watched.told[0] == (4, 0), "the newest batch is reported at once"
    watched.query.run(*range(5, 9))
    watched.now = 2.0
    until(lambda: watched.rows == 90)
    watched.query.run(*range(9, 80))
    until(lambda: watched.rows == 800)
    assert watched.query.looks == 2, "now and then, and before Spark forgets one"


def test_what_is_left_is_reported_when_the_query_has_ended(watched: Watched) -> None:
    watched.query.run(*range(7))
    until(lambda: watched.told)
    watched.query.run(7)
    watched.query.isActive = False
    until(lambda: watched.rows == 80)
    watched.query.run(8)
    watched.reader.finish()
    assert watched.told[-1][0] == 7, "nothing is reported after the end"


def test_a_query_whose_jvm_is_gone_is_not_asked_forever(watched: Watched) -> None:
    watched.query.reports = GONE
    until(lambda: not watched.reader._thread.is_alive())
    assert watched.told == []
