"""From pydantic's errors to mistakes at their place: what was expected, what was found, and the nearest valid name."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from penstock.application.config.document import (
    ERR_SUFFIX,
    NAME_PATTERN,
    PASSTHROUGH_NAME,
    PORT_PATTERN,
    RESERVED_PREFIX,
    Document,
)
from penstock.application.config.references import KeyPath
from penstock.application.config.sections import BindingSection
from penstock.connectors.mistakes import (
    EMPTY,
    OWN,
    PATTERNS,
    Errors,
    described,
    dotted,
    expected,
    is_secret,
    keys_of,
    near_literal,
    shown,
)
from penstock.core.suggestions import suggestion

M = TypeVar("M", bound=BaseModel)

PATTERNS |= {NAME_PATTERN: "1 to 100 letters, digits, dots, dashes and underscores"}
PATTERNS |= {PORT_PATTERN: "1 to 100 letters, digits, dashes and underscores"}


def validated(document: Document, model: type[M], value: Any, item: KeyPath, within: KeyPath, what: str) -> M | None:
    """The model of the value at `within` in the `item` that people call `what`, with defaults; None if anything is
    wrong, which is then among the document's mistakes.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        lint = _Lint(document, model, what, item, len(item) + len(within))
        for where, errors in _by_place(document, (*item, *within), error.errors(include_url=False)).items():
            lint.report(where, errors)
        return None


def _by_place(document: Document, path: KeyPath, errors: Errors) -> dict[KeyPath, Errors]:
    """A union reports one error for each of its members, at places that the file does not have."""
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
    """The lint of one value: where its item starts, and how deep it is."""

    document: Document
    model: type[BaseModel]
    what: str
    item: KeyPath
    depth: int

    def report(self, where: KeyPath, errors: Errors) -> None:
        inner, key = where[self.depth :], str(where[-1]) if where else ""
        if errors[0]["type"] == "extra_forbidden":
            text = f'unknown key "{key}" in {self._named(where[:-1])}'
            self.document.complain(where, text, suggestion(key, keys_of(self.model, inner[:-1])), key=True)
        elif errors[0]["type"] == "missing":
            text = f'the key "{key}" is missing in {self._named(where[:-1])}'
            self.document.complain(where, text, described(self.model, inner))
        else:
            self._report_value(where, inner, errors)

    def _report_value(self, where: KeyPath, inner: KeyPath, errors: Errors) -> None:
        if self.document.is_outside(where):
            self.document.complain(where, f"{self._named(where)}: {self._outside(where, errors)}")
            return
        wanted = " or ".join(dict.fromkeys(map(expected, errors)))
        found = self._found(inner, errors[0])
        self.document.complain(where, f"{self._named(where)}: {wanted}{found}", near_literal(errors[0]))

    def _outside(self, where: KeyPath, errors: Errors) -> str:
        """A validator's message may contain the value, so it is not shown."""
        shown = self.document.written.get(where, "${…}")
        known = dict.fromkeys(expected(error) for error in errors if error["type"] not in OWN)
        return f"{' or '.join(known)}, and {shown} is not" if known else f"{shown} is not a valid value here"

    def _found(self, inner: KeyPath, error: ErrorDetails) -> str:
        if (error["type"] in OWN and (not inner or isinstance(error["input"], dict))) or error["type"] in EMPTY:
            return ""
        return f", found {shown(error['input'])}" if not is_secret(self.model, inner) else ", found something else"

    def _named(self, where: KeyPath) -> str:
        inner = where[len(self.item) :]
        return f"{self.what}: {dotted(inner)}" if inner else self.what


def as_seen(document: Document, path: KeyPath, value: Any) -> str:
    """The value in the form that people may see."""
    return document.written[path] if path in document.written else shown(value)


# The three sections of a file, split into items; and the bindings, parsed.

SECTIONS = ("connector", "pipeline", "binding")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WRITTEN_OUT = "Names are public: write it out, without ${…}."


@dataclass(frozen=True, slots=True)
class Item:
    """A connector or a pipeline as written in the file."""

    kind: str
    id: str
    value: Mapping[str, Any]
    path: KeyPath

    @property
    def what(self) -> str:
        return f'{self.kind} "{self.id}"' if self.id else f"a {self.kind}"


@dataclass(frozen=True, slots=True)
class Instance:
    """`variables` are the values to fill in; `outside` names those whose values may not be printed."""

    name: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    outside: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Binding:
    id: str
    path: KeyPath
    links: Mapping[str, str | tuple[str, ...]]
    instances: Mapping[str, Instance] | None
    """None: there is one instance, and the names of what it links have no instance part."""
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
    """Split the file into items. What cannot be parsed is omitted, and added to the document's mistakes."""
    if not isinstance(document.value, dict):
        seen = as_seen(document, (), document.value)
        text = f"an application is a mapping with the keys {', '.join(SECTIONS)}, found {seen}"
        document.complain((), text)
        return Sections((), ())
    for key in document.value:
        if key not in SECTIONS:
            document.complain((key,), f'unknown key "{key}" in the file', suggestion(key, SECTIONS), key=True)
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
            document.complain(where, f"a {item.kind} has a name from the environment", _WRITTEN_OUT)
        if reason := _reserved(item):
            document.complain(where, f"{item.what}: {reason}")
        first = seen.setdefault((item.kind, item.id), item)
        if item.id and first is not item:
            line = document.place((*first.path, "id")).line
            document.complain(where, f"there are two: {item.what}", f"The other one is in line {line}.")


def _reserved(item: Item) -> str:
    """Why the name is not allowed."""
    if item.id.startswith(RESERVED_PREFIX):
        return f"names that start with {RESERVED_PREFIX} are reserved for Penstock"
    if item.kind == "connector" and item.id.endswith(ERR_SUFFIX):
        return f"names that end in {ERR_SUFFIX} are reserved for the ports err"
    if item.kind == "pipeline" and f"{item.id}.".startswith(f"{PASSTHROUGH_NAME}."):
        return f"names that start with {PASSTHROUGH_NAME}. are reserved for system::passthrough"
    return ""


def _binding(document: Document, item: Item) -> Binding | None:
    instances = item.value.get("instances")
    if document.is_outside(links := (*item.path, "links")):
        document.complain(links, f"{item.what} has links from the environment", _WRITTEN_OUT, key=True)
        return None
    if isinstance(instances, list) and document.is_outside(path := (*item.path, "instances")):
        document.complain(path, f"{item.what} has instance names from the environment", _WRITTEN_OUT, key=True)
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
                document.complain((*item.path, "instances", index), f'the instance "{name}" is defined twice')
        return {name: Instance(name, {"instance": name}) for name in given}
    found = {}
    for name, variables in given.items():
        path = (*item.path, "instances", name)
        for variable in variables or {}:
            if variable == "instance" or not _VARIABLE.fullmatch(variable):
                document.complain(
                    (*path, variable),
                    f'"{variable}" is not a valid name for a variable',
                    "Choose another one.",
                    key=True,
                )
        outside = frozenset(each for each in variables or {} if document.is_outside((*path, each)))
        found[name] = Instance(name, {**(variables or {}), "instance": name}, outside)
    return found
