"""Control rows: a second load beside a frame's own, whose rows contain the pipeline's watermark for each batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RequestError
from penstock.spark.source.options import named
from penstock.spark.source.schema import CONTROL_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "penstock"

PRETENDED = "penstock.pretended."
"""The prefix of options on a placeholder stream: after it come the options that the real load would have."""

_OF_EVENTS = ("columns", "rows", "buckets", "reports", "minPartitions")
"""Options for which rows a load returns and how: the control load beside it does not inherit them."""

_HINT = (
    "Build the frame from the loads of a pipeline: a @pipeline's parameters, or loads with the options of "
    "penstock.spark.begin(…).input(…)."
)


def origin_of(frame: DataFrame) -> dict[str, str]:
    """The options of the penstock load that this frame reads: those of the first load if there are several, as all
    loads of a pipeline share one watermark. Raises RequestError if there is none, if one names no pipeline, or if they
    belong to different pipelines.
    """
    found = [options for options in map(options_of, _leaves(frame)) if options is not None]
    if not found:
        raise RequestError("the frame does not read from Penstock", _HINT)
    pipelines = {options.get("pipeline") for options in found}
    if None in pipelines:
        raise RequestError("the frame's load names no pipeline: it has no watermark", _HINT)
    if len(pipelines) > 1:
        raise RequestError(f"the frame reads for several pipelines: {', '.join(sorted(map(str, pipelines)))}", _HINT)
    return {name: text for name, text in found[0].items() if name not in _OF_EVENTS}


def control_rows(frame: DataFrame, buckets: Sequence[int], *, reports: bool = False) -> DataFrame:
    """A control-only load of the same pipeline, input and generation. Each batch has one row per bucket: `bucket` int,
    `epoch` bigint, `before` and `watermark` bigint (microseconds; null while unknown). `reports`: the operator that
    uses them reports the contents of its state to the worker. Raises RequestError as `origin_of` does.
    """
    options = origin_of(frame)
    if is_pretended(frame):
        return _pretended(frame.sparkSession, options)
    named_buckets = ",".join(map(str, buckets))
    load = frame.sparkSession.readStream.format(FORMAT).options(**options)
    load = load.option("rows", "control").option("buckets", named_buckets)
    return load.option("reports", str(reports).lower()).load()


def is_pretended(frame: DataFrame) -> bool:
    """Whether it reads placeholder streams, which only serve to see what a pipeline's function returns. No worker is
    needed for those.
    """
    return any(leaf.sourceName() == "rate" for leaf in _leaves(frame) if options_of(leaf) is not None)


def pretend(options: Mapping[str, str]) -> dict[str, str]:
    """Options for Spark's rate source that make `origin_of` treat it as a load with `options`."""
    return {PRETENDED + name: text for name, text in options.items()}


def _pretended(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    columns = [f"cast(null as {kind}) as {name}" for name, kind in CONTROL_COLUMNS.items()]
    load = spark.readStream.format("rate").options(**pretend({**options, "rows": "control"}))
    return load.load().selectExpr(*columns)


def _leaves(frame: DataFrame) -> Iterator[Any]:
    """The streams that Spark would read for the frame."""
    try:
        leaves = frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001  no public way to the plan
    except AttributeError as error:
        raise RequestError("a frame of Spark Connect does not show what it reads", "Use a classic session.") from error
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.getClass().getSimpleName() == "StreamingRelationV2":
            yield leaf


def options_of(leaf: Any) -> dict[str, str] | None:
    """The options of one of our loads, or of a placeholder for one; None for any other source."""
    options = dict(leaf.extraOptions().asCaseSensitiveMap())
    if leaf.sourceName() == FORMAT:
        return named(options)
    pretended = {name.removeprefix(PRETENDED): text for name, text in options.items() if name.startswith(PRETENDED)}
    return pretended or None
