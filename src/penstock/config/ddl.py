"""Schemas of columns as Spark writes them (`id INT, name STRING NOT NULL`), looked through without Spark: mistakes are
told where the file is checked, and not when its pipelines start.
"""

import re
from collections.abc import Iterator

from penstock.config.mistakes import nearest
from penstock.core.errors import RequestError

_SIMPLE = """
    boolean byte tinyint short smallint int integer long bigint float real double date time timestamp timestamp_ntz
    timestamp_ltz string char character varchar binary decimal dec numeric variant void interval
"""
_TYPES = (*_SIMPLE.split(), "array", "map", "struct")
_WITH_LENGTH = ("char", "character", "varchar")

_QUOTED = r"(?P<quoted>`(?:[^`]|``)+`)"
_TEXT = r"""(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")"""
_TOKEN = re.compile(rf"\s*(?:{_QUOTED}|{_TEXT}|(?P<word>\w+)|(?P<sign>[<>(),:]))")
_LEVELS_MAX = 100
"""Types inside of types: far more than people write."""


def check_ddl(schema: str) -> None:
    """Raises RequestError, with the words at which it goes wrong. What it takes and Spark does not is rare: Spark says
    so when the pipeline starts.
    """
    read = _Reader([*_tokens(schema)])
    if read.word() == "struct" and read.sign(1) == "<":
        read.type(0)
    else:
        read.columns(0)
    if read.rest():
        raise RequestError(f'expected "," or the end, found "{read.rest()}"')


def _tokens(schema: str) -> Iterator[re.Match[str]]:
    at = 0
    while schema[at:].strip():
        found = _TOKEN.match(schema, at)
        if found is None:
            raise RequestError(f'found "{schema[at:].strip()[:20]}", which is no name and no type')
        yield found
        at = found.end()


class _Reader:
    def __init__(self, tokens: list[re.Match[str]]) -> None:
        self._tokens = tokens
        self._at = 0

    def rest(self) -> str:
        """The next token, as it is written; "" at the end."""
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
            raise RequestError(f'expected "{sign}" behind {after}, found {_shown(self.rest())}')
        self._at += 1

    def columns(self, level: int) -> None:
        """Names with types, to the end or to what cannot belong to them."""
        names: set[str] = set()
        while True:
            name = self._name()
            if level == 0 and name.startswith("__"):
                raise RequestError(f'"{name}" is no name for a column', 'Those with "__" before them are our own.')
            if name.lower() in names:
                raise RequestError(f'there are two columns "{name}"')
            names.add(name.lower())
            if self.sign() == ":":
                self._at += 1
            self.type(level, name)
            self._extras()
            if self.sign() != ",":
                return
            self._at += 1

    def _name(self) -> str:
        quoted, word = self._group("quoted", 0), self._group("word", 0)
        name = quoted[1:-1].replace("``", "`") if quoted else word
        if not name:
            raise RequestError(f"expected the name of a column, found {_shown(self.rest())}")
        self._at += 1
        return name

    def type(self, level: int, name: str = "") -> None:
        kind = self.word()
        if kind not in _TYPES:
            of = f' of "{name}"' if name else ""
            hint = nearest(kind, _TYPES) if kind else ""
            raise RequestError(f"expected the type{of}, found {_shown(self.rest())}", hint)
        if level > _LEVELS_MAX:
            raise RequestError(f"more than {_LEVELS_MAX} types are inside of each other")
        self._at += 1
        if kind in ("array", "map", "struct"):
            self._expect("<", kind)
            self._inside(kind, level + 1)
            self._expect(">", f"what is in {kind}")
        elif kind == "interval":
            while self.word() and self.word() not in ("not", "comment"):
                self._at += 1
        else:
            self._numbers(kind)

    def _inside(self, kind: str, level: int) -> None:
        if kind == "struct":
            if self.sign() != ">":
                self.columns(level)
            return
        self.type(level)
        if kind == "map":
            self._expect(",", "the keys of map")
            self.type(level)

    def _numbers(self, kind: str) -> None:
        if self.sign() == "(":
            self._at += 1
            while self.word().isdigit() or self.sign() == ",":
                self._at += 1
            self._expect(")", f"the numbers of {kind}")
        elif kind in _WITH_LENGTH:
            raise RequestError(f"expected a length behind {kind}, as in {kind}(10)")

    def _extras(self) -> None:
        """NOT NULL, COLLATE and COMMENT."""
        while self.word() in ("not", "collate", "comment"):
            word = self.word()
            self._at += 1
            if word == "not" and self.word() != "null":
                raise RequestError(f'expected NULL behind "NOT", found {_shown(self.rest())}')
            if not self.rest():
                raise RequestError(f'nothing stands behind "{word.upper()}"')
            self._at += 1


def _shown(text: str) -> str:
    return f'"{text}"' if text else "the end"
