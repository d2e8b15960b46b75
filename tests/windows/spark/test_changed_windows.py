"""Windows whose aggregates and lateness change while there is state: what open windows contain afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock import windows
from penstock.spark import Pipeline, pipeline
from penstock.spark.run.state_plan import Companion
from tests.windows.spark.running import Bench
from tests.windows.spark.scene import Scene

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark

SECOND = 1_000_000


def counting(lateness: str, **more: Any) -> Pipeline:
    """Events by key in windows of ten seconds. Events that are ingested together are an epoch."""

    def count(given: DataFrame) -> DataFrame:
        rows = given.selectExpr("*", "from_json(cast(value as string), 'k string, v bigint') json")
        rows = rows.selectExpr("*", "json.k", "json.v").drop("json")
        return windows.aggregate(
            rows,
            windows.tumbling("10 seconds"),
            keys=["k"],
            n=windows.count(),
            buckets=2,
            allowed_lateness=lateness,
            **more,
        )

    return pipeline(name="count", inputs={"given": "sensors"}, max_rows_per_epoch=1)(count)


class Runs:
    def __init__(self, scene: Scene, bench: Bench) -> None:
        self._scene, self._bench = scene, bench
        self._read = self._late = 0

    def ingest(self, *events: tuple[str, int, int]) -> None:
        """Key, time in seconds, and value: one epoch."""
        self._scene.ingest(*((1, time * SECOND, {"k": key, "v": value}) for key, time, value in events))

    def run(self, given: Pipeline) -> tuple[list[tuple[Any, ...]], int]:
        """New panes (key, start of the window, revision, count, total), and the number of late events."""
        self._bench.run(given)
        panes, late = self._bench.panes("count"), len(self._bench.out("count", "late"))
        new, more = panes[self._read :], late - self._late
        self._read, self._late = len(panes), late
        return sorted(
            (one["k"], int(one["window_start"][17:19]), one["revision"], one["n"], one.get("total", "none"))
            for one in new
        ), more


def test_added_aggregates_and_more_lateness_take_effect_and_a_kill_before_the_plan_is_stored_changes_nothing(
    scene: Scene, bench: Bench
) -> None:
    runs, companion = Runs(scene, bench), bench.folder / "checkpoints" / "count" / "penstock.json"
    old, new = counting("5 seconds"), counting("60 seconds", total=windows.sum("v"))
    runs.ingest(("a", 1, 1), ("b", 12, 2))
    runs.ingest(("b", 16, 3))
    assert runs.run(old) == ([("a", 0, 0, 1, "none")], 0)
    before = Companion.parse(companion.read_text(), "count")

    # The window at 0 is purged; the one at 10 is open, and has events of b.
    runs.ingest(("a", 2, 4), ("b", 13, 5), ("c", 14, 7), ("b", 31, 1))
    assert runs.run(new) == ([("b", 10, 0, 3, None), ("c", 10, 0, 1, 7)], 1)
    after = Companion.parse(companion.read_text(), "count")
    assert after.plan.closed_to() == {"tumbling 10s by k": 11 * SECOND}, "where a lateness of 5 s has purged"

    # With a lateness of 5 s, the window at 10 would be closed. A kill before the new plan is stored leaves both.
    companion.write_text(Companion(before.plan, after.plan, since=2).text())
    runs.ingest(("b", 11, 1), ("d", 35, 2))
    assert runs.run(new) == ([("b", 10, 1, 4, None)], 0)
    assert companion.read_text() == after.text()

    # The old plan again: the total is gone, and windows close as before.
    runs.ingest(("b", 11, 1), ("b", 45, 1))
    assert runs.run(old) == ([("b", 30, 0, 1, "none"), ("d", 30, 0, 1, "none")], 1)
