"""Reads schemas in Spark's syntax (`id INT, name STRING NOT NULL`) without Spark: mistakes are reported when a file is
checked, and Spark's Python workers know the types of columns.
"""

import re
from collections.abc import Iterator
from functools import cache

from penstock.core.errors import RequestError
from penstock.core.kinds import Field, Fields, Kind
from penstock.core.suggestions import suggestion

_SAME = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "character": "char",
    "timestamp_ltz": "timestamp",
}
"""Other names of types."""

_SIMPLE = """
    boolean tinyint smallint int bigint float double date time timestamp timestamp_ntz string char varchar binary
    decimal variant void interval
"""
_TYPES = (*_SIMPLE.split(), *_SAME, "array", "map", "struct")
_WITH_LENGTH = ("char", "varchar")

_DECIMAL = (10, 0)
"""Precision and scale of a decimal without numbers; a scale without a number is 0."""

_QUOTED = r"(?P<quoted>`(?:[^`]|``)+`)"
_TEXT = r"""(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")"""
_TOKEN = re.compile(rf"\s*(?:{_QUOTED}|{_TEXT}|(?P<word>\w+)|(?P<sign>[<>(),:]))")
_LEVELS_MAX = 100
"""Nesting of types: far deeper than people write."""


@cache
def parse_ddl(schema: str) -> Fields:
    """The columns. Raises RequestError, with the words where parsing fails. It rarely accepts what Spark rejects; Spark
    then reports it when the pipeline starts.
    """
    read = _Reader([*_tokens(schema)])
    is_struct = read.word() == "struct" and read.sign(1) == "<"
    fields = read.type(0).fields if is_struct else read.columns(0)
    if read.rest():
        raise RequestError(f'expected "," or the end, found "{read.rest()}"')
    return fields


def _tokens(schema: str) -> Iterator[re.Match[str]]:
    at = 0
    while schema[at:].strip():
        found = _TOKEN.match(schema, at)
        if found is None:
            raise RequestError(f'found "{schema[at:].strip()[:20]}", expected a name or a type')
        yield found
        at = found.end()


class _Reader:
    def __init__(self, tokens: list[re.Match[str]]) -> None:
        self._tokens = tokens
        self._at = 0

    def rest(self) -> str:
        """The next token as written; "" at the end."""
        return self._tokens[self._at][0].strip() if self._at < len(self._tokens) else ""

    def word(self) -> str:
        return self._group("word", 0).lower()

    def sign(self, ahead: int = 0) -> str:
        return self._group("sign", ahead)

    def _group(self, name: str, ahead: int) -> str:
        at = self._at + ahead
        return (self._tokens[at][name] or "") if at < len(self._tokens) else ""

    def _expect(self, sign: str, after: str) -> None:
        if self.sign() != sign:
            raise RequestError(f'expected "{sign}" after {after}, found {_shown(self.rest())}')
        self._at += 1

    def columns(self, level: int) -> Fields:
        """Names with types, up to the end or to a token that cannot belong to them."""
        found: dict[str, Field] = {}
        while True:
            name = self._name()
            if level == 0 and name.startswith("__"):
                raise RequestError(f'"{name}" is not a valid column name', 'Names that start with "__" are reserved.')
            if name.lower() in found:
                raise RequestError(f'there are two columns "{name}"')
            if self.sign() == ":":
                self._at += 1
            kind = self.type(level, name)
            found[name.lower()] = Field(name, kind, nullable=not self._extras())
            if self.sign() != ",":
                return tuple(found.values())
            self._at += 1

    def _name(self) -> str:
        quoted, word = self._group("quoted", 0), self._group("word", 0)
        name = quoted[1:-1].replace("``", "`") if quoted else word
        if not name:
            raise RequestError(f"expected the name of a column, found {_shown(self.rest())}")
        self._at += 1
        return name

    def type(self, level: int, name: str = "") -> Kind:
        written = self.word()
        if written not in _TYPES:
            of = f' of "{name}"' if name else ""
            hint = suggestion(written, _TYPES) if written else ""
            raise RequestError(f"expected the type{of}, found {_shown(self.rest())}", hint)
        if level > _LEVELS_MAX:
            raise RequestError(f"more than {_LEVELS_MAX} types are nested in each other")
        self._at += 1
        if written in ("array", "map", "struct"):
            self._expect("<", written)
            kind = self._inside(written, level + 1)
            self._expect(">", f"the contents of {written}")
            return kind
        if written == "interval":
            while self.word() and self.word() not in ("not", "comment"):
                self._at += 1
            return Kind(written)
        return self._simple(written)

    def _inside(self, kind: str, level: int) -> Kind:
        if kind == "struct":
            return Kind(kind, fields=() if self.sign() == ">" else self.columns(level))
        first = self.type(level)
        if kind == "array":
            return Kind(kind, of=(first,))
        self._expect(",", "the keys of map")
        return Kind(kind, of=(first, self.type(level)))

    def _simple(self, written: str) -> Kind:
        kind, numbers = _SAME.get(written, written), self._numbers(written)
        if kind == "decimal":
            numbers = (*numbers, 0)[:2] if numbers else _DECIMAL
        if kind in _WITH_LENGTH and not numbers:
            raise RequestError(f"expected a length after {written}, as in {written}(10)")
        return Kind(kind, numbers if kind in ("decimal", *_WITH_LENGTH) else ())

    def _numbers(self, kind: str) -> tuple[int, ...]:
        if self.sign() != "(":
            return ()
        self._at += 1
        numbers: list[int] = []
        while self.word().isdigit() or self.sign() == ",":
            numbers += [int(self.word())] if self.word() else []
            self._at += 1
        self._expect(")", f"the numbers of {kind}")
        return tuple(numbers)

    def _extras(self) -> bool:
        """NOT NULL, COLLATE and COMMENT. Whether NOT NULL is among them."""
        is_needed = False
        while self.word() in ("not", "collate", "comment"):
            word = self.word()
            self._at += 1
            if word == "not" and self.word() != "null":
                raise RequestError(f'expected NULL after "NOT", found {_shown(self.rest())}')
            if not self.rest():
                raise RequestError(f'expected more after "{word.upper()}"')
            is_needed |= word == "not"
            self._at += 1
        return is_needed


def _shown(text: str) -> str:
    return f'"{text}"' if text else "the end"
