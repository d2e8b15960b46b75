"""From pydantic's errors to mistakes at their place: what was expected, what was found, and the nearest valid name."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from penstock.application.config.document import (
    ERR_SUFFIX,
    NAME_PATTERN,
    PASSTHROUGH_NAME,
    PORT_PATTERN,
    RESERVED_PREFIX,
    Document,
    KeyPath,
    nearest,
)
from penstock.application.config.sections import BindingSection

M = TypeVar("M", bound=BaseModel)
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
_OWN = ("value_error", "assertion_error")
_EMPTY = ("too_short", "string_too_short")
_PATTERNS = {NAME_PATTERN: "1 to 100 letters, digits, dots, dashes and underscores"}
_PATTERNS |= {PORT_PATTERN: "1 to 100 letters, digits, dashes and underscores"}


def validated(document: Document, model: type[M], value: Any, item: KeyPath, within: KeyPath, what: str) -> M | None:
    """The model of what stands `within` the `item` that people call `what`, filled in; None if something is wrong: then
    the document knows it.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        lint = _Lint(document, model, what, item, len(item) + len(within))
        for where, errors in _by_place(document, (*item, *within), error.errors(include_url=False)).items():
            lint.tell(where, errors)
        return None


def _by_place(document: Document, path: KeyPath, errors: Errors) -> dict[KeyPath, Errors]:
    """A union complains once for each of its members, at places that the file does not have."""
    found: dict[KeyPath, Errors] = {}
    for error in errors:
        whole = (*path, *error["loc"])
        if document.known(whole) in document.unset:
            continue
        stays = error["type"] in ("missing", "extra_forbidden")
        found.setdefault(whole if stays else document.known(whole), []).append(error)
    return found


@dataclass(frozen=True, slots=True)
class _Lint:
    """Of one value: where its item begins, and how deep it lies."""

    document: Document
    model: type[BaseModel]
    what: str
    item: KeyPath
    depth: int

    def tell(self, where: KeyPath, errors: Errors) -> None:
        inner, key = where[self.depth :], str(where[-1]) if where else ""
        if errors[0]["type"] == "extra_forbidden":
            text = f'unknown key "{key}" in {self._named(where[:-1])}'
            self.document.complain(where, text, nearest(key, keys_of(self.model, inner[:-1])), key=True)
        elif errors[0]["type"] == "missing":
            text = f'the key "{key}" is missing in {self._named(where[:-1])}'
            self.document.complain(where, text, _described(self.model, inner))
        else:
            self._tell_value(where, inner, errors)

    def _tell_value(self, where: KeyPath, inner: KeyPath, errors: Errors) -> None:
        if self.document.is_outside(where):
            self.document.complain(where, f"{self._named(where)}: {self._outside(where, errors)}")
            return
        expected = " or ".join(dict.fromkeys(map(_expected, errors)))
        found = self._found(inner, errors[0])
        self.document.complain(where, f"{self._named(where)}: {expected}{found}", _near_literal(errors[0]))

    def _outside(self, where: KeyPath, errors: Errors) -> str:
        """What a validator says may hold the value: its words are not shown."""
        shown = self.document.written.get(where, "${…}")
        known = dict.fromkeys(_expected(error) for error in errors if error["type"] not in _OWN)
        return f"{' or '.join(known)}, and {shown} is not" if known else f"{shown} does not stand for what can be here"

    def _found(self, inner: KeyPath, error: ErrorDetails) -> str:
        if (error["type"] in _OWN and not inner) or error["type"] in _EMPTY:
            return ""
        return f", found {shown(error['input'])}" if not _is_secret(self.model, inner) else ", and it is something else"

    def _named(self, where: KeyPath) -> str:
        inner = where[len(self.item) :]
        return f"{self.what}: {_dotted(inner)}" if inner else self.what


def _expected(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _OWN:
        return _own_words(error)
    if kind in _RANGES:
        limit, words = _RANGES[kind]
        bound = f"{context[limit]:g}" if isinstance(context[limit], float) else str(context[limit])
        return f"expected {words} {bound}"
    if kind in ("literal_error", "enum"):
        return f"expected {context['expected']}".replace("'", '"')
    if kind == "string_pattern_mismatch" and context["pattern"] in _PATTERNS:
        return f"expected {_PATTERNS[context['pattern']]}"
    if kind in _EMPTY:
        return "expected something, and there is nothing"
    word = _WORDS.get(kind) or _WORDS.get(kind.rpartition("_")[0])
    return f"expected {word}" if word else _decapitalised(error["msg"])


def _own_words(error: ErrorDetails) -> str:
    """Of a validator that a connector's author has written."""
    raised = error.get("ctx", {}).get("error")
    told = str(raised) if raised is not None else error["msg"].partition(", ")[2]
    hint = getattr(raised, "hint", "")
    return f"{told}. {hint}".rstrip() if hint else told


def as_seen(document: Document, path: KeyPath, value: Any) -> str:
    """The value as people may see it."""
    return document.written[path] if path in document.written else shown(value)


def shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | int | float | bool) else "something else"
    return text if len(text) <= _FOUND_LENGTH_MAX else f"{text[:_FOUND_LENGTH_MAX]}…"


def _near_literal(error: ErrorDetails) -> str:
    if error["type"] not in ("literal_error", "enum") or not isinstance(error["input"], str):
        return ""
    names = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))
    hint = nearest(error["input"], names)
    return hint if hint.startswith("Did") else ""


def _dotted(inner: KeyPath) -> str:
    made = ""
    for each in inner:
        made += f"[{each}]" if isinstance(each, int) else f".{each}"
    return made.removeprefix(".")


def _decapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]


def _described(model: type[BaseModel], inner: KeyPath) -> str:
    """What the documentation says of a key."""
    owners = list(_models(model, inner[:-1]))
    for owner in owners:
        for name, option in owner.model_fields.items():
            if inner and (option.alias or name) == inner[-1] and option.description:
                return " ".join(option.description.split())
    return ""


def keys_of(model: type[BaseModel], inner: KeyPath) -> list[str]:
    """The keys that a file may have there."""
    return [option.alias or name for owner in _models(model, inner) for name, option in owner.model_fields.items()]


def _is_secret(model: type[BaseModel], inner: KeyPath) -> bool:
    if any(isinstance(each, str) and _SECRET_KEY.search(each) for each in inner):
        return True
    fields = (owner.model_fields.items() for owner in _models(model, inner[:-1]))
    types = [
        option.annotation for found in fields for name, option in found if inner and (option.alias or name) == inner[-1]
    ]
    return any({SecretStr, SecretBytes} & {each, *get_args(each)} for each in types)


def _models(model: type[BaseModel], inner: KeyPath) -> Iterator[type[BaseModel]]:
    """The models that stand there; several where a union leaves the choice."""
    if not inner:
        yield model
        return
    head, rest = inner[0], inner[1:]
    for name, option in model.model_fields.items():
        if (option.alias or name) == head:
            for each in _within(option.annotation):
                yield from _models(each, tuple(one for one in rest if isinstance(one, str)))


def _within(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in an annotation, also those in its lists and unions."""
    if get_origin(annotation) is not None or isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        for each in get_args(annotation):
            yield from _within(each)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


# The three sections of a file, cut into items; and the bindings, understood.

SECTIONS = ("connector", "pipeline", "binding")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WRITTEN_OUT = "Everybody sees names: write it out, without ${…}."


@dataclass(frozen=True, slots=True)
class Item:
    """A connector or a pipeline as it stands in the file."""

    kind: str
    id: str
    value: Mapping[str, Any]
    path: KeyPath

    @property
    def what(self) -> str:
        return f'{self.kind} "{self.id}"' if self.id else f"a {self.kind}"


@dataclass(frozen=True, slots=True)
class Instance:
    """`variables` has what is filled in, `outside` which of them hold what nobody may print."""

    name: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    outside: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Binding:
    id: str
    path: KeyPath
    links: Mapping[str, str | tuple[str, ...]]
    instances: Mapping[str, Instance] | None
    """None: there is one, and what it links is named plainly."""
    guarantee: str | None


@dataclass(frozen=True, slots=True)
class Sections:
    items: tuple[Item, ...]
    bindings: tuple[Binding, ...]

    def find(self, kind: str, id: str) -> Item | None:  # noqa: A002  the key
        return next((item for item in self.items if (item.kind, item.id) == (kind, id)), None)

    def ids(self, kind: str) -> list[str]:
        return [item.id for item in self.items if item.kind == kind and item.id]


def cut(document: Document) -> Sections:
    """What cannot be understood is left out, and among the document's mistakes."""
    if not isinstance(document.value, dict):
        seen = as_seen(document, (), document.value)
        text = f"an application is a mapping with the keys {', '.join(SECTIONS)}, found {seen}"
        document.complain((), text)
        return Sections((), ())
    for key in document.value:
        if key not in SECTIONS:
            document.complain((key,), f'unknown key "{key}" in the file', nearest(key, SECTIONS), key=True)
    items = [item for kind in SECTIONS for item in _items(document, kind)]
    _check_ids(document, items)
    bindings = [_binding(document, item) for item in items if item.kind == "binding"]
    rest = tuple(item for item in items if item.kind != "binding")
    return Sections(rest, tuple(binding for binding in bindings if binding is not None))


def _items(document: Document, kind: str) -> Iterator[Item]:
    given = document.value.get(kind, [])
    found = enumerate(given) if isinstance(given, list) else [(None, given)]
    for index, value in found:
        path: KeyPath = (kind,) if index is None else (kind, index)
        if isinstance(value, dict):
            name = value.get("id")
            known = name if isinstance(name, str) and not document.is_outside((*path, "id")) else ""
            yield Item(kind, known, value, path)
        else:
            document.complain(path, f"{kind}: expected a mapping (key: value), found {as_seen(document, path, value)}")


def _check_ids(document: Document, items: list[Item]) -> None:
    seen: dict[tuple[str, str], Item] = {}
    for item in items:
        where = (*item.path, "id")
        if document.is_outside(where):
            document.complain(where, f"a {item.kind} has its name from outside", _WRITTEN_OUT)
        if reason := _reserved(item):
            document.complain(where, f"{item.what}: {reason}")
        first = seen.setdefault((item.kind, item.id), item)
        if item.id and first is not item:
            line = document.place((*first.path, "id")).line
            document.complain(where, f"there are two: {item.what}", f"The other one stands in line {line}.")


def _reserved(item: Item) -> str:
    """Why it cannot be called so."""
    if item.id.startswith(RESERVED_PREFIX):
        return f"names that begin with {RESERVED_PREFIX} are Penstock's own"
    if item.kind == "connector" and item.id.endswith(ERR_SUFFIX):
        return f"names that end in {ERR_SUFFIX} are those of the ports err"
    if item.kind == "pipeline" and f"{item.id}.".startswith(f"{PASSTHROUGH_NAME}."):
        return f"names that begin with {PASSTHROUGH_NAME}. are those of system::passthrough"
    return ""


def _binding(document: Document, item: Item) -> Binding | None:
    instances = item.value.get("instances")
    if document.is_outside(links := (*item.path, "links")):
        document.complain(links, f"{item.what} has links from outside", _WRITTEN_OUT, key=True)
        return None
    if isinstance(instances, list) and document.is_outside(path := (*item.path, "instances")):
        document.complain(path, f"{item.what} has names of instances from outside", _WRITTEN_OUT, key=True)
        return None
    return _understood(document, item)


def _understood(document: Document, item: Item) -> Binding | None:
    section = validated(document, BindingSection, item.value, item.path, (), item.what)
    if section is None:
        return None
    instances = None if section.instances is None else _instances(document, item, section)
    if instances is not None and not instances:
        document.complain((*item.path, "instances"), f"{item.what} has no instance", "Leave the key out for one.")
    return Binding(section.id, item.path, section.links, instances, section.guarantee)


def _instances(document: Document, item: Item, section: BindingSection) -> dict[str, Instance]:
    given = section.instances
    if not isinstance(given, dict):
        assert given is not None
        for index, name in enumerate(given):
            if name in given[:index]:
                document.complain((*item.path, "instances", index), f'the instance "{name}" stands here twice')
        return {name: Instance(name, {"instance": name}) for name in given}
    found = {}
    for name, variables in given.items():
        path = (*item.path, "instances", name)
        for variable in variables or {}:
            if variable == "instance" or not _VARIABLE.fullmatch(variable):
                document.complain(
                    (*path, variable), f'"{variable}" cannot be the name of a variable', "Take another one.", key=True
                )
        outside = frozenset(each for each in variables or {} if document.is_outside((*path, each)))
        found[name] = Instance(name, {**(variables or {}), "instance": name}, outside)
    return found
