"""An application as it is deployed: all instances of its artefacts, and the links between them. Plain values."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal
from zlib import crc32

import msgspec

from penstock.core.errors import RequestError
from penstock.protocol.api.codec import Count, Positive, Request, encode
from penstock.protocol.connector.credits import SMALL_WINDOW_BYTES
from penstock.protocol.event_time.field import EventTimeField

# Which port of a pipeline contains the rows for a sink. It depends on the sink's own codec only, so it stays the same
# when other sinks are added or removed.

PLAIN_CODECS = (None, "json", "binary")
"""The codec of the port itself; rows in any other codec are in an additional port."""

_DEAD_LETTER_PORTS = ("err", "late")
"""Ports that contain original bytes, which are not encoded with a codec."""


def port_for(port: str, codec: str | None) -> str:
    """The port that contains a pipeline port's rows for a sink with this codec."""
    if codec is None or codec in PLAIN_CODECS or port in _DEAD_LETTER_PORTS:
        return port
    name, brace, _ = codec.partition("{")  # options follow the name
    return f"{port}.{name}-{crc32(codec.encode()):08x}" if brace else f"{port}.{name}"


DEFAULT_INSTANCE = "01"
PASSTHROUGH = "system::passthrough"
SYSTEM_STREAMS = "system.streams"
"""The built-in source of stream starts and ends. Links name it like a connector, but it is not part of the
deployment.
"""


PARTITIONS_MAX = 250
"""Of a source: a pipeline reads at most SEGMENTS_MAX segments, and each partition has its own."""

SEGMENTS_MAX = 1000
"""Segments of one connector: each is an open log with its own buffers."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=100 * 365 * 86400)]
SomeSeconds = Annotated[float, msgspec.Meta(gt=0, le=100 * 365 * 86400)]


@dataclass(frozen=True, slots=True, kw_only=True)
class InterceptorSpec:
    type: str
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectSpec:
    """The pauses between attempts of a connector's `run`: the first one, its growth factor, and the longest."""

    first_seconds: SomeSeconds = 0.1
    factor: Annotated[float, msgspec.Meta(ge=1)] = 2.0
    max_seconds: SomeSeconds = 30.0
    tries: Positive | None = None
    """Consecutive failures after which it stays closed until an operator acts; None: it retries forever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSpec:
    """When the breakers of a connector's `in` port trip, and when it is probed."""

    failing_streams: Positive | None = None
    """This many streams failing `within_seconds` trip the whole connector; None: each stream trips alone."""
    within_seconds: SomeSeconds = 1.0
    probe_after_seconds: SomeSeconds = 1.0
    """From a trip to its probe; doubled with each failed probe …"""
    probe_after_seconds_max: SomeSeconds = 60.0
    """… up to this."""
    outbox_bytes_max: Positive = 256 << 20
    """Limit of the outbox, which retains the rows of tripped streams. While it is full, the sink's epochs wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSpec:
    """One instance of a connector."""

    name: str
    """The name of its source in the store: the id, followed by `.INSTANCE` if the binding names instances."""
    id: str
    instance: str
    type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    """As written, with the instance's variables filled in. The worker that creates it resolves references to secrets
    (`${NAME}`, `${file:…}`).
    """
    codec: str | None = None
    codec_map: Mapping[str, str] = field(default_factory=dict)
    """Content type (`text/*` for all subtypes) → codec; `codec` is for all others."""
    schema: str | None = None
    """Spark DDL: the columns into which the codec decodes events."""
    interceptors_in: tuple[InterceptorSpec, ...] = ()
    interceptors_out: tuple[InterceptorSpec, ...] = ()
    reconnect: ReconnectSpec = field(default_factory=ReconnectSpec)
    breaker: BreakerSpec = field(default_factory=BreakerSpec)
    segments: Annotated[int, msgspec.Meta(ge=1, le=SEGMENTS_MAX)] = 2
    partitions: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)] = 1
    listen: Literal["one-worker", "every-worker"] = "one-worker"
    """Who listens, of a connector that does: the worker that has it, or every worker that has a partition of it."""
    quota_bytes: Positive | None = None
    window_bytes: Positive = SMALL_WINDOW_BYTES
    ack: Literal["checkpoint", "durable"] = "checkpoint"
    max_disorder_us: Count = 0
    idle_timeout_seconds: Seconds | None = None
    when_all_idle: Literal["wait", "clock"] = "wait"
    event_time_unit: Literal["s", "ms", "us", "ns"] = "ms"
    event_time_ingest: bool = False
    event_time: EventTimeField | None = None
    """The field of its events that contains their time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """One instance of a pipeline."""

    name: str
    id: str
    instance: str
    spark: str
    """`/absolute/file.py:function`, or PASSTHROUGH."""
    code: str = ""
    """A digest of the file: a changed digest restarts the pipeline."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Only those that are set: trigger (`10s`), mode, starting (`earliest`, `latest`, a time in ISO 8601, segment →
    offset), max_bytes_per_epoch (a number), max_rows_per_epoch, columns (of an event), outputs (beside out, err
    and late), guarantee.
    """


@dataclass(frozen=True, slots=True, order=True)
class End:
    """One end of a link: a port of a deployed artefact."""

    kind: str
    """`connector` or `pipeline`."""
    name: str
    """May be SYSTEM_STREAMS, which is built in and not part of the deployment."""
    port: str

    @property
    def source(self) -> str:
        """The name under which pipelines read it, in the form that `Source.parse` accepts."""
        if self.kind == "pipeline":
            return f"pipeline:{self.name}/{self.port}"
        return f"{self.name}.err" if self.port == "err" else self.name


@dataclass(frozen=True, slots=True, order=True)
class Link:
    source: End
    target: End
    url: str = ""
    """The target's address as the user wrote it: `penstock://connector/my-ws-server/01/in`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Everything that runs. Equal deployments run the same things."""

    connectors: Mapping[str, ConnectorSpec] = field(default_factory=dict)
    pipelines: Mapping[str, PipelineSpec] = field(default_factory=dict)
    links: tuple[Link, ...] = ()

    def inputs(self, pipeline: str) -> dict[str, list[End]]:
        """The sources of each input port of the pipeline."""
        found: dict[str, list[End]] = {}
        for link in self.links:
            if link.target.kind == "pipeline" and link.target.name == pipeline:
                found.setdefault(link.target.port, []).append(link.source)
        return found

    def sinks(self, pipeline: str) -> list[tuple[str, str]]:
        """Ports of the pipeline, and the connectors that they are linked to."""
        ends = (link for link in self.links if link.source.kind == "pipeline" and link.source.name == pipeline)
        return [(link.source.port, link.target.name) for link in ends if link.target.kind == "connector"]

    def sink_names(self, pipeline: str) -> dict[str, tuple[str, str]]:
        """The pipeline's sinks by the names under which they are bound: the port with the rows in the sink's codec, and
        the connector. A sink has the connector's name, followed by `.PORT` for all ports but `out`: so each is
        delivered separately, and keeps its name when others are linked.
        """
        found: dict[str, tuple[str, str]] = {}
        for port, connector in dict.fromkeys(self.sinks(pipeline)):
            name = connector if port == "out" else f"{connector}.{port}"
            codec = self.connectors[connector].codec if connector in self.connectors else None
            found[name if name not in found else f"{name}.{port}"] = (port_for(port, codec), connector)
        return found

    def downstream(self, connector: str) -> frozenset[str]:
        """The connectors that its events reach, through any number of pipelines."""
        return frozenset(end.name for end in self._reached("connector", connector) if end.kind == "connector")

    def sinks_behind(self, pipeline: str) -> frozenset[str]:
        """The connectors that the pipeline's results reach, through any number of other pipelines."""
        return frozenset(end.name for end in self._reached("pipeline", pipeline) if end.kind == "connector")

    def pipelines_of(self, connector: str) -> frozenset[str]:
        """The pipelines that its events reach, directly or through others."""
        return frozenset(end.name for end in self._reached("connector", connector) if end.kind == "pipeline")

    def fed_by(self, connector: str) -> frozenset[str]:
        """The pipelines that its events reach, directly or through others, without those that read its port `err`."""
        first = {
            link.target.name
            for link in self.links
            if (link.source.kind, link.source.name, link.source.port) == ("connector", connector, "out")
        }
        later = {end.name for name in first for end in self._reached("pipeline", name) if end.kind == "pipeline"}
        return frozenset(first | later)

    def reached_by(self, pipeline: str) -> frozenset[End]:
        """Everything that the pipeline's results reach, through any number of other pipelines."""
        return frozenset(self._reached("pipeline", pipeline))

    def _reached(self, kind: str, name: str) -> Iterator[End]:
        waiting, seen = [(kind, name)], set()
        while waiting:
            kind, name = waiting.pop()
            for link in self.links:
                if (link.source.kind, link.source.name) == (kind, name) and link.target not in seen:
                    seen.add(link.target)
                    yield link.target
                    if link.target.kind == "pipeline":
                        waiting.append(("pipeline", link.target.name))

    def has_in(self, connector: str) -> bool:
        """Whether something is linked to its `in` port."""
        return any((link.target.kind, link.target.name) == ("connector", connector) for link in self.links)

    def has_out(self, connector: str) -> bool:
        """Whether something reads its events, or its port `err`."""
        return any((link.source.kind, link.source.name) == ("connector", connector) for link in self.links)

    def as_json(self) -> dict[str, Any]:
        """Without what older versions do not know, as long as it is not used."""
        found = asdict(self)
        for connector in found["connectors"].values():
            if connector["event_time"] is None:
                del connector["event_time"]
        return found

    @classmethod
    def from_json(cls, data: Any) -> "Deployment":
        """The inverse of `as_json`, of this version or an older one. Raises RequestError."""
        try:
            found = msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise RequestError(f"this is not a deployment: {error}", _HINT) from None
        _check_counts(found)
        unknown = [*_lacking(data, json.loads(encode(found)), "")]
        if unknown or not data.keys() >= {"connectors", "pipelines", "links"}:
            what = f"{unknown[0]} is not known" if unknown else "connectors, pipelines or links are missing"
            raise RequestError(f"this is not a deployment of this version: {what}", _HINT)
        return found


CONNECTORS_MAX = PIPELINES_MAX = 1000
LINKS_MAX = 5000
"""Limits of one worker. Lookups walk over all links, so their number matters."""


def _check_counts(found: Deployment) -> None:
    counts = {
        "connectors": (len(found.connectors), CONNECTORS_MAX),
        "pipelines": (len(found.pipelines), PIPELINES_MAX),
        "links": (len(found.links), LINKS_MAX),
    }
    for what, (count, most) in counts.items():
        if count > most:
            raise RequestError(f"the deployment has {count} {what}; the limit is {most}", "Use several workers.")


_HINT = "Send what penstock apply sends, in the same version."


def _lacking(given: Any, found: Any, path: str) -> Iterator[str]:
    """Keys that were sent but not understood. Silently dropping one would run something other than what was
    requested.
    """
    if isinstance(given, dict) and isinstance(found, dict):
        for key, value in given.items():
            inner = f"{path}.{key}".removeprefix(".")
            yield from _lacking(value, found[key], inner) if key in found else [inner]
    elif isinstance(given, list) and isinstance(found, list):
        for number, (one, other) in enumerate(zip(given, found, strict=True)):
            yield from _lacking(one, other, f"{path}[{number}]")


class Apply(Request, frozen=True, kw_only=True):
    deployment: Mapping[str, Any]
    """As `Deployment.as_json` returns it: `Deployment.from_json` checks it."""
    name: str = ""
    """Its name for people: the file it came from."""
    expected_revision: Count | None = None
    """Refused with 409 if another revision is deployed by now, unless that is this deployment: the changes that a
    person has looked at are then not those that would be made.
    """


class Answer(Request, frozen=True, kw_only=True):
    """The pipeline driver's answer to a proposal: why it cannot run it; empty if it can."""

    number: Count
    refusals: Sequence[str]


class SetLogLevel(Request, frozen=True, kw_only=True):
    """Set the worker's log level, until it ends."""

    level: Literal["debug", "info", "warning", "error"]


class SelectStreams(Request, frozen=True, kw_only=True):
    """A connector, or one of its streams by name or id."""

    connector: str
    stream: str | int | None = None


class Proposal(msgspec.Struct, frozen=True):
    """A deployment that a worker asks its driver about."""

    number: int
    deployment: Deployment


class Deployed(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is running, draining, drained or failed; `revision` changes with every deployment, and is 0 before the
    first.
    """

    revision: int
    state: str
    deployment: Deployment
    proposed: Proposal | None = None
    incarnations: Mapping[str, int] = {}
    """By pipeline; changes when the pipeline is reset."""
    buried: Mapping[str, int] = {}
    """By pipeline, of those that have any: how many events are buried."""
    former: Sequence[str] = ()
    """Pipelines of earlier deployments that are still registered."""
    name: str = ""
    waits_for: Sequence[str] = ()
    """What a drain waits for."""
    reason: str = ""
    """Why it has failed."""
