"""The plan that a query's checkpoint belongs to: the loads it reads and its stateful operators. It is read from the
analyzed plan, before anything is started, so that a changed pipeline can be compared with its checkpoint.

It contains only what Spark and our windows cannot change under existing state: number and types of keys, aggregate
functions, windows, join keys. Filters, projections and everything after the stateful operators may differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RequestError, UnreadableFormat
from penstock.spark.source.control import options_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT = 1
"""The format version of a stored plan."""

_START_OVER = (
    "Start {name} from scratch: penstock pipeline reset {name}. Or remove the file if you know that the pipeline still "
    "fits its state: then they are not compared."
)

_MARK = "penstock.operator:"
"""The prefix of an alias by which one of our operators describes itself inside Spark's plan."""

_GROUPS_WITH_STATE = (
    "TransformWithState",
    "TransformWithStateInPySpark",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
)
_NAMES = {
    "Aggregate": "groupBy",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Join": "join",
    "GlobalLimit": "limit",
    **dict.fromkeys(_GROUPS_WITH_STATE, "transformWithState"),
}
_TIME_WINDOWS = {"window", "session_window"}
_LENGTH = re.compile(r"(?<![#\w])(\d{4,})\b|cast\(([^()]*) as interval\)")
"""In Spark's expression of a time window; `#12345` is the id of a column."""

_COMPATIBLE = (
    "You may change filters, computed columns, decoding, sinks, triggers and limits, add or remove sources of an "
    "existing input, and in windows late, late_rule and bucket_bytes_max. To start {name} from scratch instead, stop "
    "it and run: penstock pipeline reset {name}. Or give the changed pipeline another name."
)


@dataclass(frozen=True, slots=True)
class StatefulOperator:
    """`facts`: what its state depends on, in readable form."""

    name: str
    facts: Mapping[str, str]
    buckets: int | None = None
    """Only for our windows."""


@dataclass(frozen=True, slots=True)
class StatePlan:
    loads: tuple[str, ...]
    """Inputs in the order in which the query reads them: Spark identifies offsets by their position."""
    operators: tuple[StatefulOperator, ...] = ()

    @property
    def buckets(self) -> int | None:
        """The largest number of buckets of its windows; None without windows."""
        return max((one.buckets for one in self.operators if one.buckets is not None), default=None)

    def text(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def parse(cls, text: str, name: str) -> StatePlan:
        """`name` is the pipeline's. Raises UnreadableFormat for a text that another version has written."""
        found = None
        try:
            data = json.loads(text)
            found = data.get("format")
            if found == FORMAT:
                return cls(tuple(data["loads"]), tuple(StatefulOperator(**one) for one in data["operators"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            found = None
        what = f"the plan of {name}'s state (penstock.json in its checkpoint)"
        raise UnreadableFormat(what, found if isinstance(found, int) else None, FORMAT, _START_OVER.format(name=name))


def check_compatible(name: str, stored: StatePlan, new: StatePlan) -> None:
    """Raises RequestError that lists all differences, and what may be changed."""
    if found := differences(stored, new):
        lines = "\n".join(f"  {one}" for one in found)
        raise RequestError(
            f"the pipeline {name!r} does not fit its stored state\n{lines}", _COMPATIBLE.format(name=name)
        )


def differences(stored: StatePlan, new: StatePlan) -> list[str]:
    found = []
    if stored.loads != new.loads:
        found.append(f"inputs: stored {_listed(stored.loads)}; now {_listed(new.loads)}")
    old_names, new_names = ([one.name for one in plan.operators] for plan in (stored, new))
    if old_names != new_names:
        return [*found, f"operators with state: stored {_listed(old_names)}; now {_listed(new_names)}"]
    for old, one in zip(stored.operators, new.operators, strict=True):
        for fact in dict.fromkeys((*old.facts, *one.facts)):
            before, now = old.facts.get(fact, "none"), one.facts.get(fact, "none")
            if before != now:
                found.append(f"{one.name}: {fact}: stored {before}; now {now}")
    return found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


# How plans are read.


def described(frame: DataFrame, operator: StatefulOperator) -> DataFrame:
    """The frame, with a description of the operator that produces it. Spark's optimizer removes the description."""
    return frame.alias(_MARK + json.dumps(asdict(operator)))


def state_plan_of(frame: DataFrame) -> StatePlan:
    """The state plan of a frame that a query is about to write."""
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001  no public way to the plan
    return StatePlan(tuple(_loads(plan)), tuple(map(_operator, _stateful(plan))))


def _loads(plan: Any) -> Iterator[str]:
    for leaf in _each(plan.collectLeaves()):
        if _class(leaf) == "StreamingRelationV2":
            options = options_of(leaf)
            if options is None:
                yield str(leaf.sourceName())
            else:
                is_control = options.get("rows") == "control"
                yield f"{options.get('input', '')}{' (watermark)' if is_control else ''}"


def _stateful(node: Any) -> Iterator[Any]:
    """The stateful nodes, each before those that it reads from."""
    kind = _class(node)
    if kind == "SubqueryAlias" and str(node.alias()).startswith(_MARK):
        yield node
        below = node.child().children()  # the child is what the alias describes
    else:
        if _keeps_state(node, kind):
            yield node
        below = node.children()
    for child in _each(below):
        yield from _stateful(child)


def _keeps_state(node: Any, kind: str) -> bool:
    if kind == "Join":
        return bool(node.left().isStreaming() and node.right().isStreaming())
    return kind in _NAMES and bool(node.isStreaming())


def _operator(node: Any) -> StatefulOperator:
    kind = _class(node)
    match kind:
        case "SubqueryAlias":
            return StatefulOperator(**json.loads(str(node.alias()).removeprefix(_MARK)))
        case "Aggregate":
            facts = {"keys": _columns(node.groupingExpressions()), "aggregates": _aggregates(node)}
            facts |= _time_window(node)
        case "Deduplicate" | "DeduplicateWithinWatermark":
            facts = {"keys": ", ".join(sorted(_column(one) for one in _each(node.keys())))}
        case "Join":
            facts = {"type": str(node.joinType().sql()), "keys": _join_keys(node)}
        case _:
            facts = {}
    return StatefulOperator(_NAMES[kind], facts)


def _columns(expressions: Any) -> str:
    return ", ".join(map(_column, _each(expressions))) or "none"


def _column(expression: Any) -> str:
    """Name and type of a named column, otherwise the type alone: an expression may contain something that changes by
    itself, such as the current time.
    """
    kind = str(expression.dataType().simpleString())
    named = _class(expression) in ("AttributeReference", "Alias")
    return f"{expression.name()} {kind}" if named else f"({kind})"


def _aggregates(node: Any) -> str:
    found: dict[str, None] = {}
    for expression in _each(node.aggregateExpressions()):
        for one in _nodes(expression):
            if _class(one) == "AggregateExpression":
                function = one.aggregateFunction()
                found[f"{function.prettyName()}({_columns(function.children())})"] = None
    return ", ".join(found) or "none"


def _join_keys(node: Any) -> str:
    """The equalities in its condition: with these Spark looks up rows of the other side."""
    condition = node.condition()
    if not condition.isDefined():
        return "none"
    equal = [one for one in _nodes(condition.get()) if _class(one) in ("EqualTo", "EqualNullSafe")]
    return ", ".join(sorted(" = ".join(sorted(map(_column, _each(one.children())))) for one in equal)) or "none"


def _time_window(node: Any) -> dict[str, str]:
    """The lengths of a `window` or `session_window` that rows are grouped by. Spark has turned it into an expression in
    a lower node, with the lengths in microseconds or as intervals.
    """
    keys = {str(one.name()) for one in _each(node.groupingExpressions()) if _class(one) == "AttributeReference"}
    for below in _nodes(node.child()) if keys & _TIME_WINDOWS else ():
        for text in _added_columns(below, keys & _TIME_WINDOWS):
            lengths = (_as_seconds(found) for found in _LENGTH.finditer(text))
            return {"time window": ", ".join(dict.fromkeys(lengths))}
    return {}


def _added_columns(node: Any, names: set[str]) -> Iterator[str]:
    """The expressions, as text, of the columns with these names that the node adds."""
    match _class(node):
        case "Project":
            for one in _each(node.projectList()):
                if _class(one) == "Alias" and one.name() in names:
                    yield str(one.child().toString())
        case "Expand" if names & {str(one.name()) for one in _each(node.output())}:
            yield str(node.projections().toString())


def _as_seconds(length: re.Match[str]) -> str:
    return f"{int(length[1]) / 1_000_000:g} s" if length[1] else length[2]


def _nodes(tree: Any) -> Iterator[Any]:
    yield tree
    for child in _each(tree.children()):
        yield from _nodes(child)


def _each(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala Seq."""
    for number in range(sequence.size()):
        yield sequence.apply(number)


def _class(node: Any) -> str:
    return str(node.getClass().getSimpleName())
