"""The column `letter`: marks events that could not be processed, or arrived late.

A row whose `letter` is not null is a dead letter or a late event. All later Penstock operators pass it on unchanged,
and the query that writes the other rows writes it to the port it names, with its original bytes, its position and the
reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RequestError
from penstock.protocol.stored.dead_letters import ERR, LATE, LETTER_PORTS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = [
    "ERR",
    "LATE",
    "LETTER",
    "LETTER_DDL",
    "LETTER_FIELDS",
    "LETTER_PORTS",
    "NO_EVENT_TIME",
    "REASON_CHARACTERS_MAX",
    "letter_arrow",
]

LETTER = "letter"
"""The column of a frame with dead letters; null in all other rows."""

REASON_CHARACTERS_MAX = 1_000
"""A reason is for people; with it, a dead letter's metadata must stay far below the limit for an event's metadata."""

NO_EVENT_TIME = "it has no event time between the years 1 and 9999"
"""The reason for an event that an event-time operator cannot place."""

LETTER_FIELDS = {
    "port": "string",
    "reason": "string",
    "value": "binary",
    "key": "binary",
    "event_time": "timestamp",
    "source": "string",
    "stream": "string",
    "stream_id": "bigint",
    "message_id": "bigint",
    "segment": "string",
    "offset": "bigint",
    "watermark": "timestamp",
    "behind_us": "bigint",
}
"""Name → Spark type. `value` is the event's own bytes, never null in a dead letter; `segment` and `offset` are the
position from which it was read; `watermark` is the watermark it missed, `behind_us` by how much.
"""

LETTER_DDL = f"struct<{', '.join(f'{name}: {kind}' for name, kind in LETTER_FIELDS.items())}>"
"""The column's type, for Spark's `cast` and schemas."""


@cache
def letter_arrow() -> pa.DataType:
    """The column's type, exactly as Spark expects it from a function over Arrow batches."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", "UTC"),
        "bigint": pa.int64(),
    }
    return pa.struct([pa.field(name, kinds[kind]) for name, kind in LETTER_FIELDS.items()])


# Checks that the dead letters of a frame reach its end, by walking through its analyzed plan before anything runs. An
# operator that drops rows or columns without looking at `letter` would silently lose dead letters: a filter whose
# condition is null for them, a `select` that omits the column, a join, an aggregate. Such plans are refused.

_TYPE = f"struct<{','.join(f'{name}:{kind}' for name, kind in LETTER_FIELDS.items())}>"
_SEPARATOR = "\x1f"

_PASSING = {
    "SubqueryAlias",
    "View",
    "EventTimeWatermark",
    "Repartition",
    "RepartitionByExpression",
    "RebalancePartitions",
    "ResolvedHint",
    "UnresolvedHint",
    "CollectMetrics",
    "CTERelationDef",
}
"""Nodes that pass on every row and every column."""

_MAPPING = {"MapInArrow", "MapInPandas", "PythonMapInArrow"}
"""Python functions over batches: one that returns a column `letter` is responsible for the dead letters it receives."""

_WORDS = {
    "Join": "a join",
    "Aggregate": "an aggregate",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "GlobalLimit": "limit",
    "LocalLimit": "limit",
    "Sample": "sample",
    "Generate": "explode",
}
"""The users' names for nodes that often follow operators with dead letters."""

_SPLIT = "good, letters = penstock.dead_letters.split(frame) separates them: return letters beside your result."

Live = Mapping[int, frozenset[int]]
"""Ids of the `letter` columns in a node's output, each with the marks of the operators that created its
dead letters.
"""


def has_letters(frame: DataFrame) -> bool:
    """Whether the frame has our column `letter`. A column of that name with another type is an ordinary one."""
    return any(field.name == LETTER and field.dataType.simpleString() == _TYPE for field in frame.schema)


def check_letters(frame: DataFrame) -> frozenset[int]:
    """Marks of the operators that created the frame's dead letters: equal marks mean the same dead letters. Raises
    RequestError if an operator in between would lose some.
    """
    live = _live(frame._jdf.queryExecution().analyzed())  # noqa: SLF001  no public way to the plan
    return frozenset[int]().union(*live.values())


def _live(node: Any) -> Live:
    kind = node.getClass().getSimpleName()
    given = _letters_of(node)
    if kind in _MAPPING and given:
        return _made(node, given)
    children = node.children()
    below = [_live(children.apply(index)) for index in range(children.size())]
    if not any(below):
        return _made(node, given)
    match kind:
        case "Filter":
            return _filtered(node, below[0])
        case "Project":
            return _projected(node, below[0], given)
        case "Union":
            return _united(node, below, given)
        case "WithCTE":
            return below[0]
        case _ if kind in _PASSING or (kind == "Generate" and node.outer()):
            return below[0]
    raise _lost(f"{_WORDS.get(kind, kind)} above rows that may be dead letters would lose them", _SPLIT)


def _made(node: Any, given: Mapping[int, int]) -> Live:
    return {number: frozenset((node.semanticHash(),)) for number in given}


def _letters_of(node: Any) -> dict[int, int]:
    """Ids of the `letter` columns in a node's output, and their positions."""
    output = node.output()
    found = {}
    for place, text in enumerate(output.mkString(_SEPARATOR).split(_SEPARATOR)):
        name, _, number = text.rpartition("#")
        if name == LETTER and output.apply(place).dataType().catalogString() == _TYPE:
            found[int(number)] = place
    return found


def _looks_at(expression: Any, number: int) -> bool:
    return f"{LETTER}#{number}" in expression.references().toSeq().mkString(_SEPARATOR).split(_SEPARATOR)


def _filtered(node: Any, below: Live) -> Live:
    condition = node.condition()
    for number in below:
        if not _looks_at(condition, number):
            raise _lost(
                f"the filter {_short(condition)} ignores `{LETTER}` and would drop dead letters",
                f"Write penstock.dead_letters.where(frame, condition), which keeps them, or `{LETTER} IS NULL AND …`.",
            )
    return {number: marks for number, marks in below.items() if not _demands_null(condition, number)}


def _demands_null(condition: Any, number: int) -> bool:
    """Whether the condition passes only rows that are not dead letters."""
    match condition.getClass().getSimpleName():
        case "And":
            return _demands_null(condition.left(), number) or _demands_null(condition.right(), number)
        case "IsNull":
            return bool(condition.child().toString() == f"{LETTER}#{number}")
    return False


def _projected(node: Any, below: Live, given: Mapping[int, int]) -> Live:
    expressions = node.projectList()
    found = {
        number: frozenset[int]().union(
            *(marks for old, marks in below.items() if _looks_at(expressions.apply(place), old))
        )
        for number, place in given.items()
    }
    if any(not any(marks <= kept for kept in found.values()) for marks in below.values()):
        raise _lost(
            f"a select leaves out the column `{LETTER}` of rows that may be dead letters",
            f"Select `{LETTER}` too; or discard them: .where('{LETTER} IS NULL') before. {_SPLIT}",
        )
    return {number: marks or frozenset((node.semanticHash(),)) for number, marks in found.items()}


def _united(node: Any, below: list[Live], given: Mapping[int, int]) -> Live:
    """The dead letters of all children must be in one column, and none may occur twice."""
    marks: list[int] = []
    children = node.children()
    for index, live in enumerate(below):
        places = _letters_of(children.apply(index))
        if any(places.get(number) not in given.values() for number in live):
            raise _lost(f"a union puts `{LETTER}` and other columns into one", "Use unionByName.")
        marks += frozenset[int]().union(*live.values())
    if len(set(marks)) < len(marks):
        raise twice("a union")
    return {number: frozenset(marks) for number in given}


def twice(where: str) -> RequestError:
    return RequestError(
        f"{where} has the same dead letters twice and would emit them twice",
        f"Keep them in one of the frames, and write .where('{LETTER} IS NULL').drop('{LETTER}') for the others.",
    )


def _lost(what: str, hint: str) -> RequestError:
    return RequestError(what, hint)


def _short(condition: Any) -> str:
    text = str(condition.sql())
    return text if len(text) <= 80 else f"{text[:80]}…"
