"""Validates links: the ports exist and have the right direction, and every input is linked."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.application.config.connectors import CheckedConnector
from penstock.application.config.document import (
    ERR_SUFFIX,
    NAME_LENGTH_MAX,
    PASSTHROUGH_NAME,
    Document,
)
from penstock.application.config.lint import Binding, Instance, Item, Sections
from penstock.application.config.pipelines import CheckedPipeline
from penstock.application.config.references import KeyPath, are_kept
from penstock.application.config.sections import STRENGTH
from penstock.connectors.api import Capabilities
from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion
from penstock.core.types import Guarantee
from penstock.protocol.api.deployment import DEFAULT_INSTANCE, PASSTHROUGH, SYSTEM_STREAMS, Deployment, End, Link

# The ends of links, as written in a file.
#
#     penstock://connector/ID/{instance}/PORT     `tremor://…` and `/connector/ID/…` mean the same
#     connector/ID/{instance}/PORT
#     connector/ID/PORT                           for the only instance
#     system/streams                              the signals of all streams, for pipelines to read

SYSTEM_STREAMS_URL = "system/streams"
KINDS = ("connector", "pipeline")

_SCHEMES = ("penstock://", "tremor://", "/")
_PART = re.compile(r"[A-Za-z0-9._-]+|\{[A-Za-z_][A-Za-z0-9_-]*\}")
_EXPECTED = "Write connector/ID/{instance}/PORT or pipeline/ID/{instance}/PORT."


@dataclass(frozen=True, slots=True)
class Url:
    kind: str
    """`connector`, `pipeline`, or `system`."""
    id: str
    instance: str
    """As written; `{instance}` if it is left out."""
    port: str
    scheme: str = "penstock://"

    def of(self, instance: str) -> str:
        """The full form, for people."""
        if self.kind == "system":
            return SYSTEM_STREAMS_URL
        return f"{self.scheme}{self.kind}/{self.id}/{instance}/{self.port}"


def parse_url(text: str) -> Url:
    """Raises RequestError."""
    scheme = next((each for each in _SCHEMES if text.startswith(each)), "")
    plain = text.removeprefix(scheme).strip("/")
    if plain == SYSTEM_STREAMS_URL:
        return Url("system", "streams", "", "out")
    kind, *parts = plain.split("/")
    if kind not in KINDS or len(parts) not in (2, 3):
        raise RequestError(f'"{text}" is not a valid link endpoint', _EXPECTED)
    if any(not _PART.fullmatch(part) for part in parts if part != PASSTHROUGH) or PASSTHROUGH in parts[1:]:
        raise RequestError(f'"{text}" is not a valid link endpoint', _EXPECTED)
    if kind == "connector" and parts[0] == PASSTHROUGH:
        raise RequestError(f'"{text}": {PASSTHROUGH} is a pipeline', f"Write pipeline/{PASSTHROUGH}/….")
    instance = parts[1] if len(parts) == 3 else "{instance}"
    return Url(kind, parts[0], instance, parts[-1], scheme if "://" in scheme else "penstock://")


# From bindings to the deployment: every instance of every artefact, and the links between them.

_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_-]*)\}")
"""Not after a `$`: that is a reference to the environment."""
_DEFAULT = Instance(DEFAULT_INSTANCE, {"instance": DEFAULT_INSTANCE})


@dataclass(frozen=True, slots=True)
class Reached:
    """One end of a link, for one instance."""

    url: Url
    name: str
    instance: Instance
    item: Item | None
    """None: it is built in."""
    path: KeyPath
    """The place of the link that names it."""
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
    """Ends that name nothing are added to the document's mistakes."""
    routes: list[Route] = []
    for binding in sections.bindings:
        for instance in (binding.instances or {DEFAULT_INSTANCE: _DEFAULT}).values():
            routes += _Expansion(document, sections, binding, instance).routes()
    return routes


def fill(document: Document, value: Any, path: KeyPath, instance: Instance) -> Any:
    """The value with the instance's variables filled in: a text that is just one variable becomes its value, with its
    type. Braces around anything that is not a variable stay as they are.
    """
    if isinstance(value, dict):
        return {key: fill(document, each, (*path, key), instance) for key, each in value.items()}
    if isinstance(value, list):
        return [fill(document, each, (*path, index), instance) for index, each in enumerate(value)]
    if not isinstance(value, str):
        return value
    variables = instance.variables if are_kept(path) else document.references.replaced(instance.variables)
    names = {name for name in _PLACEHOLDER.findall(value) if name in variables}
    if names & instance.outside:
        document.written.setdefault(path, value)
    if (sole := _PLACEHOLDER.fullmatch(value)) and sole[1] in names:
        return variables[sole[1]]
    for name in sorted(names):
        if isinstance(variables[name], dict | list):
            document.complain(path, f'"{{{name}}}" is a mapping or a list, and cannot be a part of a text')
    return _PLACEHOLDER.sub(lambda m: _written(variables[m[1]]) if m[1] in names else m[0], value)


def _written(value: Any) -> str:
    """The value as in the file, where booleans are lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Expansion:
    """The expansion of one binding for one of its instances."""

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
        """None if it names nothing."""
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
            raise RequestError(f'{url.kind} "{url.id}" not found', suggestion(url.id, known))
        return found

    def _instance_of(self, url: Url) -> Instance:
        named = _PLACEHOLDER.fullmatch(url.instance)
        if named is None:
            return self._literal(url.instance)
        if named[1] == "instance":
            return self._instance
        if named[1] not in self._instance.variables:
            known = suggestion(named[1], self._instance.variables)
            raise RequestError(f'binding "{self._binding.id}" has no variable "{named[1]}"', known)
        if named[1] in self._instance.outside:
            raise RequestError(f'"{{{named[1]}}}" comes from the environment', "Names are public: write it out.")
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
        raise RequestError(f'no binding has the instance "{name}"', suggestion(name, known))

    def _check_name(self, url: Url, name: str) -> None:
        if len(name) > NAME_LENGTH_MAX:
            text = f'the name "{name}" has more than {NAME_LENGTH_MAX} characters'
            raise RequestError(text, "Shorten the id, or the name of the instance.")
        if url.kind == "connector" and name.endswith(ERR_SUFFIX) and not url.id.endswith(ERR_SUFFIX):
            text = f'the name "{name}" is that of the port err of "{url.id}"'
            raise RequestError(text, "Rename the instance.")

    def _name(self, url: Url, instance: Instance) -> str:
        parts = [PASSTHROUGH_NAME, self._binding.id] if url.id == PASSTHROUGH else [url.id]
        return ".".join(parts if instance is _DEFAULT else [*parts, instance.name])


_SOURCE_PORTS = ("out", "err")
_SINK_PORTS = ("in",)


class _Side(NamedTuple):
    """What is allowed on one side of a link, and the wording of errors."""

    ports: tuple[str, ...]
    ports_of_other_side: tuple[str, ...]
    preposition: str
    other_direction: str
    other_side: str
    other_role: str


_SOURCE = _Side(_SOURCE_PORTS, _SINK_PORTS, "from", "leave", "right", "sink")
_TARGET = _Side(_SINK_PORTS, _SOURCE_PORTS, "to", "enter", "left", "source")


class Linking:
    """Links everything that could be checked; ends at anything else are skipped: its own mistakes are reported."""

    def __init__(
        self,
        document: Document,
        connectors: Mapping[str, CheckedConnector],
        pipelines: Mapping[str, CheckedPipeline],
    ) -> None:
        self._document = document
        self._connectors = connectors
        self._pipelines = pipelines

    def links(self, routes: Sequence[Route]) -> list[Link]:
        found: dict[tuple[End, End], tuple[Route, Link]] = {}
        for route in routes:
            self._check_source(route.source)
            self._check_target(route.target)
            self._check_pair(route)
            link = Link(self._end(route.source), self._end(route.target), route.target.shown)
            first, _ = found.setdefault((link.source, link.target), (route, link))
            if first.binding is route.binding and first.target.path != route.target.path:
                self._complain(route.target, f'"{route.source.shown}" is linked to "{link.url}" twice')
        links = [link for _, link in found.values()]
        self._check_inputs(links)
        self._check_circles(links)
        return links

    def _end(self, reached: Reached) -> End:
        pipeline = self._pipelines.get(reached.name) if reached.url.kind == "pipeline" else None
        port = reached.url.port if pipeline is None or reached.is_key else pipeline.port(reached.url.port)
        return End("pipeline" if reached.url.kind == "pipeline" else "connector", reached.name, port)

    def _complain(self, reached: Reached, text: str, hint: str = "") -> None:
        self._document.complain(reached.path, text, hint, key=reached.is_key)

    def _check_source(self, reached: Reached) -> None:
        self._check_connector(reached, _SOURCE)
        pipeline = self._pipelines.get(reached.name) if reached.url.kind == "pipeline" else None
        if pipeline is not None and reached.url.port not in pipeline.outputs:
            self._complain(reached, *_no_port(reached, pipeline.outputs))

    def _check_target(self, reached: Reached) -> None:
        if reached.url.kind == "system":
            self._complain(reached, "system/streams can only be read", "It can only be used on the left of a link.")
        self._check_connector(reached, _TARGET)
        pipeline = self._pipelines.get(reached.name) if reached.url.kind == "pipeline" else None
        if pipeline is not None and pipeline.inputs is not None and reached.url.port not in pipeline.inputs:
            self._complain(reached, *_no_port(reached, pipeline.inputs))

    def _check_connector(self, reached: Reached, side: _Side) -> None:
        if reached.url.kind != "connector" or reached.name not in self._connectors:
            return
        port, present = reached.url.port, _ports(self._connectors[reached.name].capabilities)
        if port in side.ports_of_other_side:
            unable = f'Unable to link {side.preposition} "{reached.shown}".'
            text = f'{unable} Events {side.other_direction} the system through port "{port}"'
            self._complain(reached, text, f"It can only be used on the {side.other_side} of a link.")
        elif port not in side.ports:
            self._complain(reached, *_no_port(reached, present))
        elif port not in present:
            self._complain(reached, _unable(reached, side.other_role))
        elif side is _TARGET and _listens_everywhere(self._connectors[reached.name]):
            text = f'Unable to link to "{reached.shown}". With listen: every-worker its port "{port}" cannot be linked'
            self._complain(reached, text, "A reply could not reach a connection of another worker.")

    def _check_pair(self, route: Route) -> None:
        if "pipeline" not in (route.source.url.kind, route.target.url.kind) and route.target.url.kind != "system":
            text = (
                f'Unable to link "{route.source.shown}" to "{route.target.shown}". A link leads to or from a pipeline'
            )
            self._complain(route.target, text, "Put pipeline/system::passthrough between them.")

    def _check_inputs(self, links: Sequence[Link]) -> None:
        linked = {link.target for link in links}
        for name, pipeline in self._pipelines.items():
            for port in sorted(pipeline.required):
                if pipeline.inputs is not None and End("pipeline", name, port) not in linked:
                    path = pipeline.item.path if pipeline.item is not None else ("binding",)
                    text = f'nothing is linked to the input "{port}" of the pipeline "{name}"'
                    self._document.complain(path, text, f"Add a link to pipeline/{pipeline.spec.id}/{port}.")

    def _check_circles(self, links: Sequence[Link]) -> None:
        """A pipeline that waits for its own results would wait forever."""
        follows: dict[str, set[str]] = {}
        for link in links:
            if link.source.kind == link.target.kind == "pipeline":
                follows.setdefault(link.source.name, set()).add(link.target.name)
        for name in follows:
            reached, waiting = set[str](), [*follows[name]]
            while waiting:
                if (each := waiting.pop()) not in reached:
                    reached.add(each)
                    waiting += follows.get(each, ())
            if name in reached:
                item = self._pipelines[name].item if name in self._pipelines else None
                path = item.path if item is not None else ("binding",)
                self._document.complain(
                    path,
                    f'the results of the pipeline "{name}" lead back to it',
                    "Remove one of the links of the cycle.",
                )


def _unable(reached: Reached, role: str) -> str:
    """The wording of the RFC."""
    port = reached.url.port
    return (
        f'Unable to link to "{reached.shown}". Connector does not support linking to port "{port}". '
        f"It can only act as event {role}."
    )


def _listens_everywhere(connector: CheckedConnector) -> bool:
    return connector.spec is not None and connector.spec.listen == "every-worker"


def _ports(capabilities: Capabilities) -> list[str]:
    return [
        *(_SOURCE_PORTS if capabilities.source is not None else ()),
        *(_SINK_PORTS if capabilities.sink is not None else ()),
    ]


def _no_port(reached: Reached, ports: Sequence[str] | frozenset[str]) -> tuple[str, str]:
    text = f'Unable to link to "{reached.shown}". {reached.url.kind.capitalize()} has no port "{reached.url.port}"'
    return text, suggestion(reached.url.port, ports)


# Checks that the guarantee a pipeline or binding requires is possible, from the sources upstream to the sinks
# downstream.


def check_guarantees(
    document: Document,
    connectors: Mapping[str, CheckedConnector],
    pipelines: Mapping[str, CheckedPipeline],
    links: Sequence[Link],
    routes: Sequence[Route],
) -> None:
    check = _Check(document, connectors, Deployment(links=tuple(links)))
    for name, pipeline in pipelines.items():
        if pipeline.item is not None and (asked := pipeline.spec.settings.get("guarantee")):
            check.pipeline(name, asked, f"{pipeline.item.what}", (*pipeline.item.path, "guarantee"))
    for route in routes:
        if route.binding.guarantee is not None:
            for end in (route.source, route.target):
                if end.url.kind == "pipeline":
                    what, path = f'binding "{route.binding.id}"', (*route.binding.path, "guarantee")
                    check.pipeline(end.name, route.binding.guarantee, what, path)


class _Check:
    def __init__(self, document: Document, connectors: Mapping[str, CheckedConnector], deployment: Deployment) -> None:
        self._document = document
        self._connectors = connectors
        self._deployment = deployment

    def pipeline(self, name: str, asked: str, what: str, path: KeyPath) -> None:
        for role, connector, promised in self._promises(name):
            if STRENGTH.index(promised) < STRENGTH.index(Guarantee(asked)):
                text = f'{what}: {asked} cannot be guaranteed: connector "{connector}" is {promised.value} as a {role}'
                self._document.complain(path, text, f"Ask for {promised.value}, or use another connector type.")

    def _promises(self, name: str) -> Iterator[tuple[str, str, Guarantee]]:
        """The guarantees of all connectors upstream and downstream, across any number of pipelines."""
        for connector, checked in self._connectors.items():
            source, sink = checked.capabilities.source, checked.capabilities.sink
            if source is not None and name in self._deployment.pipelines_of(connector):
                yield "source", connector, source
            if sink is not None and connector in self._deployment.sinks_behind(name):
                yield "sink", connector, sink
