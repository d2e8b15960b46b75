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

Nothing late vanishes: with `late="keep"` such events leave through the pipeline's port `late`. See docs/windows.md.
"""

from typing import TYPE_CHECKING, Any

from penstock.windows.api import aggregate, session, sliding, tumbling
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
    "session",
    "sliding",
    "sum",
    "tumbling",
]


def __getattr__(name: str) -> Any:
    """Aggregates are Arrow's business: it is imported by those who write one of their own."""
    if name in ("Aggregate", "Groups"):
        from penstock.windows import aggregates

        return getattr(aggregates, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
