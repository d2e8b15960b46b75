"""Reads the state plan of a frame from what `frame.explain(extended=True)` prints: Spark's analyzed plan as text, which
has names of columns as the user has written them, before the optimizer changes anything.

Spark's text is for people: it quotes no strings, and shows few types. So a literal with brackets may garble what is
read, but always in the same way: an unchanged pipeline fits its state.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field
from io import StringIO, TextIOBase
from typing import TYPE_CHECKING, Any, TextIO

from penstock.core.errors import RequestError
from penstock.spark.run.state_plan import StatefulOperator, StatePlan
from penstock.spark.source.control import FORMAT, PRETENDED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_MARK = "penstock.operator:"
"""The prefix of an alias by which one of our operators describes itself inside Spark's plan."""

_FIELDS_MAX = "spark.sql.debug.maxToStringFields"
"""How many columns of a node Spark shows."""

_ANALYZED, _NEXT = "== Analyzed Logical Plan ==\n", "\n== Optimized Logical Plan =="

_NODE = re.compile(r"(?P<above>(?::  |   )*)(?:\+- |:- )(?P<is_streaming>~?)(?P<kind>\w+) ?(?P<text>.*)")
_ROOT = re.compile(r"(?P<above>)(?P<is_streaming>~?)(?P<kind>\w+) ?(?P<text>.*)")
_LEVEL_CHARS = 3

_ID = r"#(?P<id>\d+)(?P<long>L?)(?:-T\d+ms)?"
"""Spark numbers columns, marks those of type bigint, and shows the delay of a watermark."""
_COLUMN = re.compile(rf"(?P<name>[^#]+){_ID}")
_ALIAS = re.compile(rf"(?P<expression>.+) AS (?P<name>[^#]+){_ID}", re.DOTALL)
_CAST = re.compile(r"cast\((?P<value>.*) as (?P<kind>[^()]+(?:\([\d,]+\))?)\)", re.DOTALL)
_EXPRESSION = "…"
"""Stands for what is computed: it may change, and may contain something that changes by itself, such as a time."""

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

_FUNCTIONS = """
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine
    array_agg avg bit_and bit_or bit_xor bool_and bool_or collect_list collect_set collect_union corr count count_if
    count_min_sketch covar_pop covar_samp every first first_value histogram_numeric hll_sketch_agg hll_union_agg
    kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double
    kll_sketch_agg_float kurtosis last last_value listagg max max_by mean measure median min min_by mode percentile
    percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2
    regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp string_agg sum
    theta_intersection_agg theta_sketch_agg theta_union_agg try_avg try_sum tuple_intersection_agg_double
    tuple_intersection_agg_integer tuple_sketch_agg_double tuple_sketch_agg_integer tuple_union_agg_double
    tuple_union_agg_integer var_pop var_samp variance
"""
AGGREGATES = frozenset(_FUNCTIONS.split())
"""Spark's aggregate functions: what else is computed from them after they are aggregated is not state."""

_CALL = re.compile(r"(?<![\w.`])([a-z_0-9]+)\(")
_EQUAL = re.compile(r" (?:=|<=>) ")
_TIME_WINDOWS = {"window", "session_window"}
_LENGTH = re.compile(r"(?<![#\w])(\d{4,})\b|cast\(([^()]*) as interval\)")
"""In Spark's expression of a time window; `#12345` is the id of a column."""


def described(frame: DataFrame, operator: StatefulOperator) -> DataFrame:
    """The frame, with a description of the operator that produces it. Spark's optimizer removes the description."""
    return frame.alias(_MARK + json.dumps(asdict(operator)))


def state_plan_of(frame: DataFrame) -> StatePlan:
    """The state plan of a frame that a query is about to write."""
    return parse_plan(_explained(frame))


def _explained(frame: DataFrame) -> str:
    conf = frame.sparkSession.conf
    before, printed = conf.get(_FIELDS_MAX), _PrintedHere(sys.stdout)
    conf.set(_FIELDS_MAX, str(2**31 - 1))
    try:
        with redirect_stdout(printed):
            frame.explain(extended=True)
    finally:
        conf.set(_FIELDS_MAX, str(before))
    return printed.text


class _PrintedHere(TextIOBase):
    """Keeps what this thread prints. Others print to where they did."""

    def __init__(self, others: TextIO) -> None:
        self._others = others
        self._thread = threading.get_ident()
        self._printed = StringIO()

    @property
    def text(self) -> str:
        return self._printed.getvalue()

    def write(self, text: str) -> int:
        return (self._printed if threading.get_ident() == self._thread else self._others).write(text)

    def flush(self) -> None:
        self._others.flush()


@dataclass(slots=True)
class Node:
    """A node of the plan; `text` is what follows its kind."""

    kind: str
    text: str
    is_streaming: bool
    children: list[Node] = field(default_factory=list)

    def all(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.all()


def parse_plan(explained: str) -> StatePlan:
    """From what `explain` has printed."""
    root = _tree(explained.partition(_ANALYZED)[2].partition(_NEXT)[0])
    kinds = _types(root)
    return StatePlan(tuple(_loads(root)), tuple(_operator(node, kinds) for node in _stateful(root)))


def _tree(text: str) -> Node:
    """The first line has the columns. A line that is not a node belongs to a literal in the node before."""
    _, first, *others = text.splitlines()
    path = [_node(_ROOT, first)]
    for line in others:
        found = _NODE.fullmatch(line)
        level = 0 if found is None else len(found["above"]) // _LEVEL_CHARS + 1
        if not 1 <= level <= len(path):
            path[-1].text += f"\n{line}"
            continue
        del path[level:]
        node = _node(_NODE, line)
        path[-1].children.append(node)
        path.append(node)
    return path[0]


def _node(form: re.Pattern[str], line: str) -> Node:
    found = form.fullmatch(line)
    assert found is not None, line
    return Node(found["kind"], found["text"], found["is_streaming"] == "~")


# Inputs.


def _loads(root: Node) -> Iterator[str]:
    for leaf in root.all():
        if leaf.kind == "StreamingRelationV2":
            yield _load(leaf)


def _load(leaf: Node) -> str:
    """Its input, for one of our loads or a placeholder for one; otherwise the name of its source."""
    source = _parts(leaf.text)[1]
    prefix = "" if source == FORMAT else re.escape(PRETENDED)
    if source != FORMAT and PRETENDED not in leaf.text:
        return source
    options = dict(re.findall(rf"(?i)[\[ ]{prefix}(input|rows)=([^,\]]*)", leaf.text))
    return f"{options.get('input', '')}{' (watermark)' if options.get('rows') == 'control' else ''}"


# Operators with state.


def _stateful(node: Node) -> Iterator[Node]:
    """The stateful nodes, each before those that it reads from."""
    below = node.children
    if _is_described(node):
        yield node
        below = node.children[0].children  # the child is what the alias describes
    elif _keeps_state(node):
        yield node
    for child in below:
        yield from _stateful(child)


def _is_described(node: Node) -> bool:
    return node.kind == "SubqueryAlias" and node.text.startswith(f"`{_MARK}")


def _keeps_state(node: Node) -> bool:
    if node.kind == "Join":
        return all(child.is_streaming for child in node.children)
    if node.kind == "GlobalLimit" and node.text == "0":  # Spark leaves it out: it only keeps its load
        return False
    return node.kind in _NAMES and node.is_streaming


def _operator(node: Node, kinds: Mapping[str, str]) -> StatefulOperator:
    if node.kind == "SubqueryAlias":
        text = node.text[1:-1].replace("``", "`").removeprefix(_MARK)
        return StatefulOperator.of(json.loads(text))
    columns = _Columns(kinds)
    facts = _facts(node, columns)
    return StatefulOperator(_NAMES[node.kind], facts, types=columns.types)


def _facts(node: Node, columns: _Columns) -> dict[str, str]:
    parts = _parts(node.text)
    match node.kind:
        case "Aggregate":
            # Without keys, Spark shows one list alone.
            keys, results = map(_list, parts[:2] if len(parts) > 1 else ("", parts[0]))
            named, calls = ", ".join(map(columns.name, keys)), ", ".join(_aggregates(results, columns))
            return {"keys": named or "none", "aggregates": calls or "none"} | _time_window(node)
        case "Deduplicate" | "DeduplicateWithinWatermark":
            return {"keys": ", ".join(sorted(map(columns.name, _list(parts[0]))))}
        case "Join":
            pairs = sorted(" = ".join(sorted(map(columns.name, pair))) for pair in _equal(node.text))
            return {"type": parts[0], "keys": ", ".join(pairs) or "none"}
    return {}


class _Columns:
    """The columns that an operator's state depends on."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        """`kinds`: column id → type, as far as known."""
        self._kinds = kinds
        self._found: dict[str, set[str]] = {}

    def name(self, expression: str) -> str:
        found = _COLUMN.fullmatch(expression)
        if found is None:
            return _EXPRESSION
        if (kind := _type(expression, self._kinds)) is not None:
            self._found.setdefault(found["name"], set()).add(kind)
        return found["name"]

    @property
    def types(self) -> dict[str, str]:
        """Those that are known; both sides of a join may have a column of the same name."""
        return {name: ", ".join(sorted(kinds)) for name, kinds in self._found.items()}


def _aggregates(results: list[str], columns: _Columns) -> list[str]:
    """Each with its columns, in the order of the results."""
    found: dict[str, None] = {}
    for result in results:
        alias = _ALIAS.fullmatch(result)  # whose name may look like a call, too
        expression = result if alias is None else alias["expression"]
        for call in _CALL.finditer(expression):
            if call[1] in AGGREGATES:
                given = map(columns.name, _parts(_until_closed(expression[call.end() :])))
                found[f"{call[1]}({', '.join(dict.fromkeys(given))})"] = None
    return list(found)


def _equal(condition: str) -> Iterator[list[str]]:
    """Both sides of the equalities in it: with these Spark looks up rows of the other side of a join."""
    for opened in re.finditer(r"\(", condition):
        sides = _parts(_until_closed(condition[opened.end() :]), _EQUAL)
        if len(sides) > 1:
            yield sides


def _time_window(node: Node) -> dict[str, str]:
    """The lengths of a `window` or `session_window` that rows are grouped by. Spark has turned it into an expression in
    a lower node, with the lengths in microseconds or as intervals.
    """
    keys = _names(_parts(node.text)[0])
    for below in node.all() if keys & _TIME_WINDOWS else ():
        for text in _added_columns(below, keys & _TIME_WINDOWS):
            lengths = (_as_seconds(found) for found in _LENGTH.finditer(text))
            return {"time window": ", ".join(dict.fromkeys(lengths))}
    return {}


def _added_columns(node: Node, names: set[str]) -> Iterator[str]:
    """The expressions of the columns with these names that the node adds."""
    parts = _parts(node.text)
    match node.kind:
        case "Project":
            found = (_ALIAS.fullmatch(one) for one in _list(parts[0]))
            yield from (one["expression"] for one in found if one is not None and one["name"] in names)
        case "Expand" if names & _names(parts[-1]):
            yield parts[0]


def _names(columns: str) -> set[str]:
    """Of a list, without what is computed in it."""
    return {found["name"] for one in _list(columns) if (found := _COLUMN.fullmatch(one)) is not None}


def _as_seconds(length: re.Match[str]) -> str:
    return f"{int(length[1]) / 1_000_000:g} s" if length[1] else length[2]


def _types(root: Node) -> dict[str, str]:
    """Column id → its type, of columns whose expressions show it: casts, and other names of such columns."""
    found: dict[str, str] = {}
    for node in reversed([*root.all()]):  # a column's own comes before those that use it
        for one in _list(_parts(node.text)[0]) if node.kind == "Project" else ():
            alias = _ALIAS.fullmatch(one)
            if alias is not None and (kind := _type(alias["expression"], found)) is not None:
                found[alias["id"]] = kind
    return found


def _type(expression: str, known: Mapping[str, str]) -> str | None:
    if (column := _COLUMN.fullmatch(expression)) is not None:
        return "bigint" if column["long"] else known.get(column["id"])
    cast = _CAST.fullmatch(expression)
    is_whole = cast is not None and _until_closed(expression[len("cast(") :]) == expression[len("cast(") : -1]
    return cast["kind"] if cast is not None and is_whole else None


# Lists and brackets.


def _list(text: str) -> list[str]:
    """The elements of `[a, b]`."""
    inner = text.removeprefix("[").removesuffix("]")
    return _parts(inner) if inner else []


def _parts(text: str, separator: re.Pattern[str] = re.compile(", ")) -> list[str]:
    """Split where no bracket is open."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        found = separator.match(text, at) if depth == 0 else None
        if found is not None:
            parts.append(text[start:at])
            start = at = found.end()
            continue
        depth = max(0, depth + (text[at] in "([") - (text[at] in ")]"))
        at += 1
    return [*parts, text[start:]]


def _until_closed(text: str) -> str:
    """Up to the bracket that closes one before the text."""
    depth = 1
    for at, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth == 0:
            return text[:at]
    return text


# What a DataStreamWriter writes.


_UNKNOWN_WRITER_HINT = "Call writeStream inside the function, or in a thread that the function waits for."

_WRITE_STREAM = "writeStream"


class WriterFrames:
    """The frames of writers that were made while it was followed: a writer does not show its own."""

    def __init__(self) -> None:
        self._made: list[tuple[object, DataFrame]] = []

    def of(self, writer: DataStreamWriter) -> DataFrame:
        """Raises RequestError for a writer that was made while it was not followed."""
        for made, frame in self._made:
            if made is writer:
                return frame
        raise RequestError("it is not known which frame the writer writes", _UNKNOWN_WRITER_HINT)

    def note(self, writer: object, frame: DataFrame) -> None:
        self._made.append((writer, frame))


class _FollowedProperty:
    """The public property `DataFrame.writeStream` of every class of frames, replaced by one that also notes what it
    returns, in whichever thread, while anybody follows.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: tuple[WriterFrames, ...] = ()
        self._replaced: list[tuple[type[DataFrame], Any]] = []

    def add(self, frames: WriterFrames) -> None:
        with self._lock:
            if not self._followers:
                self._replace()
            self._followers = (*self._followers, frames)

    def remove(self, frames: WriterFrames) -> None:
        with self._lock:
            self._followers = tuple(one for one in self._followers if one is not frames)
            if not self._followers:
                self._restore()

    def _replace(self) -> None:
        from pyspark.sql import DataFrame

        for kind in _with_subclasses(DataFrame):  # Spark's own frames, and those of Spark Connect
            if (own := vars(kind).get(_WRITE_STREAM)) is not None:
                self._replaced.append((kind, own))
                setattr(kind, _WRITE_STREAM, self._noting(own))

    def _restore(self) -> None:
        for kind, own in self._replaced:
            setattr(kind, _WRITE_STREAM, own)
        self._replaced = []

    def _noting(self, own: Any) -> property:
        def made(frame: DataFrame) -> Any:
            writer = own.__get__(frame, type(frame))
            for frames in self._followers:
                frames.note(writer, frame)
            return writer

        return property(made, doc=own.__doc__)


def _with_subclasses(kind: type[DataFrame]) -> Iterator[type[DataFrame]]:
    yield kind
    for derived in kind.__subclasses__():
        yield from _with_subclasses(derived)


_followed = _FollowedProperty()


@contextmanager
def following_writers() -> Iterator[WriterFrames]:
    """Notes what `frame.writeStream` returns, for which frame."""
    frames = WriterFrames()
    _followed.add(frames)
    try:
        yield frames
    finally:
        _followed.remove(frames)
