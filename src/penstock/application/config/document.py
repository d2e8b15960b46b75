"""YAML as plain values, each with its place in the file. Stricter than YAML itself: no duplicate keys, no tags, one
document; only `true` and `false` are booleans; `01`, `no` and dates are strings.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import yaml
from pydantic import Field

from penstock.application.config.references import KeyPath, References, are_kept
from penstock.connectors.secrets import has_references
from penstock.core.errors import RequestError
from penstock.core.sizes import format_size

# Mistakes in an application's file, with their places. All of them are reported together.


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A position in the file, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """`str()` is `file:line:column: what is wrong. What was expected.`"""

    file: str
    place: Place
    text: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.place.line}:{self.place.column}: {self.text}"
        where = where if where.endswith((".", "?")) else f"{where}."
        return _on_one_line(f"{where} {self.hint}" if self.hint else where)


def _on_one_line(text: str) -> str:
    """Escapes what a terminal would act upon: names in a file may contain anything."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class ConfigErrors(RequestError):
    """The file cannot be deployed: nothing was started. `mistakes` has all of them, in the file's order."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(sorted(set(mistakes)))
        count = len(self.mistakes)
        text = "\n".join(map(str, self.mistakes))
        super().__init__(text, f"{count} {'mistake' if count == 1 else 'mistakes'}: nothing was started.")


FILE_BYTES_MAX = 1 << 20
"""An application is a few pages. A larger file was named by mistake."""
TOO_LARGE = f"the file is larger than {format_size(FILE_BYTES_MAX)}"
VALUES_MAX = 100_000
"""Aliases of aliases can expand a small file to a large value."""
DEPTH_MAX = 50
"""Nothing in an application is nested 10 levels deep, and the parser recurses for each level."""

_KINDS: dict[str, Callable[[str], Any]] = {
    yaml.SafeLoader.DEFAULT_SCALAR_TAG: str,
    "tag:yaml.org,2002:int": lambda text: int(text.replace("_", "")),
    "tag:yaml.org,2002:float": lambda text: float(text.replace("_", "")),
    "tag:yaml.org,2002:bool": lambda text: text.lower() == "true",
    "tag:yaml.org,2002:null": lambda _: None,
}
_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(slots=True)
class Document:
    """`value` consists of dicts, lists, strings, numbers, booleans and None. Mistakes are collected until `check`
    raises them.
    """

    file: str
    references: References
    value: Any = None
    places: dict[KeyPath, Place] = field(default_factory=dict)
    """The places of values, by the keys and indexes that lead to them."""
    keys: dict[KeyPath, Place] = field(default_factory=dict)
    """The places of the keys themselves."""
    written: dict[KeyPath, str] = field(default_factory=dict)
    """The text in the file where `value` comes from outside, and must not be printed."""
    unset: set[KeyPath] = field(default_factory=set)
    """Values from outside that were not found: only that is reported about them."""
    left: set[str] = field(default_factory=set)
    """Variables that are not set here, and are left to the worker."""
    notes: list[str] = field(default_factory=list)
    """What cannot be checked on this machine."""
    mistakes: list[Mistake] = field(default_factory=list)

    def known(self, path: KeyPath) -> KeyPath:
        """The longest prefix of the path that is in the file."""
        while path and path not in self.places:
            path = path[:-1]
        return path

    def place(self, path: KeyPath, *, key: bool = False) -> Place:
        if key and path in self.keys:
            return self.keys[path]
        return self.places.get(self.known(path), Place(1, 1))

    def complain(self, path: KeyPath, text: str, hint: str = "", *, key: bool = False) -> None:
        self.mistakes.append(Mistake(self.file, self.place(path, key=key), text, hint))

    def shown(self, path: KeyPath, value: str) -> str:
        """The value in the form that people may see."""
        return self.written.get(path, value)

    def is_outside(self, path: KeyPath) -> bool:
        """Whether this value, or one below it, comes from outside."""
        return any(each[: len(path)] == path for each in self.written)

    def check(self) -> None:
        """Raises ConfigErrors with all mistakes so far."""
        if self.mistakes:
            raise ConfigErrors(self.mistakes)


class _Loader(yaml.SafeLoader):
    """Resolves unquoted scalars by _PLAIN only, without the rules of YAML 1.1."""


_Loader.yaml_implicit_resolvers = {}

_PLAIN = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    "float": (r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.[0-9]+)", "-+0123456789."),
    "merge": (r"<<", "<"),
}
"""The types of unquoted scalars: their pattern, and their possible first characters."""
for _name, (_pattern, _first) in _PLAIN.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"(?:{_pattern})$"), [*_first])


def parse(text: str, file: str, references: References, *, leaves_unset: bool = False) -> Document:
    """Raises ConfigErrors if it is not YAML; any other mistake is added to the document's. `leaves_unset`: a variable
    that is not set here is not a mistake where the worker resolves it.
    """
    document = Document(file, references)
    if len(text.encode(errors="replace")) > FILE_BYTES_MAX:
        document.complain((), TOO_LARGE, "Is it an application?")
        document.check()
    root = _composed(document, text)
    if root is not None:
        _Reader(document, leaves_unset=leaves_unset).read(root, ())
    return document


def _composed(document: Document, text: str) -> yaml.Node | None:
    loader: yaml.SafeLoader | None = None
    try:
        loader = _Loader(text)
        root = loader.get_node() if loader.check_node() else None
        second = loader.get_node() if loader.check_node() else None
        if second is None:
            return root
        document.places[()] = _place(second)
        document.complain((), "a second YAML document starts here", "Use a separate file for each application.")
    except yaml.MarkedYAMLError as error:
        _unreadable(document, error)
    except yaml.reader.ReaderError as error:
        document.complain((), f"the file is not UTF-8 text: {error.reason}", "Write it as UTF-8.")
    except RecursionError:
        document.complain((), "the file is nested too deeply", f"At most {DEPTH_MAX} levels.")
    finally:
        if loader is not None:
            loader.dispose()
    raise ConfigErrors(document.mistakes)


def _unreadable(document: Document, error: yaml.MarkedYAMLError) -> None:
    mark = error.problem_mark or error.context_mark
    if mark is not None:
        document.places[()] = Place(mark.line + 1, mark.column + 1)
    what = ", ".join(part for part in (error.context, error.problem) if part)
    document.complain(
        (), f"this is not valid YAML: {what}", "Look at the indentation, and for a missing quote or colon."
    )


def _several(node: yaml.Node) -> list[yaml.Node]:
    """The nodes that `<<` names."""
    return list(node.value) if isinstance(node, yaml.SequenceNode) else [node]


def _place(node: yaml.Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


class _Reader:
    """Converts nodes to values."""

    def __init__(self, document: Document, *, leaves_unset: bool) -> None:
        self._document = document
        self._leaves_unset = leaves_unset
        self._count = 0
        self._open: list[yaml.Node] = []

    def read(self, node: yaml.Node, path: KeyPath) -> None:
        self._document.value = self._value(node, path)

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._document.places[path] = _place(node)
        self._descend(node, path)
        self._open.append(node)
        try:
            return self._converted(node, path)
        finally:
            self._open.pop()

    def _descend(self, node: yaml.Node, path: KeyPath) -> None:
        self._count += 1
        if node in self._open or len(self._open) > DEPTH_MAX or self._count > VALUES_MAX:
            self._document.complain(
                path, "an alias contains itself, or expands to too much", "Look at its aliases (*name)."
            )
            raise ConfigErrors(self._document.mistakes)

    def _converted(self, node: yaml.Node, path: KeyPath) -> Any:
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _COLLECTIONS:
            self._document.complain(path, f'unknown tag "{node.tag}"', "Write the value without one.")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(each, (*path, index)) for index, each in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                merged += _several(value)
                continue
            name = self._key(key, path)
            if name is None:
                continue
            if name in mapping:
                first = self._document.keys[*path, name]
                self._document.places[*path, name] = self._document.keys[*path, name] = _place(key)
                self._document.complain(
                    (*path, name), f'the key "{name}" is defined twice', f"It is also defined in line {first.line}."
                )
                continue
            self._document.keys[*path, name] = _place(key)
            mapping[name] = self._value(value, (*path, name))
        for other in merged:
            self._merge(other, path, mapping)
        return mapping

    def _merge(self, node: yaml.Node, path: KeyPath, mapping: dict[str, Any]) -> None:
        """The mapping's own keys take precedence over merged ones, and those over what the merged mapping merges
        itself.
        """
        self._descend(node, path)
        if not isinstance(node, yaml.MappingNode):
            self._document.complain(path, "<< needs a mapping", "Write <<: *name.")
            return
        inner = [one for key, value in node.value if key.tag == _MERGE for one in _several(value)]
        for key, value in node.value:
            if key.tag == _MERGE:
                continue
            name = self._key(key, path)
            if name is not None and name not in mapping:
                self._document.keys[*path, name] = _place(key)
                mapping[name] = self._value(value, (*path, name))
        self._open.append(node)
        for other in inner:
            self._merge(other, path, mapping)
        self._open.pop()

    def _key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if isinstance(node, yaml.ScalarNode):
            return str(node.value)
        self._document.places[*path, ""] = _place(node)
        self._document.complain((*path, ""), "a key must be a string", 'Is a "{" or "[" missing its quotes?')
        return None

    def _scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        text = node.value
        if "${" in text:
            return self._substituted(text, path)
        if node.tag not in _KINDS:
            self._document.complain(path, f'unknown tag "{node.tag}"', "Write the value without one.")
            return text
        try:
            return _KINDS[node.tag](text)
        except ValueError:
            self._document.complain(path, f'the value is not a valid "{node.tag}"', "Write the value without a tag.")
            return text

    def _substituted(self, text: str, path: KeyPath) -> str:
        references, is_kept = self._document.references, are_kept(path)
        if (unset := references.check(text)) is not None:
            if is_kept and unset.variable and self._leaves_unset:
                self._document.left.add(unset.variable)
            else:
                self._document.complain(path, unset.text, unset.hint)
            self._document.written[path] = text
            self._document.unset.add(path)
        elif has_references(text):
            self._document.written[path] = text
        replaced: str = references.kept(text) if is_kept else references.replaced(text)
        return replaced


# Valid names of artefacts and ports: segments and files are named after them.

NAME_LENGTH_MAX = 100
RESERVED_PREFIX = "system"
"""Names with this prefix are reserved for Penstock."""
PASSTHROUGH_NAME = "passthrough"
"""`passthrough.BINDING` is the built-in pipeline of a binding."""
ERR_SUFFIX = ".err"
"""`NAME.err` is the source of input of the connector NAME that could not become an event."""
NAME_PATTERN = rf"^[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{NAME_LENGTH_MAX - 1}}}$"
PORT_PATTERN = r"^[A-Za-z0-9_-]{1,100}$"
"""No dots: ports with one are reserved for Penstock, such as those of replayed dead letters."""

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
PortName = Annotated[str, Field(pattern=PORT_PATTERN)]
