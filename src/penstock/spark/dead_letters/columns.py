"""What a row must carry so that its event can leave through `err` or `late`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.spark.outputs import JSON, PLACE, quoted
from penstock.spark.source.schema import COLUMNS, POSITION

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OF_EVENTS = ("key", "source", "stream", "stream_id", "message_id")
_BYTES = ("binary", "string")


def carried(frame: DataFrame) -> dict[str, Column]:
    """Columns of the event: its position if the frame still has it; otherwise, and for rows of a join or union without
    a position, its bytes. Both, if columns of these names may be others: the worker knows which segments are inputs.
    """
    from pyspark.sql import functions as F  # noqa: N812  as PySpark's own documentation writes it

    kinds = _kinds(frame)
    if all(kinds.get(name) == COLUMNS[name] for name in PLACE):
        place = {name: frame[name] for name in PLACE}
        nowhere = F.isnull(place["segment"]) | F.isnull(place["offset"])
        given = _bytes(frame, kinds)
        is_certain = all(frame.schema[name].metadata.get("comment") == POSITION for name in PLACE)
        return place | {"value": F.when(nowhere, given) if is_certain else given}
    fields = {name: frame[name] for name in _OF_EVENTS if kinds.get(name) == COLUMNS[name]}
    return fields | {"value": _bytes(frame, kinds)}


def _kinds(frame: DataFrame) -> dict[str, str]:
    """Columns and their types. Without those whose name a join has made ambiguous, ignoring case as Spark does."""
    counts = Counter(name.lower() for name in frame.columns)
    return {name: kind for name, kind in frame.dtypes if counts[name.lower()] == 1}


def _bytes(frame: DataFrame, kinds: Mapping[str, str]) -> Column:
    """The event's own bytes, or the row as JSON where there are none."""
    from pyspark.sql import functions as F  # noqa: N812

    if kinds.get("value") in _BYTES:
        return F.coalesce(frame["value"].cast("binary"), F.lit(b""))
    whole = F.struct(*(frame[quoted(name)] for name in kinds))
    return F.to_json(whole, JSON).cast("binary")
