"""From bindings to what is deployed: every instance of every artefact, and the links between them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.config.deployment import DEFAULT_INSTANCE, PASSTHROUGH, SYSTEM_STREAMS
from penstock.config.mistakes import nearest
from penstock.config.names import ERR_SUFFIX, NAME_LENGTH_MAX, PASSTHROUGH_NAME
from penstock.config.sections import Binding, Instance, Item, Sections
from penstock.config.urls import Url, parse_url
from penstock.config.yaml_document import Document, KeyPath
from penstock.core.errors import RequestError

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_DEFAULT = Instance(DEFAULT_INSTANCE, {"instance": DEFAULT_INSTANCE})


@dataclass(frozen=True, slots=True)
class Reached:
    """An end of a link, of one instance."""

    url: Url
    name: str
    instance: Instance
    item: Item | None
    """None: it is built in."""
    path: KeyPath
    """Where the link names it."""
    is_key: bool

    @property
    def shown(self) -> str:
        return self.url.of(self.instance.name)


@dataclass(frozen=True, slots=True)
class Route:
    source: Reached
    target: Reached
    binding: Binding


def expand(document: Document, sections: Sections) -> list[Route]:
    """Ends that name nothing are among the document's mistakes."""
    routes: list[Route] = []
    for binding in sections.bindings:
        for instance in (binding.instances or {DEFAULT_INSTANCE: _DEFAULT}).values():
            routes += _Expansion(document, sections, binding, instance).routes()
    return routes


def fill(document: Document, value: Any, path: KeyPath, instance: Instance) -> Any:
    """The value with the instance's variables: a text that is only one becomes its value, with its type. What is in
    braces and is no variable stays as it is.
    """
    if isinstance(value, dict):
        return {key: fill(document, each, (*path, key), instance) for key, each in value.items()}
    if isinstance(value, list):
        return [fill(document, each, (*path, index), instance) for index, each in enumerate(value)]
    if not isinstance(value, str):
        return value
    names = {name for name in _PLACEHOLDER.findall(value) if name in instance.variables}
    if names & instance.outside:
        document.written.setdefault(path, value)
    if (sole := _PLACEHOLDER.fullmatch(value)) and sole[1] in names:
        return instance.variables[sole[1]]
    for name in sorted(names):
        if isinstance(instance.variables[name], dict | list):
            document.complain(path, f'"{{{name}}}" is a mapping or a list, and cannot be a part of a text')
    return _PLACEHOLDER.sub(lambda m: _written(instance.variables[m[1]]) if m[1] in names else m[0], value)


def _written(value: Any) -> str:
    """As it stands in the file, where truths have small letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Expansion:
    """Of one binding for one of its instances."""

    def __init__(self, document: Document, sections: Sections, binding: Binding, instance: Instance) -> None:
        self._document = document
        self._sections = sections
        self._binding = binding
        self._instance = instance

    def routes(self) -> Iterator[Route]:
        links = (*self._binding.path, "links")
        for written, targets in self._binding.links.items():
            source = self._reached(written, (*links, written), is_key=True)
            many = targets if isinstance(targets, tuple) else (targets,)
            for index, target in enumerate(many):
                path = (*links, written, index) if isinstance(targets, tuple) else (*links, written)
                reached = self._reached(target, path, is_key=False)
                if source is not None and reached is not None:
                    yield Route(source, reached, self._binding)

    def _reached(self, written: str, path: KeyPath, *, is_key: bool) -> Reached | None:
        """None where it names nothing."""
        try:
            url = parse_url(written)
            if url.kind == "system":
                return Reached(url, SYSTEM_STREAMS, self._instance, None, path, is_key)
            item = self._item(url)
            instance = self._instance_of(url)
            self._check_name(url, self._name(url, instance))
        except RequestError as error:
            self._document.complain(path, str(error), error.hint, key=is_key)
            return None
        return Reached(url, self._name(url, instance), instance, item, path, is_key)

    def _item(self, url: Url) -> Item | None:
        if url.id == PASSTHROUGH:
            return None
        found = self._sections.find(url.kind, url.id)
        if found is None:
            known = self._sections.ids(url.kind) + ([PASSTHROUGH] if url.kind == "pipeline" else [])
            raise RequestError(f'there is no {url.kind} "{url.id}"', nearest(url.id, known))
        return found

    def _instance_of(self, url: Url) -> Instance:
        named = _PLACEHOLDER.fullmatch(url.instance)
        if named is None:
            return self._literal(url.instance)
        if named[1] == "instance":
            return self._instance
        if named[1] not in self._instance.variables:
            known = nearest(named[1], self._instance.variables)
            raise RequestError(f'binding "{self._binding.id}" has no variable "{named[1]}"', known)
        if named[1] in self._instance.outside:
            raise RequestError(f'"{{{named[1]}}}" is from outside', "Everybody sees names: write it out.")
        return self._literal(str(self._instance.variables[named[1]]))

    def _literal(self, name: str) -> Instance:
        """An instance of this binding, or else of another one."""
        if name == self._instance.name:
            return self._instance
        every = [self._binding, *self._sections.bindings]
        found = [each.instances[name] for each in every if each.instances and name in each.instances]
        if found:
            return found[0]
        if name == DEFAULT_INSTANCE and any(each.instances is None for each in every):
            return _DEFAULT
        known = {name for each in every for name in each.instances or (DEFAULT_INSTANCE,)}
        raise RequestError(f'no binding has the instance "{name}"', nearest(name, known))

    def _check_name(self, url: Url, name: str) -> None:
        if len(name) > NAME_LENGTH_MAX:
            text = f'the name "{name}" has more than {NAME_LENGTH_MAX} characters'
            raise RequestError(text, "Shorten the id, or the name of the instance.")
        if url.kind == "connector" and name.endswith(ERR_SUFFIX) and not url.id.endswith(ERR_SUFFIX):
            text = f'the name "{name}" is that of the port err of "{url.id}"'
            raise RequestError(text, "Give the instance another name.")

    def _name(self, url: Url, instance: Instance) -> str:
        parts = [PASSTHROUGH_NAME, self._binding.id] if url.id == PASSTHROUGH else [url.id]
        return ".".join(parts if instance is _DEFAULT else [*parts, instance.name])
