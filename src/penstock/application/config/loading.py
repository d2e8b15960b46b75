"""`load`: reads a file into a Deployment, or reports everything that is wrong with it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.application.config.connectors import CheckedConnector, ConnectorCheck
from penstock.application.config.document import (
    FILE_BYTES_MAX,
    TOO_LARGE,
    ConfigErrors,
    Document,
    Mistake,
    Place,
    parse,
)
from penstock.application.config.links import Linking, Reached, Route, check_guarantees, expand, fill
from penstock.application.config.lint import Instance, Item, Sections, cut
from penstock.application.config.pipelines import CheckedPipeline, check_pipeline, passthrough
from penstock.application.config.references import References
from penstock.application.config.types import Types
from penstock.connectors.api import Capabilities
from penstock.connectors.secrets import TooLarge, read_bounded
from penstock.protocol.api.deployment import DEFAULT_INSTANCE, ConnectorSpec, Deployment, PipelineSpec


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid file."""

    file: Path
    deployment: Deployment
    capabilities: Mapping[str, Capabilities]
    """By connector name."""
    notes: tuple[str, ...] = ()
    """Warnings: not mistakes, but perhaps not what was meant."""
    written: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    """By kind, name and key: the text in the file for values that come from outside it."""

    def shown(self, kind: str, name: str, key: str, value: object) -> str:
        """The value of an artefact's key in the form that people may see."""
        return self.written.get((kind, name, key), str(value))


def load(path: Path, types: Types, environ: Mapping[str, str], *, leaves_unset: bool = False) -> Loaded:
    """Raises ConfigErrors with every mistake. Starts nothing, runs no function and reads nothing outside, except the
    files that it names: those of functions and those of secrets. `leaves_unset`: a variable that `environ` does not
    have is left to the worker if it is in options of a connector; a note names it.
    """
    try:
        text = read_bounded(path, FILE_BYTES_MAX)
    except TooLarge:
        raise ConfigErrors([Mistake(str(path), Place(1, 1), TOO_LARGE, "Is it an application?")]) from None
    except OSError as error:
        raise ConfigErrors([Mistake(str(path), Place(1, 1), f"the file cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise ConfigErrors(
            [Mistake(str(path), Place(1, 1), "the file is not UTF-8 text", "Write it as UTF-8.")]
        ) from None
    return loads(text, path, types, environ, leaves_unset=leaves_unset)


def loads(
    text: str,
    path: Path,
    types: Types,
    environ: Mapping[str, str],
    *,
    leaves_unset: bool = False,
    reads_files: bool = True,
) -> Loaded:
    """Like `load`, with the file's contents as an argument. Without `reads_files`, a file with a secret is left to the
    worker, and is a mistake where the worker does not read it.
    """
    references = References(environ, path.absolute().parent, reads_files)
    document = parse(text, str(path), references, leaves_unset=leaves_unset)
    return _Loading(document, types).loaded(path)


@dataclass(slots=True)
class _Used:
    """A deployed artefact, and the first link that names it."""

    item: Item
    instance: Instance
    by: Reached


@dataclass(slots=True)
class _Loading:
    document: Document
    types: Types
    connectors: dict[str, CheckedConnector] = field(default_factory=dict)
    pipelines: dict[str, CheckedPipeline] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def loaded(self, path: Path) -> Loaded:
        sections = cut(self.document)
        routes = expand(self.document, sections)
        used = list(self._used(routes).values())
        for each in used:
            self._check(each.item, each.by.name, each.instance)
        self._check_unused(sections, routes)
        links = Linking(self.document, self.connectors, self.pipelines).links(routes)
        self._check_claims(used)
        check_guarantees(self.document, self.connectors, self.pipelines, links, routes)
        self._check_schemas(routes)
        self._check_secrets()
        self.document.check()
        deployment = Deployment(
            connectors=self._connector_specs(), pipelines=self._pipeline_specs(), links=tuple(links)
        )
        self.notes += self._arrival_times(deployment)
        self.notes += dict.fromkeys(self.document.notes)
        self.notes += [f"${{{name}}} is not set here: the worker must have it" for name in sorted(self.document.left)]
        found = {name: checked.capabilities for name, checked in self.connectors.items()}
        return Loaded(path, deployment, found, tuple(self.notes), dict(self._written(used)))

    def _arrival_times(self, deployment: Deployment) -> Iterator[str]:
        """Windows by arrival time are rarely meant, and make events of a file or a backlog late, or early."""
        for name, spec in deployment.connectors.items():
            times = self.connectors[name].capabilities.own_event_times
            if times is not False or spec.event_time is not None or spec.event_time_ingest:
                continue
            windowed = [one for one in sorted(deployment.fed_by(name)) if self._uses_windows(one)]
            if windowed:
                yield (
                    f"windows of {', '.join(windowed)} run on the arrival time of {name}: name the field that contains "
                    f"the event time (event_time: {{field: ts}}), or say that arrival times are meant "
                    f"(event_time: {{ingest: true}})"
                )

    def _uses_windows(self, pipeline: str) -> bool:
        function = self.pipelines[pipeline].function
        return function is not None and function.uses_windows

    def _written(self, used: Iterable["_Used"]) -> Iterator[tuple[tuple[str, str, str], str]]:
        """A key with a value from outside nested in it is not shown at all."""
        for each in used:
            depth = len(each.item.path)
            for path, text in self.document.written.items():
                if path[:depth] == each.item.path:
                    yield (each.item.kind, each.by.name, str(path[depth])), text if len(path) == depth + 1 else "…"

    def _connector_specs(self) -> dict[str, ConnectorSpec]:
        return {name: checked.spec for name, checked in self.connectors.items() if checked.spec is not None}

    def _pipeline_specs(self) -> dict[str, PipelineSpec]:
        return {name: checked.spec for name, checked in self.pipelines.items()}

    def _used(self, routes: Sequence[Route]) -> dict[tuple[str, str], _Used]:
        found: dict[tuple[str, str], _Used] = {}
        for reached in (end for route in routes for end in (route.source, route.target)):
            if reached.item is None:
                if reached.url.kind == "pipeline":
                    self.pipelines[reached.name] = passthrough(reached.name, reached.instance.name)
                continue
            first = found.setdefault((reached.url.kind, reached.name), _Used(reached.item, reached.instance, reached))
            self._check_same(first, reached)
        return found

    def _check_same(self, first: _Used, other: Reached) -> None:
        assert other.item is not None
        what = f'there would be two {other.url.kind}s named "{other.name}"'
        if other.item is not first.item:
            self.document.complain(other.path, what, "Change the id of one.", key=other.is_key)
        elif other.instance is not first.instance and self._filled(other.item, other.instance) != self._filled(
            first.item, first.instance
        ):
            hint = f'Use the same variables for the instance "{other.instance.name}", or rename it.'
            self.document.complain(other.path, what, hint, key=other.is_key)

    def _filled(self, item: Item, instance: Instance) -> Mapping[str, object]:
        filled: dict[str, object] = fill(self.document, dict(item.value), item.path, instance)
        return {**filled, **({"id": item.value["id"]} if "id" in item.value else {})}

    def _check(self, item: Item, name: str, instance: Instance, *, keep: bool = True) -> None:
        value = self._filled(item, instance)
        if item.kind == "connector":
            connector = ConnectorCheck(self.document, self.types, item, value).check(name, instance.name)
            if connector is not None and keep:
                self.connectors[name] = connector
        else:
            pipeline = check_pipeline(self.document, item, value, name, instance.name)
            if pipeline is not None and keep:
                self.pipelines[name] = pipeline

    def _check_unused(self, sections: Sections, routes: Sequence[Route]) -> None:
        """Unused items are checked too, with the variables of the first instance."""
        used = {id(end.item) for route in routes for end in (route.source, route.target)}
        first = [each for binding in sections.bindings for each in (binding.instances or {}).values()][:1]
        instance = first[0] if first else Instance(DEFAULT_INSTANCE, {"instance": DEFAULT_INSTANCE})
        for item in sections.items:
            if id(item) not in used:
                self._check(item, item.id, instance, keep=False)
                self.notes.append(f"{item.what} is in no link, so it does not run")

    def _check_claims(self, used: Iterable["_Used"]) -> None:
        """For connectors that run. Values from outside are not shown."""
        owners: dict[str, str] = {}
        for each in used:
            checked = self.connectors.get(each.by.name) if each.item.kind == "connector" else None
            for claim in sorted(checked.capabilities.claims) if checked is not None else ():
                first = owners.setdefault(claim, each.by.name)
                if first != each.by.name:
                    config = (*each.item.path, "config")
                    shown = "the same place" if self.document.is_outside(config) else claim
                    text = f'the connectors "{first}" and "{each.by.name}" cannot both have {shown}'
                    self.document.complain(config, text, "Use a separate one for each instance: {variable}.")

    def _check_secrets(self) -> None:
        """The worker resolves them only in the options of connectors and interceptors; those of codecs are resolved
        here.
        """
        for path, written in self.document.written.items():
            if "${file:" in written and not {"config", "codec_config", "instances"} & set(path):
                self.document.complain(path, f"{written} can only be used in a config", "Use a variable: ${NAME}.")

    def _check_schemas(self, routes: Sequence[Route]) -> None:
        for source in (route.source for route in routes):
            if source.item is not None and source.url.kind == "connector" and source.url.port == "out":
                value = self._filled(source.item, source.instance)
                ConnectorCheck(self.document, self.types, source.item, value).check_schema()
