"""The options in a sink's URL, by the fields of the dataclass that its kind has for them."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from penstock.core.errors import RequestError
from penstock.core.sizes import parse_size

_BOOLS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    name: str
    """As it is written in a URL."""
    values: str
    """What may be written there, for people."""
    default: str
    """"" if there is none that could be shown."""
    required: bool


class Mistakes(Exception):
    """All that is wrong, each with what to do about it."""

    def __init__(self, found: Sequence[RequestError]) -> None:
        super().__init__(*found)
        self.found = found


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint: the one that was probably meant, or all there are."""
    names = sorted(known)
    near = get_close_matches(name, names, 1, 0.5)
    return f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names) or 'none'}."


def options_of(kind: type[Any], fixed: Iterable[str], prefix: str = "") -> list[Option]:
    """Those that may stand in the query: all fields but the `fixed` ones, which the rest of the URL says."""
    types = get_type_hints(kind)
    fields = [field for field in dataclasses.fields(kind) if field.name not in fixed]
    return [
        Option(prefix + field.name, _values(field.name, types[field.name]), _shown(field.default), _is_required(field))
        for field in fields
    ]


def build(kind: type[Any], fixed: Mapping[str, Any], given: Sequence[tuple[str, str]], prefix: str = "") -> Any:
    """The dataclass with all its fields. Raises Mistakes, with all there are."""
    types = get_type_hints(kind)
    known = {option.name: option for option in options_of(kind, fixed, prefix)}
    mistakes = [*_wrong_names([name for name, _ in given], known)]
    values = {name: str(value) if types[name] is str else value for name, value in fixed.items()}
    for name, text in given:
        if name in known:
            try:
                values[name.removeprefix(prefix)] = _parsed(name, types[name.removeprefix(prefix)], text)
            except RequestError as error:
                mistakes.append(error)
    if mistakes:
        raise Mistakes(mistakes)
    try:
        return kind(**values)
    except (RequestError, ValueError) as error:
        raise Mistakes([RequestError(str(error), getattr(error, "hint", ""))]) from None


def _wrong_names(given: Sequence[str], known: Mapping[str, Option]) -> Iterable[RequestError]:
    for name in dict.fromkeys(given):
        if name not in known:
            yield RequestError(f"there is no option {name!r}", nearest(name, known))
        elif given.count(name) > 1:
            yield RequestError(f"{name} is given twice", "Give it once.")
    for option in known.values():
        if option.required and option.name not in given:
            yield RequestError(f"{option.name} is missing", f"Add {option.name}={option.values}.")


def _parsed(name: str, kind: Any, text: str) -> Any:
    kind, what = _inner(kind), f"{name} is {text!r}"
    if not text:
        raise RequestError(f"{name} has no value", "Leave it out for the default.")
    if kind is str:
        return text
    if kind is Path:
        return Path(text)
    if kind is bool:
        if text.lower() not in _BOOLS:
            raise RequestError(what, "Write 1 or 0.")
        return _BOOLS[text.lower()]
    if kind is int and _is_size(name):
        return _positive(what, _size(text), "a size like 64MiB")
    if kind in (int, float):
        return _positive(what, _number(text, kind), "a number" if kind is float else "a whole number")
    if get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return _chosen(what, _choices(kind), text)


def _is_size(name: str) -> bool:
    return "bytes" in name or "size" in name


def _inner(kind: Any) -> Any:
    """Without the None of what may be left out."""
    if get_origin(kind) in (Union, UnionType):
        (kind,) = [one for one in get_args(kind) if one is not NoneType]
    return kind


def _choices(kind: Any) -> dict[str, Any]:
    if get_origin(kind) is Literal:
        return {str(value): value for value in get_args(kind)}
    assert issubclass(kind, Enum), kind
    return {_written(one): one for one in kind}


def _written(one: Enum) -> str:
    """By the value if that is a word, else by the name."""
    return one.value if isinstance(one.value, str) else one.name.lower()


def _chosen(what: str, choices: Mapping[str, Any], text: str) -> Any:
    if text not in choices:
        raise RequestError(what, nearest(text, choices))
    return choices[text]


def _size(text: str) -> float:
    try:
        return parse_size(text)
    except RequestError:
        return math.nan


def _number(text: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(text)
    except ValueError:
        return math.nan


def _positive(what: str, number: float, wanted: str) -> float:
    if not 0 < number < math.inf:
        raise RequestError(what, f"Give {wanted} greater than 0.")
    return number


def _values(name: str, kind: Any) -> str:
    kind = _inner(kind)
    if kind in (str, Path, bool, int, float):
        words = {str: "TEXT", Path: "FILE", bool: "1|0", int: "NUMBER", float: "SECONDS"}
        return "SIZE" if kind is int and _is_size(name) else words[kind]
    return "NAME,NAME" if get_origin(kind) is tuple else "|".join(_choices(kind))


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _shown(default: Any) -> str:
    if default is dataclasses.MISSING or default is None or default in ("", ()):
        return ""
    if isinstance(default, Enum):
        return _written(default)
    if isinstance(default, bool):
        return str(int(default))
    return f"{default:g}" if isinstance(default, float) else str(default)
