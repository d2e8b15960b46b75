"""From pydantic's errors to sentences: what was expected, what was found, and the nearest valid name."""

import json
import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from penstock.core.suggestions import suggestion

KeyPath: TypeAlias = tuple[str | int, ...]
Errors: TypeAlias = list[ErrorDetails]

_FOUND_LENGTH_MAX = 60
"""Of a value in a message."""
_SECRET_KEY = re.compile(r"pass(word|wd)?$|secret|token|cookie|credential|api[-_]?key|private|auth", re.IGNORECASE)
_WORDS = {
    "string": "a text",
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "dict": "a mapping (key: value)",
    "mapping": "a mapping (key: value)",
    "model": "a mapping (key: value)",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "frozen_set": "a list",
    "bytes": "a text",
    "none_required": "nothing",
    "path": "a path",
    "url": "a URL",
}
_RANGES = {"greater_than": ("gt", "more than"), "greater_than_equal": ("ge", "at least")}
_RANGES |= {"less_than": ("lt", "less than"), "less_than_equal": ("le", "at most")}
OWN = ("value_error", "assertion_error")
EMPTY = ("too_short", "string_too_short")
PATTERNS: dict[str, str] = {}
"""The meaning of fields' regular expressions, for people."""


def complaints(model: type[BaseModel], error: ValidationError, prefix: str = "") -> Iterator[tuple[KeyPath, str, str]]:
    """What is wrong at each key, and a hint, for options that are not from a file. Their names start with `prefix`."""
    found: dict[KeyPath, Errors] = {}
    for one in error.errors(include_url=False):
        found.setdefault(one["loc"], []).append(one)
    for where, errors in found.items():
        kind, name = errors[0]["type"], f"{prefix}{dotted(where)}" if where else ""
        if kind == "extra_forbidden":
            owner = name.removesuffix(str(where[-1]))
            known = [f"{owner}{key}" for key in keys_of(model, where[:-1])]
            yield where, f'unknown option "{name}"', suggestion(name, known)
        elif kind == "missing":
            yield where, f"{name} is missing", described(model, where)
        else:
            wanted = " or ".join(dict.fromkeys(map(expected, errors)))
            hidden = kind in (*OWN, *EMPTY) or is_secret(model, where)
            text = wanted if hidden else f"{wanted}, found {shown(errors[0]['input'])}"
            yield where, f"{name}: {text}" if name else text, near_literal(errors[0])


def expected(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in OWN:
        return _own_words(error)
    if kind in _RANGES:
        limit, words = _RANGES[kind]
        bound = f"{context[limit]:g}" if isinstance(context[limit], float) else str(context[limit])
        return f"expected {words} {bound}"
    if kind in ("literal_error", "enum"):
        return f"expected {context['expected']}".replace("'", '"')
    if kind == "string_pattern_mismatch" and context["pattern"] in PATTERNS:
        return f"expected {PATTERNS[context['pattern']]}"
    if kind in EMPTY:
        return "expected a value, found none"
    word = _WORDS.get(kind) or _WORDS.get(kind.rpartition("_")[0])
    return f"expected {word}" if word else _decapitalised(error["msg"])


def _own_words(error: ErrorDetails) -> str:
    """The message of a validator that a connector's author has written."""
    raised = error.get("ctx", {}).get("error")
    message = str(raised) if raised is not None else error["msg"].partition(", ")[2]
    hint = getattr(raised, "hint", "")
    return f"{message}. {hint}".rstrip() if hint else message


def shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | int | float | bool) else "something else"
    return text if len(text) <= _FOUND_LENGTH_MAX else f"{text[:_FOUND_LENGTH_MAX]}…"


def near_literal(error: ErrorDetails) -> str:
    if error["type"] not in ("literal_error", "enum") or not isinstance(error["input"], str):
        return ""
    names = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))
    hint = suggestion(error["input"], names)
    return hint if hint.startswith("Did") else ""


def dotted(inner: KeyPath) -> str:
    path = ""
    for each in inner:
        path += f"[{each}]" if isinstance(each, int) else f".{each}"
    return path.removeprefix(".")


def _decapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]


def described(model: type[BaseModel], inner: KeyPath) -> str:
    """The documentation of a key."""
    owners = list(_models(model, inner[:-1]))
    for owner in owners:
        for name, option in owner.model_fields.items():
            if inner and (option.alias or name) == inner[-1] and option.description:
                return " ".join(option.description.split())
    return ""


def keys_of(model: type[BaseModel], inner: KeyPath) -> list[str]:
    """The keys that are allowed there."""
    return [option.alias or name for owner in _models(model, inner) for name, option in owner.model_fields.items()]


def is_secret(model: type[BaseModel], inner: KeyPath) -> bool:
    if any(isinstance(each, str) and _SECRET_KEY.search(each) for each in inner):
        return True
    fields = (owner.model_fields.items() for owner in _models(model, inner[:-1]))
    types = [
        option.annotation for found in fields for name, option in found if inner and (option.alias or name) == inner[-1]
    ]
    return any({SecretStr, SecretBytes} & {each, *get_args(each)} for each in types)


def _models(model: type[BaseModel], inner: KeyPath) -> Iterator[type[BaseModel]]:
    """The models there; several if it is a union."""
    if not inner:
        yield model
        return
    head, rest = inner[0], inner[1:]
    for name, option in model.model_fields.items():
        if (option.alias or name) == head:
            for each in _within(option.annotation):
                yield from _models(each, tuple(one for one in rest if isinstance(one, str)))


def _within(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in an annotation, including those in its lists and unions."""
    if get_origin(annotation) is not None or isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        for each in get_args(annotation):
            yield from _within(each)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
