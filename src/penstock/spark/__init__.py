"""Pipelines on Spark: `@pipeline` for `penstock run`, `begin` for a session of one's own.

The parts are imported when they are first used: Spark's Python workers need none of them.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_name

if TYPE_CHECKING:
    from penstock import windows
    from penstock.spark.generation import Generation, begin
    from penstock.spark.pipelines import Pipeline, pipeline
    from penstock.spark.progress import watch
    from penstock.spark.spark_watermark import watermarked

__all__ = ["Generation", "Pipeline", "begin", "pipeline", "watch", "watermarked", "windows"]

_HOMES = {
    "Generation": "penstock.spark.generation:Generation",
    "Pipeline": "penstock.spark.pipelines:Pipeline",
    "begin": "penstock.spark.generation:begin",
    "pipeline": "penstock.spark.pipelines:pipeline",
    "watch": "penstock.spark.progress:watch",
    "watermarked": "penstock.spark.spark_watermark:watermarked",
    "windows": "penstock.windows",
}


def __getattr__(name: str) -> object:
    return lazy_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
