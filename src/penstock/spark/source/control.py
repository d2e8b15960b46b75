"""Control rows: a load beside the pipeline's own, whose rows contain its watermark for each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.spark.source.options import named
from penstock.spark.source.schema import CONTROL_COLUMNS, FUSED_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.input_frames import InputFrame
    from penstock.spark.pipeline_context import PipelineContext

FORMAT = "penstock"

PRETENDED = "penstock.pretended."
"""The prefix of options on a placeholder stream: after it come the options that the real load would have."""

_OF_EVENTS = (
    *("columns", "rows", "buckets", "reports", "minPartitions", "shortCircuit"),
    *("codec", "schema", "codecMap", "decoding"),
)
"""Options for which rows a load returns and how: the control load beside it does not inherit them."""


def control_rows(
    spark: SparkSession, context: PipelineContext, buckets: Sequence[int], *, reports: bool = False
) -> DataFrame:
    """A control-only load of the pipeline. Each batch has one row per bucket: `bucket` int, `epoch` bigint, `before`
    and `watermark` bigint (microseconds; null while unknown). `reports`: the operator that uses them reports the
    contents of its state to the worker.
    """
    options = {name: text for name, text in named(context.options).items() if name not in _OF_EVENTS}
    if context.is_pretended:
        return _pretended(spark, options, CONTROL_COLUMNS)
    load = spark.readStream.format(FORMAT).options(**options).option("rows", "control")
    load = load.option("buckets", ",".join(map(str, buckets)))
    return load.option("reports", str(reports).lower()).load()


def fused_rows(spark: SparkSession, context: PipelineContext, given: InputFrame, buckets: int, fused: str) -> DataFrame:
    """The control load of an operator whose readers also run the operator `fused` on the events of the input."""
    options = named(given.options)
    if context.is_pretended:
        return _pretended(spark, options, FUSED_COLUMNS)
    load = spark.readStream.format(FORMAT).options(**options).option("rows", "control").option("fused", fused)
    return load.option("buckets", ",".join(map(str, range(buckets)))).option("reports", "true").load()


def pretend(options: Mapping[str, str]) -> dict[str, str]:
    """Options for Spark's rate source by which it is known in a plan as a placeholder for a load with `options`."""
    return {PRETENDED + name: text for name, text in options.items()}


def _pretended(spark: SparkSession, options: Mapping[str, str], kinds: Mapping[str, str]) -> DataFrame:
    columns = [f"cast(null as {kind}) as {name}" for name, kind in kinds.items()]
    load = spark.readStream.format("rate").options(**pretend({**options, "rows": "control"}))
    return load.load().selectExpr(*columns)
