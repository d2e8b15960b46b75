"""What a frame's plan says of its rows, before anything is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.spark.control import options_of
from penstock.spark.source_options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROW_BY_ROW = {
    "StreamingRelationV2",
    "Project",
    "Filter",
    "SubqueryAlias",
    "EventTimeWatermark",
    "Repartition",
    "RepartitionByExpression",
    "RebalancePartitions",
    "CollectMetrics",
    "Deduplicate",
    "DeduplicateWithinWatermark",
}
"""Nodes that make of a row one or none. Of all others that is not known: to be wrong about them costs a shuffle."""


def row_by_row(frame: DataFrame) -> bool:
    """Whether it is one load, of which each row became one or none: what it says of its event it says in all rows."""
    return _only(_plan(frame), _ROW_BY_ROW)


def one_row_each(frame: DataFrame) -> bool:
    """Whether of each event there is one row at most: of a load, or a union of loads that read different sources."""
    return _sources(_plan(frame)) is not None


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001  no public way to the plan


def _only(node: Any, kinds: set[str]) -> bool:
    return _kind(node) in kinds and all(_only(child, kinds) for child in _children(node))


def _sources(node: Any) -> list[str] | None:
    """What is read, without any of it read twice; None where an event may have several rows."""
    kind = _kind(node)
    if kind == "StreamingRelationV2":
        options = options_of(node)
        return None if options is None else [*SourceOptions.parse(options).sources]
    below = [_sources(child) for child in _children(node)]
    found = [name for sources in below if sources is not None for name in sources]
    known = kind == "Union" or kind in _ROW_BY_ROW
    return found if known and None not in below and len(set(found)) == len(found) else None


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _children(node: Any) -> list[Any]:
    children = node.children()
    return [children.apply(index) for index in range(children.size())]
