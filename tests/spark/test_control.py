"""Control rows contain, batch by batch, the previous and the current watermark of a frame's pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import RequestError
from penstock.spark import pipeline
from tests.spark.feeding import Feed
from tests.spark.following import following
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def load(spark: SparkSession, **options: str) -> DataFrame:
    return spark.readStream.format("penstock").options(**({"source": "sensors"} | options)).load()


def test_every_batch_has_a_row_for_each_bucket_beside_the_events(
    worker: RunningWorker, spark: SparkSession, tmp_path: Path
) -> None:
    from penstock.spark.pipeline_context import PipelineContext
    from penstock.spark.run.progress import Progress
    from penstock.spark.source.control import control_rows

    options = {"worker": f"127.0.0.1:{worker.ports['http']}", "pipeline": "p", "input": "left", "columns": "value"}
    sensors = load(spark, **options)
    control = control_rows(spark, PipelineContext({**options, "source": "sensors"}), [0, 7])
    assert control.dtypes == [("bucket", "int"), ("epoch", "bigint"), ("before", "bigint"), ("watermark", "bigint")]
    events = sensors.selectExpr("-1 as bucket", "0L as epoch", "null as before", "null as watermark")
    with (
        Feed(worker, "sensors", ["door"]) as door,
        following(tmp_path, {"both": events.unionByName(control)}) as queries,
    ):
        both = queries["both"]
        for first, last in [(1, 3), (4, 5)]:
            door.say("door", *[(number, b"x") for number in range(first, last + 1)])
            both.step()
            progress = both.query.lastProgress
            assert progress is not None
            assert Progress.of(progress).rows == last - first + 1, "events alone are counted"
        rows = sorted((row["epoch"], row["bucket"], row["before"], row["watermark"]) for row in both.rows)
        assert rows[:5] == [(0, -1, None, None)] * 5
        assert [bucket for _, bucket, _, _ in rows[5:]] == [0, 7] * (len(rows[5:]) // 2)
        watermarks = [row[2:] for row in rows[5::2]]
        assert watermarks == [row[2:] for row in rows[6::2]]
        assert [before for before, _ in watermarks] == [None, *(watermark for _, watermark in watermarks[:-1])]
        assert [watermark for _, watermark in watermarks if watermark] == [3000, 5000]


def test_an_operator_outside_a_pipeline_is_refused(spark: SparkSession) -> None:
    import penstock

    with pytest.raises(RequestError, match="watermarked does not know its pipeline") as caught:
        penstock.watermarked(load(spark, pipeline="p"))
    assert "penstock.session(spark, pipeline=" in caught.value.hint
    with (
        pytest.raises(RequestError, match="the pipeline 'p' has no source"),
        penstock.session(spark, pipeline="p"),
    ):
        pass


def test_the_ports_of_a_pipeline_are_found_without_a_worker(spark: SparkSession) -> None:
    from penstock.spark.pipeline_context import current_pipeline
    from penstock.spark.run.attempt import plan_of
    from penstock.spark.source.control import control_rows

    origins = []

    @pipeline(inputs={"left": ["a", "b"]})
    def both(left: DataFrame) -> dict[str, DataFrame]:
        context = current_pipeline("the test")
        origins.append(context.options)
        return {"marks": control_rows(spark, context, [1, 2]), "rest": left}

    assert plan_of(spark, both).ports == ("marks", "rest")
    assert origins == [{"pipeline": "both", "input": "left", "source": "a,b"}]
