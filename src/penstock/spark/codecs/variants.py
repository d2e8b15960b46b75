"""JSON texts that Spark parses to VARIANT: nothing passes here that its parser would refuse, because that would fail
the query.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.spark.codecs.api import Columns
from penstock.spark.codecs.scalars import Misfit

BAD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that it cannot decode."""

FOUND_CHARS = 60
"""The most characters that are shown of a value that does not fit."""

LEVELS_MAX = 500
"""The deepest nesting of a document. Spark's parser takes 1,000 levels, and Python's fewer, depending on how much of
the stack is in use: whether an event can be decoded must not depend on that."""

_DIGITS_MAX = 1000
_NAME_CHARS_MAX = 50_000
"""Limits of Spark's parser, which would fail the query."""

_LONG_NUMBER = re.compile(rb"\d{%d}" % _DIGITS_MAX)

NOT_JSON = "is not valid JSON"
TOO_DEEP = f"is nested more than {LEVELS_MAX} levels deep"

_AT_ONCE = 100
"""Documents that are looked at together: fewer objects than start a collection of garbage."""

_SECRET = secrets.randbits(53)
_BETWEEN = b",%d," % _SECRET
_ANY = msgspec.json.Decoder().decode
_WHOLE = msgspec.json.Decoder(msgspec.Raw).decode


def any_documents(values: pa.BinaryArray) -> Columns:
    """A column of the documents' texts."""
    documents = values.to_pylist()
    failed: dict[int, str] = {}
    for start in range(0, len(documents), _AT_ONCE):
        some = documents[start : start + _AT_ONCE]
        if _are_plain(some):
            continue
        for row, document in enumerate(some, start):
            try:
                variant_text(document)
            except Misfit as error:
                failed[row] = str(error)
            except (*BAD, ValueError):
                failed[row] = NOT_JSON
    if failed:
        values = values.take(pa.array(np.setdiff1d(np.arange(len(documents)), [*failed])))
    return Columns([values.cast(pa.string())], failed)


def _are_plain(documents: Sequence[bytes]) -> bool:
    """Whether all are valid, as `variant_text` would find: False if only a look at each can show it. Decoding them as
    one array takes half of the time. A number that no document knows stands between them: each is one value, and not
    the half of one or two, if it is found there.
    """
    array = b"[" + _BETWEEN.join(documents) + b"]"
    if not documents or b"\\" in array or max(map(len, documents)) > _DIGITS_MAX:
        return False
    try:
        found = _ANY(array)
    except BAD:
        return False
    if len(found) != 2 * len(documents) - 1 or found[1::2] != [_SECRET] * (len(documents) - 1):
        return False
    return array.count(b":") == msgspec.json.encode(found).count(b":")


def variant_text(document: bytes) -> str:
    """The text of a document that Spark can parse to a VARIANT. Raises ValueError, or what msgspec does."""
    text = document.decode()
    if is_deep(document):
        raise Misfit(TOO_DEEP)
    if _has_long_number(document):
        raise Misfit(f"has a number of more than {_DIGITS_MAX} digits")
    if not _is_plain(document):
        _WHOLE(document)
        json.loads(text, object_pairs_hook=_names_once, parse_constant=_no_constant, parse_int=str)
    return text


def _names_once(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names or len(name) > _NAME_CHARS_MAX:
            raise Misfit(f"has the name `{name[:FOUND_CHARS]}` {'twice' if name in names else 'which is too long'}")
        names.add(name)


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _is_plain(document: bytes) -> bool:
    """Whether every name is there once, and no name is too long: False if only a closer look can show it. A name that
    is there twice leaves fewer colons in what was decoded; escapes could hide that.
    """
    if b"\\" in document or len(document) > _NAME_CHARS_MAX:
        return False
    try:
        return document.count(b":") == msgspec.json.encode(_ANY(document)).count(b":")
    except msgspec.ValidationError:  # a number beyond all doubles: Spark has an infinity for it
        return False


def is_deep(document: bytes) -> bool:
    """Whether it is nested more deeply than LEVELS_MAX."""
    if len(document) <= 2 * LEVELS_MAX or document.count(b"[") + document.count(b"{") <= LEVELS_MAX:
        return False
    level = deepest = 0
    for sign in _BRACKETS.findall(_STRINGS.sub(b"", document)):
        level += 1 if sign in b"[{" else -1
        deepest = max(deepest, level)
    return deepest > LEVELS_MAX


def _has_long_number(document: bytes) -> bool:
    if len(document) <= _DIGITS_MAX or not _LONG_NUMBER.search(document):
        return False
    return any(len(number) > _DIGITS_MAX for number in _NUMBERS.findall(_STRINGS.sub(b"", document)))


_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NUMBERS = re.compile(rb"[-+.eE0-9]+")
_BRACKETS = re.compile(rb"[][{}]")
