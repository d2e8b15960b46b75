"""An application as it is deployed: every instance of every artefact, and what leads where. Plain values."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from penstock.core.errors import RequestError
from penstock.protocol.api.codec import Count, Positive, Request, encode
from penstock.protocol.connector.credits import SMALL_WINDOW_BYTES

# Which port of a pipeline holds what a sink wants. It depends on the sink's own codec alone: others may come and go
# beside it, and it stays where it is.

PLAIN_CODECS = (None, "json", "binary")
"""What the port itself holds; rows in any other codec are in a port beside it."""

_LETTERS = ("err", "late")
"""Their ports hold original bytes, in no codec of ours."""


def port_for(port: str, codec: str | None) -> str:
    """Where the rows of a pipeline's port are for a sink with this codec."""
    return port if codec in PLAIN_CODECS or port in _LETTERS else f"{port}.{codec}"


DEFAULT_INSTANCE = "01"
PASSTHROUGH = "system::passthrough"
SYSTEM_STREAMS = "system.streams"
"""The built-in source of what happens to streams: a connector in links that is not among the deployment's own."""


SEGMENTS_MAX = 1000
"""For one connector; each segment is an open log with its own buffers."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=100 * 365 * 86400)]
SomeSeconds = Annotated[float, msgspec.Meta(gt=0, le=100 * 365 * 86400)]


@dataclass(frozen=True, slots=True, kw_only=True)
class InterceptorSpec:
    type: str
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectSpec:
    """Between two tries of a connector's `run`: the first pause, by which it grows each time, and the longest."""

    first_seconds: SomeSeconds = 0.1
    factor: Annotated[float, msgspec.Meta(ge=1)] = 2.0
    max_seconds: SomeSeconds = 30.0
    tries: Positive | None = None
    """In a row, until it stays closed for an operator to look at; None: for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSpec:
    """When the breakers of a connector's `in` port trip, and when it is probed."""

    failing_streams: Positive | None = None
    """This many streams failing `within_seconds` trip the whole connector; None: each stream trips alone."""
    within_seconds: SomeSeconds = 1.0
    probe_after_seconds: SomeSeconds = 1.0
    """From a trip to its probe; doubled with each probe that fails …"""
    probe_after_seconds_max: SomeSeconds = 60.0
    """… up to this."""
    outbox_bytes_max: Positive = 256 << 20
    """Limit of the outbox, which retains the rows of tripped streams; when it is full, the sink's epochs wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSpec:
    """One instance of a connector."""

    name: str
    """Of its source in the store: the id, with `.INSTANCE` where the binding names instances."""
    id: str
    instance: str
    type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    """As written, with the instance's variables filled in. References to secrets (`${NAME}`, `${file:…}`) are
    left to the worker that makes it."""
    codec: str | None = None
    codec_map: Mapping[str, str] = field(default_factory=dict)
    """Content type (`text/*` for all of a kind) → codec; `codec` is for the others."""
    schema: str | None = None
    """Spark DDL: the columns that the codec makes."""
    interceptors_in: tuple[InterceptorSpec, ...] = ()
    interceptors_out: tuple[InterceptorSpec, ...] = ()
    reconnect: ReconnectSpec = field(default_factory=ReconnectSpec)
    breaker: BreakerSpec = field(default_factory=BreakerSpec)
    segments: Annotated[int, msgspec.Meta(ge=1, le=SEGMENTS_MAX)] = 2
    quota_bytes: Positive | None = None
    window_bytes: Positive = SMALL_WINDOW_BYTES
    ack: Literal["checkpoint", "durable"] = "checkpoint"
    max_disorder_us: Count = 0
    idle_timeout_seconds: Seconds | None = None
    when_all_idle: Literal["wait", "clock"] = "wait"
    event_time_unit: Literal["s", "ms", "us", "ns"] = "ms"
    event_time_ingest: bool = False


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
    """Those that are given, of trigger (`10s`), mode, starting (`earliest`, `latest`, a time in ISO 8601, segment →
    offset), max_bytes_per_epoch (a number), max_rows_per_epoch, outputs (beside out, err and late), guarantee.
    """


@dataclass(frozen=True, slots=True, order=True)
class End:
    """Of a link: a port of an artefact that is deployed."""

    kind: str
    """`connector` or `pipeline`."""
    name: str
    """SYSTEM_STREAMS is a connector that the deployment does not hold: it is there by itself."""
    port: str

    @property
    def source(self) -> str:
        """What it is to those who read it, as `Source.parse` takes it."""
        if self.kind == "pipeline":
            return f"pipeline:{self.name}/{self.port}"
        return f"{self.name}.err" if self.port == "err" else self.name


@dataclass(frozen=True, slots=True, order=True)
class Link:
    source: End
    target: End
    url: str = ""
    """Of the target, as people have written it: `penstock://connector/my-ws-server/01/in`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """All that runs. Two that are equal run the same."""

    connectors: Mapping[str, ConnectorSpec] = field(default_factory=dict)
    pipelines: Mapping[str, PipelineSpec] = field(default_factory=dict)
    links: tuple[Link, ...] = ()

    def inputs(self, pipeline: str) -> dict[str, list[End]]:
        """By the pipeline's input port: where its events come from."""
        found: dict[str, list[End]] = {}
        for link in self.links:
            if link.target.kind == "pipeline" and link.target.name == pipeline:
                found.setdefault(link.target.port, []).append(link.source)
        return found

    def sinks(self, pipeline: str) -> list[tuple[str, str]]:
        """Ports of the pipeline, and the connectors that they lead to."""
        ends = (link for link in self.links if link.source.kind == "pipeline" and link.source.name == pipeline)
        return [(link.source.port, link.target.name) for link in ends if link.target.kind == "connector"]

    def sink_names(self, pipeline: str) -> dict[str, tuple[str, str]]:
        """The pipeline's sinks by the names under which they are bound: the port that holds what its codec wants,
        and the connector. A sink has the connector's name, with `.PORT` behind it for all ports but `out`: so each is
        delivered by itself, and keeps its name when others are linked.
        """
        found: dict[str, tuple[str, str]] = {}
        for port, connector in dict.fromkeys(self.sinks(pipeline)):
            name = connector if port == "out" else f"{connector}.{port}"
            codec = self.connectors[connector].codec if connector in self.connectors else None
            found[name if name not in found else f"{name}.{port}"] = (port_for(port, codec), connector)
        return found

    def downstream(self, connector: str) -> frozenset[str]:
        """The connectors that its streams' pipelines lead to, over any number of pipelines."""
        return frozenset(end.name for end in self._reached("connector", connector) if end.kind == "connector")

    def sinks_behind(self, pipeline: str) -> frozenset[str]:
        """The connectors that the pipeline's results go to, over any number of others."""
        return frozenset(end.name for end in self._reached("pipeline", pipeline) if end.kind == "connector")

    def pipelines_of(self, connector: str) -> frozenset[str]:
        """The pipelines that its events reach."""
        return frozenset(end.name for end in self._reached("connector", connector) if end.kind == "pipeline")

    def reached_by(self, pipeline: str) -> frozenset[End]:
        """All that the pipeline's results go to, over any number of others."""
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
        """Whether something reads its events, or what could not become an event."""
        return any((link.source.kind, link.source.name) == ("connector", connector) for link in self.links)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> "Deployment":
        """What `as_json` gave, of this version or an older one. Raises RequestError."""
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
"""What one worker runs. Who leads where is looked up by walking over the links."""


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
    """Keys that were given and not taken: dropping one silently would run something else than was asked for."""
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
    """What people call it: its file."""


class Answer(Request, frozen=True, kw_only=True):
    """Of the driver of the pipelines, to a proposal: why it cannot run it; nothing if it can."""

    number: Count
    refusals: Sequence[str]


class SetLogLevel(Request, frozen=True, kw_only=True):
    """Of the worker, until it ends."""

    level: Literal["debug", "info", "warning", "error"]


class SelectStreams(Request, frozen=True, kw_only=True):
    """A connector, or one of its streams by its name or its id."""

    connector: str
    stream: str | int | None = None


class Proposal(msgspec.Struct, frozen=True):
    """A deployment that a worker asks its driver about."""

    number: int
    deployment: Deployment


class Deployed(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is running, draining, drained or failed; `revision` is another one after every change, and 0 before the
    first.
    """

    revision: int
    state: str
    deployment: Deployment
    proposed: Proposal | None = None
    incarnations: Mapping[str, int] = {}
    """By pipeline: another one after a reset."""
    name: str = ""
    waits_for: Sequence[str] = ()
    """What a drain waits for."""
    reason: str = ""
    """Why it has failed."""
