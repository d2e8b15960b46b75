"""Pipelines on Spark: `@pipeline` for `penstock run`, `begin` for a session of one's own.

The parts are imported when they are first used: Spark's Python workers need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.generation import Generation, begin
    from penstock.spark.pipelines import Pipeline, pipeline
    from penstock.spark.progress import watch

__all__ = ["Generation", "Pipeline", "begin", "pipeline", "watch"]

_HOMES = {
    "Generation": "penstock.spark.generation",
    "Pipeline": "penstock.spark.pipelines",
    "begin": "penstock.spark.generation",
    "pipeline": "penstock.spark.pipelines",
    "watch": "penstock.spark.progress",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
