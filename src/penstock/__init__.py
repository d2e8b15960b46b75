"""Penstock: durable event streams into and out of Spark."""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_name

if TYPE_CHECKING:
    from penstock import dead_letters, windows
    from penstock.spark.display import display
    from penstock.spark.pipeline_context import session
    from penstock.spark.pipelines import pipeline
    from penstock.spark.run.generation import begin
    from penstock.spark.run.progress import watch
    from penstock.spark.watermark import watermarked

__all__ = ["__version__", "begin", "dead_letters", "display", "pipeline", "session", "watch", "watermarked", "windows"]

__version__ = "0.2.0"

_HOMES = {
    "begin": "penstock.spark.run.generation:begin",
    "dead_letters": "penstock.dead_letters",
    "display": "penstock.spark.display:display",
    "pipeline": "penstock.spark.pipelines:pipeline",
    "session": "penstock.spark.pipeline_context:session",
    "watch": "penstock.spark.run.progress:watch",
    "watermarked": "penstock.spark.watermark:watermarked",
    "windows": "penstock.windows",
}
"""What needs Spark is imported when it is first used: programs that only speak with a worker need none of it."""


def __getattr__(name: str) -> object:
    return lazy_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
