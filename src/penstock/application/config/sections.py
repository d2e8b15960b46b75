"""The sections of an application's file, each a model: its fields are the keys, its docstrings the documentation."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from penstock.application.config.document import Name, PortName
from penstock.connectors.values import Duration, Seconds, SecondsOrOff, Size, SomeSeconds, StrictModel, unexpected
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee
from penstock.protocol.api.deployment import PARTITIONS_MAX, SEGMENTS_MAX
from penstock.protocol.connector.credits import FRAME_SIZE_FLOOR, SMALL_WINDOW_BYTES, WINDOW_BYTES
from penstock.protocol.event_time.field import checked_field, checked_format


class InterceptorSection(StrictModel):
    """A transformation of bytes on their way in or out."""

    type: str
    """`split`, `join`, `length-prefixed`, or another that is installed."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The options of its type."""


class InterceptorsSection(StrictModel):
    """Chains of interceptors, each in the order in which bytes pass it."""

    in_: tuple[InterceptorSection, ...] = Field(default=(), alias="in")
    """Input: turns bytes from the peer into events."""
    out: tuple[InterceptorSection, ...] = ()
    """Output: turns events into bytes for the peer."""


class ReconnectSection(StrictModel):
    """How a lost connection is retried."""

    first: SomeSeconds = 0.1
    """The first pause before a retry."""
    factor: Annotated[float, Field(ge=1)] = 2.0
    """The factor by which the pause grows with each attempt."""
    max: SomeSeconds = 30.0
    """The longest pause."""
    tries: Annotated[int, Field(ge=1)] | None = None
    """Consecutive failures after which it stays closed until an operator acts; by default it retries forever."""


class BreakerSection(StrictModel):
    """When the breakers of the `in` port trip, and when it is probed."""

    failing_streams: Annotated[int, Field(ge=1)] | None = None
    """This many streams failing within `within` trip the whole connector; without it, each stream trips alone."""
    within: SomeSeconds = 1.0
    """The time in which failing streams are counted."""
    probe_after: SomeSeconds = 1.0
    """From a trip to its probe; doubled with each probe that fails."""
    probe_after_max: SomeSeconds = 60.0
    """The longest time from a trip to its probe."""
    outbox_max: Size = 256 << 20
    """Limit of the outbox, which retains the rows of tripped streams; when it is full, the sink's epochs wait."""


class WatermarkSection(StrictModel):
    """How far events may be out of order, and how long a silent stream is waited for."""

    max_disorder: Seconds = 0.0
    """How far, in event time, an event may be behind the highest one of its stream."""
    idle_timeout: SecondsOrOff = None
    """A stream that is silent for so long no longer blocks the watermark; `off`: never."""
    when_all_idle: Literal["wait", "clock"] = "wait"
    """When all streams are idle, the watermark waits for the next event, or follows the worker's clock. Where event
    time is the time of arrival, it follows the clock in any case."""


def _time_field(given: Any) -> Any:
    """A column of CSV may be a number."""
    text = str(given) if type(given) is int and given >= 0 else given
    try:
        return checked_field(text if isinstance(text, str) else "")
    except RequestError:
        raise unexpected("the name of a field, nested ones like order.time, or the number of a CSV column") from None


def _time_format(given: Any) -> Any:
    try:
        return checked_format(given if isinstance(given, str) else "")
    except RequestError as error:
        hint = f" ({error})" if isinstance(given, str) and "%" in given else ""
        raise unexpected(f"iso, s, ms, us, ns, or a strptime format with a year{hint}") from None


_FIELD_SCHEMA = {"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}]}


class EventTimeSection(StrictModel):
    """Where the event times come from: a field of the events, or their MESSAGE frames; else they are arrival times."""

    field: Annotated[str | None, BeforeValidator(_time_field), WithJsonSchema(_FIELD_SCHEMA)] = None
    """The field of each event that contains its time: `ts`, or `order.time` for nested ones. For CSV the name of a
    column of `schema`, or its number, starting with 0."""
    format: Annotated[str, BeforeValidator(_time_format)] = "iso"
    """How `field` is written: `iso`, a number since 1970 in `s`, `ms`, `us` or `ns`, or a format of Python's
    `strptime`."""
    missing: Literal["arrival", "dead-letter"] = "dead-letter"
    """What becomes of an event without a usable time in `field`: it gets its arrival time, or it leaves through the
    port `err`."""
    codec: str | None = None
    """How `field` is found, if not by the codecs of the connector: `json`, `csv` or `msgpack`."""
    unit: Literal["s", "ms", "us", "ns"] = "ms"
    """The unit of the times in the MESSAGE frames of a source of the connector protocol."""
    ingest: bool = False
    """Arrival times are meant. In the connector protocol: an event time of 0 means the time of arrival."""


class ConnectorSection(StrictModel):
    """A connection to the outside: events enter through its port `out`, and leave through its port `in`."""

    id: Name
    """Its name in links, and the name of its events' source."""
    type: str
    """One of `penstock connectors`."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The options of its type: `penstock connectors TYPE`."""
    codec: str | None = None
    """Turns bytes into columns, and columns into bytes."""
    codec_config: dict[str, Any] = Field(default_factory=dict)
    """The options of `codec`, if it has some."""
    codec_map: dict[str, str] = Field(default_factory=dict)
    """Content type (`text/*` for all of a kind) → codec; `codec` is for the others."""
    schema_: Annotated[str, Field(min_length=1)] | None = Field(default=None, alias="schema")
    """The columns that the codec yields, as Spark DDL: `id BIGINT, name STRING`."""
    interceptors: InterceptorsSection = InterceptorsSection()
    """Transformations of bytes on their way in and out."""
    reconnect: ReconnectSection = ReconnectSection()
    """How a lost connection is retried."""
    breaker: BreakerSection = BreakerSection()
    """When the breakers of the port `in` trip, and when they are probed."""
    segments: Annotated[int, Field(ge=1, le=SEGMENTS_MAX)] = 2
    """Segments that its streams are spread over: how many tasks can read it in parallel."""
    partitions: Annotated[int, Field(ge=1, le=PARTITIONS_MAX)] = 1
    """Shards of a cluster that its streams are spread over; never changes once the source is used. On a worker without
    `--store` it has one, whatever this says."""
    listen: Literal["one-worker", "every-worker"] = "one-worker"
    """Who listens, of a type that does: the worker of a cluster that has the connector, or every worker that has one of
    its `partitions`."""
    quota: Size | None = None
    """Bytes that its segments may hold in total; when it is reached, its peers wait."""
    window: Annotated[Size, Field(ge=FRAME_SIZE_FLOOR, le=WINDOW_BYTES)] = SMALL_WINDOW_BYTES
    """What a program on the connector protocol may have in flight, unless it announces a larger window."""
    ack: Literal["checkpoint", "durable"] = "checkpoint"
    """When an event is acknowledged: once every pipeline that reads it has completed it, or once it is on disk."""
    watermark: WatermarkSection = WatermarkSection()
    """How far events may be out of order."""
    event_time: EventTimeSection = EventTimeSection()
    """Where event times come from, and how they are written."""


def _starting(given: Any) -> Any:
    if given in ("earliest", "latest"):
        return given
    if isinstance(given, dict) and given and all(type(each) is int and each >= 0 for each in given.values()):
        return dict(given)
    try:
        time = datetime.fromisoformat(given if isinstance(given, str) else "")
    except ValueError:
        raise unexpected("earliest, latest, a time like 2026-01-31T12:00:00Z, or segment: offset") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()


_STARTING_SCHEMA = {
    "anyOf": [
        {"enum": ["earliest", "latest"]},
        {"type": "string", "format": "date-time"},
        {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
    ]
}
Starting = Annotated[Any, BeforeValidator(_starting), WithJsonSchema(_STARTING_SCHEMA)]
GuaranteeName = Literal["exactly-once", "idempotent", "at-least-once", "at-most-once"]


class PipelineSection(StrictModel):
    """A function on Spark: its parameters are its inputs, what it returns leaves through its ports."""

    id: Name
    """Its name in links."""
    spark: str
    """`file.py:function`, the file beside this one, or `system::passthrough`."""
    trigger: Duration | None = None
    """Interval between the starts of two epochs; without it, an epoch starts when the last one is done."""
    mode: Literal["append", "complete"] | None = None
    """What an epoch writes: new rows, or the whole result."""
    starting: Starting | None = None
    """Where its first epoch begins: `earliest`, `latest`, a time, or offsets of segments."""
    max_bytes_per_epoch: Size | None = None
    """What one epoch reads at most."""
    max_rows_per_epoch: Annotated[int, Field(ge=1)] | None = None
    """What one epoch reads at most."""
    columns: tuple[str, ...] | None = None
    """The columns of an event that it needs, beside those of the codec: others are not read. By default all."""
    outputs: tuple[PortName, ...] = ()
    """Its ports beside `out`, `err` and `late`."""
    guarantee: GuaranteeName | None = None
    """The guarantee required from its sources to its sinks; the file is refused if it is not possible."""

    @property
    def settings(self) -> dict[str, Any]:
        """The keys that were set, as plain values."""
        found = self.model_dump(exclude={"id", "spark"}, exclude_defaults=True, mode="json")
        return {key: value for key, value in found.items() if value is not None}


class BindingSection(StrictModel):
    """Links between connectors and pipelines, once for each instance."""

    id: Name
    """Its name."""
    links: dict[str, str | tuple[str, ...]] = Field(min_length=1)
    """From a port (`connector/ID/{instance}/out`) to one or several (`pipeline/ID/{instance}/in`)."""
    instances: tuple[Name, ...] | dict[Name, dict[str, Any] | None] | None = None
    """Names of the instances that run side by side, or each with the variables that are filled in for it."""
    guarantee: GuaranteeName | None = None
    """As for a pipeline, for everything that is linked here."""


STRENGTH = (Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.IDEMPOTENT, Guarantee.EXACTLY_ONCE)
"""Guarantees from weak to strong: each includes those before it."""
