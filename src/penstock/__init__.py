"""Penstock: durable event streams into and out of Spark."""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_name

if TYPE_CHECKING:
    from penstock import letters, windows
    from penstock.spark.generation import begin
    from penstock.spark.pipelines import pipeline
    from penstock.spark.progress import watch
    from penstock.spark.spark_watermark import watermarked

__all__ = ["__version__", "begin", "letters", "pipeline", "watch", "watermarked", "windows"]

__version__ = "0.1.0.dev0"

_HOMES = {
    "begin": "penstock.spark.generation:begin",
    "letters": "penstock.letters",
    "pipeline": "penstock.spark.pipelines:pipeline",
    "watch": "penstock.spark.progress:watch",
    "watermarked": "penstock.spark.spark_watermark:watermarked",
    "windows": "penstock.windows",
}
"""What needs Spark is imported when it is first used: programs that only speak with a worker need none of it."""


def __getattr__(name: str) -> object:
    return lazy_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
