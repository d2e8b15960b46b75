"""Pipelines on Spark: `@pipeline` for `penstock run`, `begin` for your own Spark session.

The modules are imported on first use: Spark's Python workers need none of them.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_name

if TYPE_CHECKING:
    from penstock import windows
    from penstock.spark.pipeline_context import session
    from penstock.spark.pipelines import Pipeline, pipeline
    from penstock.spark.run.generation import Generation, begin
    from penstock.spark.run.progress import watch
    from penstock.spark.run.session import connect
    from penstock.spark.watermark import watermarked

__all__ = ["Generation", "Pipeline", "begin", "connect", "pipeline", "session", "watch", "watermarked", "windows"]

_HOMES = {
    "Generation": "penstock.spark.run.generation:Generation",
    "Pipeline": "penstock.spark.pipelines:Pipeline",
    "begin": "penstock.spark.run.generation:begin",
    "connect": "penstock.spark.run.session:connect",
    "pipeline": "penstock.spark.pipelines:pipeline",
    "session": "penstock.spark.pipeline_context:session",
    "watch": "penstock.spark.run.progress:watch",
    "watermarked": "penstock.spark.watermark:watermarked",
    "windows": "penstock.windows",
}


def __getattr__(name: str) -> object:
    return lazy_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
