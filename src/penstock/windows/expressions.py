"""The expressions of `where=` and `select=` that a reader can compute itself: a small part of Spark's SQL.

    or      := and ("or" and)*
    and     := not ("and" not)*
    not     := "not" not | predicate
    predicate := sum [comparison sum | "is" ["not"] "null" | ["not"] "between" sum "and" sum
                      | ["not"] "in" "(" constant ("," constant)* ")"]
    sum     := product (("+" | "-") product)*
    product := unary (("*" | "/" | "%") unary)*
    unary   := "-" unary | constant | name ("." name)* | "(" or ")"

Precedence is Spark's. A text outside this grammar is not an error: Spark computes it, after the rows were read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

LENGTH_MAX = 10_000
"""Characters of a text: parsing and evaluation recurse into it."""

DEPTH_MAX = 50
"""Of nested parentheses and signs, for the same reason."""


class NotCovered(Exception):
    """The grammar, or its types, do not include this; not an error: Spark computes it then. The message says what."""


@dataclass(frozen=True, slots=True)
class Name:
    """A column, or a field of one."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class Constant:
    """`kind` is Spark's name of its type."""

    value: bool | int | float | str
    kind: str


@dataclass(frozen=True, slots=True)
class Unary:
    """`-` or `not`, `is null` or `is not null`."""

    operator: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Binary:
    operator: str
    left: Node
    right: Node


Node: TypeAlias = Name | Constant | Unary | Binary

COMPARISONS = {"=": "=", "==": "=", "<>": "!=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>"}
"""As it is written → as it is called here."""

_TOKENS = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?P<suffix>[A-Za-z_]\w*)?)
    | (?P<name>[A-Za-z_]\w*)
    | `(?P<quoted>(?:[^`]|``)+)`
    | '(?P<text>[^'\\]*)'
    | (?P<sign><=>|<=|>=|<>|!=|==|[-+*/%=<>().,])
    )""",
    re.VERBOSE | re.ASCII,
)
_COMMENTS = ("--", "/*")
_INT_MAX, _BIGINT_MAX = 2**31 - 1, 2**63 - 1
_DECIMAL_DIGITS_MAX = 38


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """`number`, `name`, `quoted`, `text`, `sign` or `end`."""
    text: str
    suffix: str = ""

    def __str__(self) -> str:
        return repr(self.text) if self.text else "the end"


def parse(text: str) -> Node:
    """Raises NotCovered."""
    if len(text) > LENGTH_MAX:
        raise NotCovered(f"it has more than {LENGTH_MAX:,} characters")
    parser = _Parser(_tokens(text))
    found = parser.disjunction()
    parser.expect_end()
    return found


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while text[at:].strip():
        match = _TOKENS.match(text, at)
        if match is None:
            raise NotCovered(f"{text[at:].strip()[:20]!r} is not in its grammar")
        at = match.end()
        kind = match.lastgroup or ""
        if match["number"] is not None:
            found.append(_Token("number", match["number"].removesuffix(match["suffix"] or ""), match["suffix"] or ""))
        else:
            found.append(_Token(kind, match[kind].replace("``", "`") if kind == "quoted" else match[kind]))
        if any(one in text[match.start() : at + 1] for one in _COMMENTS) and kind != "text":
            raise NotCovered("it has a comment")
    return [*found, _Token("end", "")]


class _Parser:
    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _is_word(self, *words: str) -> bool:
        return self._next.kind == "name" and self._next.text.lower() in words

    def _is_sign(self, *signs: str) -> bool:
        return self._next.kind == "sign" and self._next.text in signs

    def _skip(self, text: str) -> bool:
        """Whether it came next, and was taken."""
        found = self._is_word(text) or self._is_sign(text)
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        if not self._skip(text):
            raise NotCovered(f"{text!r} was expected, not {self._next}")

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        """Inside something that nests."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise NotCovered(f"it nests deeper than {DEPTH_MAX} levels")
        yield
        self._depth -= 1

    def expect_end(self) -> None:
        if self._next.kind != "end":
            raise NotCovered(f"{self._next} is not in its grammar here")

    def disjunction(self) -> Node:
        found = self._conjunction()
        while self._skip("or"):
            found = Binary("or", found, self._conjunction())
        return found

    def _conjunction(self) -> Node:
        found = self._negation()
        while self._skip("and"):
            found = Binary("and", found, self._negation())
        return found

    def _negation(self) -> Node:
        if self._skip("not"):
            with self._deeper():
                return Unary("not", self._negation())
        return self._predicate()

    def _predicate(self) -> Node:
        left = self._sum()
        if self._is_sign(*COMPARISONS):
            found: Node = Binary(COMPARISONS[self._take().text], left, self._sum())
            if self._is_sign(*COMPARISONS) or self._is_word("is", "in", "between", "not"):
                raise NotCovered(f"{self._next} after a comparison: use parentheses")
            return found
        if self._skip("is"):
            operator = "is not null" if self._skip("not") else "is null"
            self._expect("null")
            return Unary(operator, left)
        is_negated = self._skip("not")
        if self._skip("between"):
            low = self._sum()
            self._expect("and")
            found = Binary("and", Binary(">=", left, low), Binary("<=", left, self._sum()))
        elif self._skip("in"):
            found = self._listed(left)
        elif is_negated:
            raise NotCovered(f"{self._next} after not")
        else:
            return left
        return Unary("not", found) if is_negated else found

    def _listed(self, left: Node) -> Node:
        self._expect("(")
        constants = [self._sum()]
        while self._skip(","):
            constants.append(self._sum())
        self._expect(")")
        kinds = {one.kind if isinstance(one, Constant) else None for one in constants}
        if len(kinds) > 1 or None in kinds:
            raise NotCovered("a list after `in` that is not of constants of one type")
        equal: list[Node] = [Binary("=", left, one) for one in constants]
        return reduce(lambda one, other: Binary("or", one, other), equal)

    def _sum(self) -> Node:
        found = self._product()
        while self._is_sign("+", "-"):
            found = Binary(self._take().text, found, self._product())
        return found

    def _product(self) -> Node:
        found = self._unary()
        while self._is_sign("*", "/", "%"):
            found = Binary(self._take().text, found, self._unary())
        return found

    def _unary(self) -> Node:
        with self._deeper():
            if not self._skip("-"):
                return self._primary()
            if self._next.kind == "number":  # a negative constant, as in Spark: its type follows from its value
                return _number(self._take(), sign=-1)
            return Unary("-", self._unary())

    def _primary(self) -> Node:
        token = self._take()
        match token.kind:
            case "number":
                return _number(token)
            case "text":
                return self._text(token)
            case "name" | "quoted":
                return self._named(token)
        if token.kind == "sign" and token.text == "(":
            found = self.disjunction()
            self._expect(")")
            return found
        raise NotCovered(f"{token} is not in its grammar here")

    def _text(self, token: _Token) -> Node:
        if self._next.kind == "text":
            raise NotCovered("a quote inside a text")
        return Constant(token.text, "string")

    def _named(self, token: _Token) -> Node:
        if token.kind == "name" and token.text.lower() in ("true", "false"):
            return Constant(token.text.lower() == "true", "boolean")
        if token.kind == "name" and token.text.lower() in _WORDS:
            raise NotCovered(f"{token} is not in its grammar here")
        if self._next.kind == "text" or self._is_sign("("):
            raise NotCovered(f"{token.text}(…)" if self._is_sign("(") else f"{token.text} '…'")
        parts = [token.text]
        while self._skip("."):
            part = self._take()
            if part.kind not in ("name", "quoted"):
                raise NotCovered(f"{part} after a dot")
            parts.append(part.text)
        return Name(tuple(parts))


_WORDS = frozenset(("null", "and", "or", "not", "is", "in", "between", "case", "exists", "interval", "select", "div"))
"""Names that mean something else in Spark's grammar, unless they are quoted."""


def _number(token: _Token, sign: int = 1) -> Constant:
    """As Spark reads it: int or bigint by its value, a decimal if it has a point; suffixes L and D."""
    suffix = token.suffix.upper()
    if suffix == "D":
        return Constant(sign * float(token.text), "double")
    if "." in token.text:
        if suffix or len(token.text) > _DECIMAL_DIGITS_MAX:
            raise NotCovered(f"the number {token.text}{token.suffix}")
        return Constant(sign * float(token.text), "decimal")
    value = sign * int(token.text)
    if suffix not in ("", "L") or not -_BIGINT_MAX - 1 <= value <= _BIGINT_MAX:
        raise NotCovered(f"the number {token.text}{token.suffix}")
    return Constant(value, "bigint" if suffix or not -_INT_MAX - 1 <= value <= _INT_MAX else "int")
