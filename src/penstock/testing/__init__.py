"""Test support: `run_pipeline` for pipelines, the conformance suite for connectors, and test doubles for files.

Penstock itself imports nothing from here; some modules need pytest.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_name

if TYPE_CHECKING:
    from penstock.testing.events import Event
    from penstock.testing.pipeline_run import run_pipeline
    from penstock.testing.results import Result, Row
    from penstock.testing.spark_session import spark_session

__all__ = ["Event", "Result", "Row", "run_pipeline", "spark_session"]

_HOMES = {
    "Event": "penstock.testing.events:Event",
    "Result": "penstock.testing.results:Result",
    "Row": "penstock.testing.results:Row",
    "run_pipeline": "penstock.testing.pipeline_run:run_pipeline",
    "spark_session": "penstock.testing.spark_session:spark_session",
}


def __getattr__(name: str) -> object:
    return lazy_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
