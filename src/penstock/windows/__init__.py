"""Windows in event time over a pipeline's DataFrames: each fires when the pipeline's watermark reaches its end.

    from penstock import windows

    windows.aggregate(
        sales,
        windows.tumbling("1 minute"),
        keys=["shop"],
        allowed_lateness="10 minutes",
        sold=windows.count(),
        turnover=windows.sum("amount"),
    )

    windows.ordered(sales, keys=["shop"])  # the events of a shop in the order of their times

Late events are not lost: with `late="keep"` they are emitted at the pipeline's port `late`. See docs/windows.md.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_name
from penstock.windows.api import aggregate, ordered, session, sliding, tumbling
from penstock.windows.kinds import Session, Sliding, Tumbling
from penstock.windows.measures import (
    Measure,
    approx_distinct,
    avg,
    collect,
    count,
    first,
    last,
    max,  # noqa: A004  Spark's names
    measure,
    min,  # noqa: A004
    sum,  # noqa: A004
)

if TYPE_CHECKING:
    from penstock.windows.aggregates import Aggregate, Groups

__all__ = [
    "Aggregate",
    "Groups",
    "Measure",
    "Session",
    "Sliding",
    "Tumbling",
    "aggregate",
    "approx_distinct",
    "avg",
    "collect",
    "count",
    "first",
    "last",
    "max",
    "measure",
    "min",
    "ordered",
    "session",
    "sliding",
    "sum",
    "tumbling",
]


_HOMES = {name: f"penstock.windows.aggregates:{name}" for name in ("Aggregate", "Groups")}
"""Aggregates need Arrow, which is imported only when a user writes an aggregate."""


def __getattr__(name: str) -> object:
    return lazy_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
