"""Expressions on Arrow batches, with the types, the nulls and the errors that Spark's have in ANSI mode.

A part of an expression that may fail is evaluated only for the rows for which Spark evaluates it: `b != 0 and a / b >
1` does not divide by zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import ArithmeticException

from penstock.windows.expressions import Binary, Constant, Name, Node, NotCovered, Unary

KINDS = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
}
"""The types that expressions compute with, by Spark's names."""

_ARROW = {kind: arrow for arrow, kind in KINDS.items()}
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_NUMBERS = (*_INTEGERS, "double")
_COMPARED = (*_NUMBERS, "string", "date", "timestamp")
_EQUATED = (*_COMPARED, "boolean", "binary")

OVERFLOW = "[ARITHMETIC_OVERFLOW] {} overflow."
SMALL_OVERFLOW = "[BINARY_ARITHMETIC_OVERFLOW] {} caused overflow."
ZERO = {"/": "[DIVIDE_BY_ZERO] Division by zero.", "%": "[REMAINDER_BY_ZERO] Remainder by zero."}
"""Spark's conditions, so that a query fails as it would without us."""


@dataclass(frozen=True, slots=True)
class Expression(ABC):
    """Typed, and ready to be evaluated."""

    type: pa.DataType
    """Of its values."""

    @property
    def may_fail(self) -> bool:
        """Whether there are values for which it raises."""
        return any(one.may_fail for one in self.operands)

    @property
    def operands(self) -> tuple[Expression, ...]:
        return ()

    @property
    def is_arithmetic(self) -> bool:
        """Whether ANSI mode makes a difference to it."""
        return any(one.is_arithmetic for one in self.operands)

    @abstractmethod
    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """An array of `type` with a value for each row. Raises ArithmeticException as Spark does."""

    def columns(self) -> Iterator[str]:
        """The columns of a batch that it reads."""
        for one in self.operands:
            yield from one.columns()


class Resolver:
    """Finds columns as Spark does: ignoring case, unless the session is case-sensitive."""

    def __init__(self, columns: Sequence[tuple[str, Expression]], *, case_sensitive: bool) -> None:
        self._columns = columns
        self._case_sensitive = case_sensitive

    def column(self, parts: tuple[str, ...]) -> Expression:
        """A column, or a field of one. Raises NotCovered unless exactly one is meant."""
        found = self._one(parts[0], self._columns, parts)
        for part in parts[1:]:
            if not isinstance(found, Column) or not pa.types.is_struct(found.type):
                raise NotCovered(f"`{'.'.join(parts)}` is not a field of a struct")
            kind = found.type
            fields = [
                (kind.field(number).name, Column(kind.field(number).type, found.name, (*found.path, number)))
                for number in range(kind.num_fields)
            ]
            found = self._one(part, fields, parts)
        return found

    def _one(self, name: str, columns: Sequence[tuple[str, Expression]], parts: tuple[str, ...]) -> Expression:
        found = [one for known, one in columns if self.is_same(known, name)]
        if len(found) != 1:
            what = "is not a column that its reader returns" if not found else "is the name of several columns"
            raise NotCovered(f"`{'.'.join(parts)}` {what}")
        return found[0]

    def is_same(self, one: str, other: str) -> bool:
        """Whether two names mean the same column."""
        return one == other if self._case_sensitive else one.lower() == other.lower()


def typed(node: Node, resolver: Resolver) -> Expression:
    """Raises NotCovered for columns, types and coercions that are not computed here."""
    match node:
        case Name(parts):
            return resolver.column(parts)
        case Constant(value, kind):
            return Literal(_ARROW.get(kind, pa.float64()), value, is_decimal=kind == "decimal")
        case Unary("-", operand):
            return _negative(typed(operand, resolver))
        case Unary("not", operand):
            return Not(pa.bool_(), _boolean(typed(operand, resolver)))
        case Unary(operator, operand):
            return IsNull(pa.bool_(), typed(operand, resolver), is_negated=operator == "is not null")
        case Binary("and" | "or" as operator, left, right):
            one, other = (_boolean(typed(each, resolver)) for each in (left, right))
            return (And if operator == "and" else Or)(pa.bool_(), one, other)
        case Binary(operator, left, right):
            return _paired(operator, typed(left, resolver), typed(right, resolver))


def predicate(node: Node, resolver: Resolver) -> Expression:
    """A condition. Raises NotCovered."""
    return _boolean(typed(node, resolver))


def _boolean(found: Expression) -> Expression:
    if found.type != pa.bool_():
        raise NotCovered(f"{_kind(found)} as a condition")
    return found


def _negative(found: Expression) -> Expression:
    if _kind(found) not in _NUMBERS or _is_decimal(found):
        raise NotCovered(f"- of {_kind(found)}")
    return Negative(found.type, found)


def _paired(operator: str, left: Expression, right: Expression) -> Expression:
    """With both sides cast to the type that Spark finds for them."""
    kinds = (_kind(left), _kind(right))
    if all(map(_is_decimal, (left, right))) or (
        any(map(_is_decimal, (left, right))) and not {"double"}.issuperset(kinds)
    ):
        raise NotCovered("decimal numbers, unless the other side is a double")
    is_arithmetic = operator in (*_CHECKED, *ZERO)
    kind = "double" if operator == "/" and {*kinds}.issubset(_NUMBERS) else _common(*kinds)
    allowed = _NUMBERS if is_arithmetic else _EQUATED if operator in ("=", "!=", "<=>") else _COMPARED
    if kind is None or kind not in allowed:
        raise NotCovered(f"{kinds[0]} {operator} {kinds[1]}")
    left, right = (_cast(one, _ARROW[kind]) for one in (left, right))
    if is_arithmetic:
        return Arithmetic(_ARROW[kind], operator, left, right)
    return Comparison(pa.bool_(), operator, left, right)


def _common(left: str, right: str) -> str | None:
    if left == right:
        return left
    if left in _NUMBERS and right in _NUMBERS:
        return max(left, right, key=_NUMBERS.index)
    return None


def _kind(found: Expression) -> str:
    return KINDS.get(found.type, str(found.type))


def _is_decimal(found: Expression) -> bool:
    return isinstance(found, Literal) and found.is_decimal


def _cast(found: Expression, kind: pa.DataType) -> Expression:
    return found if found.type == kind else Cast(kind, found)


# Columns and constants.


@dataclass(frozen=True, slots=True)
class Column(Expression):
    name: str
    path: tuple[int, ...] = ()
    """Fields of a struct."""

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        found = batch.column(self.name)
        return pc.struct_field(found, [*self.path]) if self.path else found

    def columns(self) -> Iterator[str]:
        yield self.name


@dataclass(frozen=True, slots=True)
class Literal(Expression):
    value: Any
    is_decimal: bool = False

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.repeat(pa.scalar(self.value, self.type), batch.num_rows)


@dataclass(frozen=True, slots=True)
class Cast(Expression):
    """To a wider number: a bigint becomes the nearest double."""

    operand: Expression

    @property
    def operands(self) -> tuple[Expression, ...]:
        return (self.operand,)

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        return self.operand.values(batch).cast(self.type, safe=False)


# Conditions.


@dataclass(frozen=True, slots=True)
class Not(Expression):
    operand: Expression

    @property
    def operands(self) -> tuple[Expression, ...]:
        return (self.operand,)

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        return pc.invert(self.operand.values(batch))


@dataclass(frozen=True, slots=True)
class IsNull(Expression):
    operand: Expression
    is_negated: bool

    @property
    def operands(self) -> tuple[Expression, ...]:
        return (self.operand,)

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        found = self.operand.values(batch)
        return found.is_valid() if self.is_negated else found.is_null()


@dataclass(frozen=True, slots=True)
class _Pair(Expression):
    left: Expression
    right: Expression

    @property
    def operands(self) -> tuple[Expression, ...]:
        return self.left, self.right


@dataclass(frozen=True, slots=True)
class And(_Pair):
    def values(self, batch: pa.RecordBatch) -> pa.Array:
        left = self.left.values(batch)
        return pc.and_kleene(left, _where(pc.fill_null(left, True), self.right, batch))


@dataclass(frozen=True, slots=True)
class Or(_Pair):
    def values(self, batch: pa.RecordBatch) -> pa.Array:
        left = self.left.values(batch)
        return pc.or_kleene(left, _where(pc.invert(pc.fill_null(left, False)), self.right, batch))


def _where(needed: pa.Array, expression: Expression, batch: pa.RecordBatch) -> pa.Array:
    """The values of the rows that need one; of others, null if the expression may fail."""
    if not expression.may_fail:
        return expression.values(batch)
    rows = np.flatnonzero(np.asarray(needed))
    if len(rows) == batch.num_rows:
        return expression.values(batch)
    places = np.full(batch.num_rows, -1)
    places[rows] = np.arange(len(rows))
    return expression.values(batch.take(pa.array(rows))).take(pa.array(places, mask=places < 0))


@dataclass(frozen=True, slots=True)
class _Coerced(Expression):
    """Both sides have the same type. The right side is not needed where the left one is null."""

    operator: str
    left: Expression
    right: Expression

    @property
    def operands(self) -> tuple[Expression, ...]:
        return self.left, self.right

    def _sides(self, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
        left = self.left.values(batch)
        return left, _where(left.is_valid(), self.right, batch)


@dataclass(frozen=True, slots=True)
class Comparison(_Coerced):
    """All NaN are equal, and above all other numbers; -0.0 is 0.0."""

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        if self.operator == "<=>":
            return self._null_safe(self.left.values(batch), self.right.values(batch))
        return self._compared(*self._sides(batch))

    def _compared(self, left: pa.Array, right: pa.Array) -> pa.Array:
        is_double = self.left.type == pa.float64()
        equal = _equal_doubles if is_double else pc.equal
        above = _above_doubles if is_double else pc.greater
        match self.operator:
            case "=" | "<=>":
                return equal(left, right)
            case "!=":
                return pc.invert(equal(left, right))
            case ">":
                return above(left, right)
            case "<":
                return above(right, left)
            case ">=":
                return pc.invert(above(right, left))
        return pc.invert(above(left, right))

    def _null_safe(self, left: pa.Array, right: pa.Array) -> pa.Array:
        both = pc.and_(left.is_null(), right.is_null())
        return pc.or_(both, pc.fill_null(self._compared(left, right), False))


def _equal_doubles(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _above_doubles(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.or_(pc.greater(left, right), pc.and_(pc.is_nan(left), pc.invert(pc.is_nan(right))))


# Arithmetic.


@dataclass(frozen=True, slots=True)
class Negative(Expression):
    operand: Expression

    @property
    def may_fail(self) -> bool:
        return True

    @property
    def is_arithmetic(self) -> bool:
        return True

    @property
    def operands(self) -> tuple[Expression, ...]:
        return (self.operand,)

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        found = self.operand.values(batch)
        return _checked(self.type, lambda: pc.negate_checked(found))


@dataclass(frozen=True, slots=True)
class Arithmetic(_Coerced):
    @property
    def may_fail(self) -> bool:
        return True

    @property
    def is_arithmetic(self) -> bool:
        return True

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        if self.operator in ZERO:
            return self._divided(batch)
        left, right = self._sides(batch)
        return _checked(self.type, lambda: _CHECKED[self.operator](left, right))

    def _divided(self, batch: pa.RecordBatch) -> pa.Array:
        """Spark looks at the divisor first: where that is null, the other side is not needed."""
        right = self.right.values(batch)
        left = _where(right.is_valid(), self.left, batch)
        if pc.any(pc.and_(pc.equal(right, 0), left.is_valid())).as_py():
            raise ArithmeticException(ZERO[self.operator])
        return pc.divide(left, right) if self.operator == "/" else _remainder(left, right)


def _remainder(left: pa.Array, right: pa.Array) -> pa.Array:
    """With the sign of the dividend, as Java has it. Where one side is null, the numbers are anything but 0."""
    numbers, divisors = (pc.fill_null(one, 1).to_numpy(zero_copy_only=False) for one in (left, right))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.fmod(numbers, divisors)
    is_known = pc.and_(left.is_valid(), right.is_valid())
    return pc.if_else(is_known, pa.array(found, left.type), pa.scalar(None, left.type))


_CHECKED: Mapping[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
}


def _checked(kind: pa.DataType, compute: Callable[[], pa.Array]) -> pa.Array:
    try:
        return compute()
    except pa.ArrowInvalid:
        text = SMALL_OVERFLOW if kind.bit_width < 32 else OVERFLOW
        raise ArithmeticException(text.format(_kind_name(kind))) from None


def _kind_name(kind: pa.DataType) -> str:
    return {"int": "integer", "bigint": "long"}.get(KINDS[kind], KINDS[kind])
