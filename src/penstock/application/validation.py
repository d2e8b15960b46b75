"""Whether a deployment can run as a whole: checked by the worker before it is stored, whoever has sent it."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath

from pydantic import ValidationError

from penstock.application.config.document import ERR_SUFFIX, NAME_PATTERN, PORT_PATTERN, RESERVED_PREFIX
from penstock.application.config.pipelines import OUTPUTS
from penstock.application.config.sections import PipelineSection
from penstock.connectors.api import Capabilities
from penstock.connectors.mistakes import complaints
from penstock.core.ddl import parse_ddl
from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion
from penstock.protocol.api.deployment import (
    PASSTHROUGH,
    SYSTEM_STREAMS,
    ConnectorSpec,
    Deployment,
    End,
    PipelineSpec,
)
from penstock.protocol.event_time.field import check_column, checked_field, checked_format
from penstock.spark import codecs
from penstock.spark.codecs.codec import name_of
from penstock.spark.codecs.registry import checked_options

_HINT = "Send what penstock apply sends, in the same version."

_SOURCE_PORTS = ("out", "err")
_SINK_PORTS = ("in",)


def check_deployment(deployment: Deployment) -> None:
    """Names, settings and links. Raises RequestError with all mistakes. The options of connectors are checked when
    they are built, and functions of pipelines by the driver, which has their files.
    """
    _raise(
        [
            *(text for name, one in deployment.connectors.items() for text in _connector(name, one)),
            *(text for name, two in deployment.pipelines.items() for text in _pipeline(name, two)),
            *_links(deployment),
        ]
    )


def check_ports(deployment: Deployment, capabilities: Mapping[str, Capabilities]) -> None:
    """Whether the connectors have the ports that are linked, and no two of them claim the same place, such as a port
    to listen on. Raises RequestError with all mistakes.
    """
    _raise([*_missing_ports(deployment, capabilities), *_conflicts(capabilities)])


def _raise(mistakes: Iterable[str]) -> None:
    if found := [*dict.fromkeys(mistakes)]:
        raise RequestError("\n".join(found), _HINT)


def _name(kind: str, key: str, name: str) -> Iterator[str]:
    if key != name:
        yield f"{kind} {key!r} contains a different name: {name!r}"
    if not re.fullmatch(NAME_PATTERN, key):
        yield f"{key!r} is not a valid {kind} name: 1 to 100 letters, digits, dots, dashes and underscores"
    elif key.startswith(RESERVED_PREFIX):
        yield f"{kind} {key!r}: names that start with {RESERVED_PREFIX} are reserved for Penstock"


def _codec_options(key: str, codec: str) -> Iterator[str]:
    try:
        checked_options(codec)
    except RequestError as error:
        yield f"connector {key}: {error}"


def _connector(key: str, spec: ConnectorSpec) -> Iterator[str]:
    yield from _name("connector", key, spec.name)
    if key.endswith(ERR_SUFFIX):
        yield f"connector {key!r}: names that end in {ERR_SUFFIX} are reserved for the ports err"
    known = codecs.names()
    for codec in (spec.codec, *spec.codec_map.values()):
        if codec is not None and name_of(codec) not in known:
            yield f"connector {key}: unknown codec {codec!r}. {suggestion(codec, known)}".rstrip()
        elif codec is not None:
            yield from _codec_options(key, codec)
    if spec.schema is not None:
        try:
            parse_ddl(spec.schema)
        except RequestError as error:
            yield f"connector {key}: schema: {error}"
    if spec.event_time is not None:
        try:
            checked_field(spec.event_time.field)
            checked_format(spec.event_time.format)
            check_column(spec.event_time)
        except RequestError as error:
            yield f"connector {key}: event_time: {error}"
    yield from _modes(key, spec)


def _modes(key: str, spec: ConnectorSpec) -> Iterator[str]:
    if spec.listen == "every-worker" and spec.partitions == 1:
        yield f"connector {key}: listen: every-worker needs partitions"
    if spec.when_all_idle == "clock" and spec.idle_timeout_seconds is None:
        yield f"connector {key}: when_all_idle: clock needs an idle_timeout"


def _pipeline(key: str, spec: PipelineSpec) -> Iterator[str]:
    yield from _name("pipeline", key, spec.name)
    file, _, function = spec.spark.rpartition(":")
    is_function = PurePath(file).is_absolute() and file.endswith(".py") and function.isidentifier()
    if spec.spark != PASSTHROUGH and not is_function:
        yield f"pipeline {key}: spark: expected /absolute/file.py:function or {PASSTHROUGH}"
    try:
        PipelineSection.model_validate({**spec.settings, "id": "p", "spark": spec.spark})
    except ValidationError as error:
        for _, text, hint in complaints(PipelineSection, error):
            yield f"pipeline {key}: {text}. {hint}".rstrip(" .")


def _links(deployment: Deployment) -> Iterator[str]:
    for link in deployment.links:
        if "pipeline" not in (link.source.kind, link.target.kind):
            yield f"{_shown(link.source)} is linked to {_shown(link.target)}: a link leads to or from a pipeline"
        yield from _source(deployment, link.source)
        yield from _target(deployment, link.target)
    for name in deployment.pipelines:
        if name in {end.name for end in deployment.reached_by(name) if end.kind == "pipeline"}:
            yield f"the output of the pipeline {name} leads back to it"


def _source(deployment: Deployment, end: End) -> Iterator[str]:
    if end.kind == "connector" and end.name == SYSTEM_STREAMS:
        return
    if (spec := _pipeline_at(deployment, end)) is not None:
        if end.port not in (*OUTPUTS, *spec.settings.get("outputs", ())):
            yield f"{_shown(end)}: the pipeline has no port {end.port!r} to link from"
    elif _is_missing(deployment, end):
        yield f"{_shown(end)} is linked, but is not in the deployment"
    elif end.port not in _SOURCE_PORTS:
        yield f"{_shown(end)}: a link leads from the port out or err of a connector"


def _target(deployment: Deployment, end: End) -> Iterator[str]:
    if (spec := _pipeline_at(deployment, end)) is not None:
        if not re.fullmatch(PORT_PATTERN, end.port) or (spec.spark == PASSTHROUGH and end.port != "in"):
            yield f"{_shown(end)}: the pipeline has no input {end.port!r}"
    elif _is_missing(deployment, end):
        yield f"{_shown(end)} is linked, but is not in the deployment"
    elif end.port not in _SINK_PORTS:
        yield f"{_shown(end)}: a link leads to the port in of a connector"
    elif deployment.connectors[end.name].listen == "every-worker":
        yield f"{_shown(end)}: with listen: every-worker the port in cannot be linked"


def _pipeline_at(deployment: Deployment, end: End) -> PipelineSpec | None:
    return deployment.pipelines.get(end.name) if end.kind == "pipeline" else None


def _is_missing(deployment: Deployment, end: End) -> bool:
    return end.kind != "connector" or end.name not in deployment.connectors


def _missing_ports(deployment: Deployment, capabilities: Mapping[str, Capabilities]) -> Iterator[str]:
    for name, found in capabilities.items():
        if deployment.has_out(name) and found.source is None:
            yield f"connector {name} has no port out: it can only act as a sink"
        if deployment.has_in(name) and found.sink is None:
            yield f"connector {name} has no port in: it can only act as a source"


def _conflicts(capabilities: Mapping[str, Capabilities]) -> Iterator[str]:
    """What they claim may be secret: it is not shown."""
    owners: dict[str, str] = {}
    for name, found in sorted(capabilities.items()):
        for claim in sorted(found.claims):
            if (first := owners.setdefault(claim, name)) != name:
                yield f"connectors {first} and {name} use the same port or file"


def _shown(end: End) -> str:
    return f"{end.kind} {end.name}/{end.port}"
