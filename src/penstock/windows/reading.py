"""`where=` and `select=` of windows, and whether the readers of an input can compute them.

They can if that gives what Spark would compute: rows, nulls, types and errors. Otherwise Spark does, and `penstock
explain` shows why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.core.errors import RequestError
from penstock.spark.input_frames import InputFrame, OperatorNote
from penstock.spark.pipeline_context import PipelineContext
from penstock.spark.source.schema import COLUMNS
from penstock.windows.evaluation import And, Column, Expression, Resolver, predicate, typed
from penstock.windows.expressions import Name, NotCovered, parse
from penstock.windows.fused import PLACE, Input, Reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.windows.measures import ColumnLike

Inputs = Mapping[str, "tuple[ColumnLike, bool]"]
"""The columns of aggregates by their names in `builder.choose`: what is in them, and whether it is hashed."""

_MICROSECONDS = pa.timestamp("us", "UTC")

_LIMIT_RULE = "OptimizeLimitZero"
"""Of Spark's optimizer: it leaves out what a fused query must not read."""

_HASHED = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary()),
    *(pa.date32(), _MICROSECONDS, pa.timestamp("us")),
)

DECIMAL_DIGITS_MAX = 18
"""Spark hashes longer decimals as the bytes of a BigInteger."""


def can_be_hashed(kind: pa.DataType) -> bool:
    """Whether `hashing` computes Spark's hash of this type."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= DECIMAL_DIGITS_MAX)
    return kind in _HASHED


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a window operator reads, as its user wrote it."""

    given: InputFrame | None
    """The input that it was applied to; None if that was another frame."""
    where: str | None
    select: Mapping[str, str]
    event_time: str
    keys: Sequence[ColumnLike]

    @property
    def input(self) -> InputFrame:
        assert self.given is not None
        return self.given

    def computed_by_spark(self, frame: DataFrame) -> DataFrame:
        """Raises RequestError for what is not Spark SQL on the frame's columns."""
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions as F  # noqa: N812  as PySpark's own documentation writes it

        try:
            frame = frame if self.where is None else frame.where(F.expr(self.where))
            computed = {name: F.expr(text) for name, text in self.select.items()}
            rows = frame.withColumns(computed) if computed else frame
            _ = rows.isStreaming  # a session of Spark Connect analyzes nothing before it has to
            return rows
        except AnalysisException as error:
            raise RequestError(
                f"where= or select= cannot be computed: {str(error).splitlines()[0]}",
                'Both are Spark SQL on the frame\'s columns: where="amount > 10", select={"cents": "amount * 100"}.',
            ) from None


def reading_or_note(
    context: PipelineContext, operator: str, request: Request, inputs: Inputs, schema: pa.Schema, rows: DataFrame
) -> Reading | None:
    """None if Spark must compute the rows. The context notes why. `schema` has the types that Spark finds for the
    columns of `rows` that windows use.
    """
    reading, reason = None, None
    try:
        reading = reading_of(request, inputs, schema, context.options.get("input"), rows.sparkSession)
    except NotCovered as error:
        reason = str(error)
    context.notes.append(
        OperatorNote(
            operator=operator,
            input=None if request.given is None else request.given.options.get("input"),
            not_fused=reason,
            columns=() if reading is None else reading.columns(),
            where=request.where,
            select=request.select,
        )
    )
    return reading


def reading_of(request: Request, inputs: Inputs, schema: pa.Schema, first: str | None, spark: SparkSession) -> Reading:
    """`first` is the pipeline's first input, whose load has the control rows. Raises NotCovered, with the reason."""
    if request.given is None:
        raise NotCovered("the frame is not an input itself, but derived from one: use where= and select= instead")
    if request.given.options.get("input") != first:
        raise NotCovered("it is not the first input of the pipeline, whose readers also return the control rows")
    if _LIMIT_RULE in (spark.conf.get("spark.sql.optimizer.excludedRules", None) or ""):
        raise NotCovered(f"spark.sql.optimizer.excludedRules has {_LIMIT_RULE}")
    scope = _Scope.of(request.given, case_sensitive=_is_set(spark, "spark.sql.caseSensitive"))
    where = () if request.where is None else tuple(_conditions(request.where, scope.resolver))
    selected = scope.selecting(request.select)
    found = {
        name: Input(selected.hashed(one) if is_hashed else selected.named(one), is_hashed)
        for name, (one, is_hashed) in inputs.items()
    }
    keys = {f"k{number}": selected.hashed(one) for number, one in enumerate(request.keys)}
    reading = Reading(where=where, time=selected.named(request.event_time), keys=keys, inputs=found)
    _check_arithmetic(spark, reading)
    _check_types(reading, schema, request.event_time)
    return reading


def _is_set(spark: SparkSession, name: str) -> bool:
    return str(spark.conf.get(name)).lower() == "true"


def _check_arithmetic(spark: SparkSession, reading: Reading) -> None:
    used = (*reading.where, *reading.keys.values(), *(one.expression for one in reading.inputs.values()))
    if any(one.is_arithmetic for one in used) and not _is_set(spark, "spark.sql.ansi.enabled"):
        raise NotCovered("spark.sql.ansi.enabled is false, which makes a difference to arithmetic")


def _check_types(reading: Reading, schema: pa.Schema, event_time: str) -> None:
    """Spark must find the same types for what is computed."""
    if reading.time.type != _MICROSECONDS:
        raise NotCovered(f"`{event_time}` is {reading.time.type}")
    computed = {**reading.keys, **{name: one.expression for name, one in reading.inputs.items() if not one.is_hashed}}
    for name, expression in computed.items():
        if not isinstance(expression, Column) and expression.type != schema.field(name).type:
            raise NotCovered(f"{expression.type} is {schema.field(name).type} for Spark")


def _conditions(text: str, resolver: Resolver) -> Iterator[Expression]:
    """Those that `and` combines, from left to right; neighbours that cannot fail are one."""
    try:
        found = [*_conjuncts(predicate(parse(text), resolver))]
    except NotCovered as error:
        raise NotCovered(f"where: readers cannot compute this: {error}") from None
    together: list[Expression] = []
    for one in found:
        if one.may_fail and together:
            yield _all(together)
            together = []
        together.append(one)
        if one.may_fail:
            yield _all(together)
            together = []
    if together:
        yield _all(together)


def _conjuncts(found: Expression) -> Iterator[Expression]:
    if isinstance(found, And):
        yield from _conjuncts(found.left)
        yield from _conjuncts(found.right)
    else:
        yield found


def _all(conditions: list[Expression]) -> Expression:
    return reduce(lambda one, other: And(pa.bool_(), one, other), conditions)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Columns by name, in their order."""

    columns: tuple[tuple[str, Expression], ...]
    case_sensitive: bool

    @classmethod
    def of(cls, given: InputFrame, *, case_sensitive: bool) -> _Scope:
        """The columns that a frame has as its reader returns them."""
        from pyspark.sql.pandas.types import to_arrow_type

        kinds = {field.name: field.dataType for field in given.read}
        if sum(name.lower() in PLACE for name in kinds) > sum(name in PLACE for name in _own(given)):
            raise NotCovered("a decoded field is named like the position of an event, segment or offset")
        same = [field for field in given.frame.schema if kinds.get(field.name) == field.dataType]
        columns = ((one.name, Column(to_arrow_type(one.dataType, timezone="UTC"), one.name)) for one in same)
        return cls(tuple(columns), case_sensitive)

    @property
    def resolver(self) -> Resolver:
        return Resolver(self.columns, case_sensitive=self.case_sensitive)

    def selecting(self, select: Mapping[str, str]) -> _Scope:
        """With the columns that expressions of this scope's add or replace, as `withColumns` does."""
        if any(name.lower() in PLACE for name in select):
            raise NotCovered("select replaces the position of an event, segment or offset")
        computed = {name: self._computed(name, text) for name, text in select.items()}
        resolver = self.resolver
        kept = [one for one in self.columns if not any(resolver.is_same(one[0], name) for name in computed)]
        return _Scope((*kept, *computed.items()), self.case_sensitive)

    def _computed(self, name: str, text: str) -> Expression:
        try:
            return typed(parse(text), self.resolver)
        except NotCovered as error:
            raise NotCovered(f"select: {name}: readers cannot compute this: {error}") from None

    def named(self, given: ColumnLike) -> Expression:
        """The column that a user has named."""
        if not isinstance(given, str):
            raise NotCovered(f"{given!r} is an expression of Spark: write it as text in select=, and name it here")
        exact = [found for name, found in self.columns if name == given]
        if exact:
            return self.resolver.column((given,))
        node = parse(given)
        if not isinstance(node, Name):
            raise NotCovered(f"{given!r} is not the name of a column")
        return self.resolver.column(node.parts)

    def hashed(self, given: ColumnLike) -> Expression:
        """One that is hashed, as Spark does it."""
        found = self.named(given)
        if not can_be_hashed(found.type):
            raise NotCovered(f"`{given}` is {found.type}, whose hash only Spark computes")
        return found


def _own(given: InputFrame) -> list[str]:
    """The events' own columns that a load returns."""
    columns = given.options.get("columns")
    return [*COLUMNS] if columns is None else [name.strip() for name in columns.split(",")]
