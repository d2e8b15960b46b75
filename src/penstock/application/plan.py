"""What a pipeline's query is built from, taken from the deployment alone: imports neither Spark nor a user's file."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.connectors.api import Connector, Options
from penstock.connectors.registry import CONNECTORS, parse_options
from penstock.connectors.secrets import NoSecret
from penstock.core.plugins import Registry
from penstock.protocol.api.deployment import (
    PASSTHROUGH,
    PLAIN_CODECS,
    SYSTEM_STREAMS,
    Deployment,
    End,
    PipelineSpec,
    port_for,
)
from penstock.protocol.api.pipelines import AtSegments, AtTime, Starting
from penstock.protocol.stored.dead_letters import DEAD_LETTER_PORTS
from penstock.spark.codecs.codec import AS_IT_IS, Coding, Outlet

OUT = "out"

Types = Registry[Connector[Any]]

_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a pipeline's query is built from. While it is equal, the query may continue."""

    spec: PipelineSpec
    sources: Mapping[str, tuple[str, ...]]
    """By input."""
    codings: Mapping[str, Mapping[str, Coding]]
    """By input and source."""
    outlets: Mapping[str, Outlet]


def plan_of(deployment: Deployment, name: str, types: Types = CONNECTORS) -> Plan:
    """Imports none of the user's files. Raises RequestError for a type that is not installed here."""
    read, inputs = _Read(deployment, types), deployment.inputs(name)
    return Plan(
        deployment.pipelines[name],
        {port: read.sources(ends) for port, ends in inputs.items()},
        {port: read.codings(ends) for port, ends in inputs.items()},
        _outlets(deployment, name, types),
    )


def starting_in(given: Any) -> Starting:
    """From a deployment's settings: `earliest`, `latest`, a time in ISO 8601, or segments and offsets."""
    if isinstance(given, dict):
        return AtSegments(given)
    match given:
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
    instant = datetime.fromisoformat(given)
    instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return AtTime((instant - _EPOCH) // timedelta(microseconds=1))


def _type_and_options(deployment: Deployment, connector: str, types: Types) -> tuple[type[Connector[Any]], Options]:
    """The connector's type and options. A driver need not have the worker's secrets: if one is missing here, the
    options are as written, because secrets do not decide where events go.
    """
    spec = deployment.connectors[connector]
    connector_type = types.get(spec.type)
    model = connector_type.about.options
    try:
        return connector_type, parse_options(model, spec.config, spec.type)
    except NoSecret:
        return connector_type, model.model_construct(**spec.config)


class _Read:
    """What pipelines read, and in which codec."""

    def __init__(self, deployment: Deployment, types: Types) -> None:
        self._deployment = deployment
        self._types = types

    def sources(self, ends: list[End]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._source(end) for end in ends))

    def codings(self, ends: list[End]) -> dict[str, Coding]:
        found = (self._coding(end) for end in ends)
        return {coding.source: coding for coding in found}

    def _source(self, end: End) -> str:
        if end.kind == "connector" and end.port == OUT and end.name in self._deployment.connectors:
            connector_type, options = _type_and_options(self._deployment, end.name, self._types)
            return connector_type.source_name(options, end.name) or end.source
        return end.source

    def _coding(self, end: End) -> Coding:
        """Output of pipelines is not decoded, and neither is input that could not become an event."""
        source = self._source(end)
        if end.name == SYSTEM_STREAMS:
            return Coding(source, "json")
        spec = self._deployment.connectors.get(end.name) if (end.kind, end.port) == ("connector", OUT) else None
        if spec is None:
            return Coding(source, AS_IT_IS)
        codec = AS_IT_IS if spec.codec is None and not spec.codec_map else spec.codec
        return Coding(source, codec, spec.codec_map, spec.schema)


def _outlets(deployment: Deployment, name: str, types: Types) -> dict[str, Outlet]:
    spec = deployment.pipelines[name]
    ports = (OUT, *DEAD_LETTER_PORTS, *spec.settings.get("outputs", ()))
    return {port: _outlet(deployment, spec, port, types) for port in ports}


def _outlet(deployment: Deployment, spec: PipelineSpec, port: str, types: Types) -> Outlet:
    """The port itself gets rows if a pipeline reads it, a sink with a plain codec is linked to it, or nothing is."""
    sinks = [connector for given, connector in deployment.sinks(spec.name) if given == port]
    codecs = {deployment.connectors[sink].codec for sink in sinks}
    beside = {codec for codec in codecs if codec is not None and port_for(port, codec) != port}
    is_read = any(
        (link.source, link.target.kind) == (End("pipeline", spec.name, port), "pipeline") for link in deployment.links
    )
    targets = [(port_for(port, codec), codec) for codec in sorted(beside)]
    if is_read or not beside or codecs & {*PLAIN_CODECS}:
        targets.insert(0, (port, _plain(spec, codecs)))
    linked = [sink for sink in sinks if _is_linked(deployment, sink, types)]
    maps = {target: _codec_map(deployment, target, port, sinks, linked) for target, _ in targets}
    return Outlet(port, tuple(targets), bool(linked), {target: found for target, found in maps.items() if found})


def _codec_map(
    deployment: Deployment, target: str, port: str, sinks: list[str], linked: list[str]
) -> tuple[tuple[str, str], ...]:
    """The codecs of replies by the content type of what they reply to. All sinks of a target get the same bytes, so it
    is empty unless all of them reply, with the same map.
    """
    mine = [sink for sink in sinks if port_for(port, deployment.connectors[sink].codec) == target]
    found = {tuple(Coding(sink, None, deployment.connectors[sink].codec_map).patterns()) for sink in mine}
    return found.pop() if len(found) == 1 and {*mine} <= {*linked} else ()


def _plain(spec: PipelineSpec, codecs: set[str | None]) -> str:
    """The codec of the port itself: passthrough needs none, unless a sink requires JSON."""
    if "json" in codecs:
        return "json"
    return AS_IT_IS if spec.spark == PASSTHROUGH or AS_IT_IS in codecs else "json"


def _is_linked(deployment: Deployment, connector: str, types: Types) -> bool:
    connector_type, options = _type_and_options(deployment, connector, types)
    return connector_type.capabilities(options).is_linked
