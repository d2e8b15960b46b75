"""The sections of an application's file, each a model: its fields are the keys, its docstrings the documentation."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema, field_validator

from penstock.application.config.document import Name, PortName
from penstock.connectors.values import Duration, Seconds, SecondsOrOff, Size, SomeSeconds, refuse_truths, unexpected
from penstock.core.types import Guarantee
from penstock.protocol.api.deployment import SEGMENTS_MAX
from penstock.protocol.connector.credits import FRAME_SIZE_FLOOR, SMALL_WINDOW_BYTES, WINDOW_BYTES


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        populate_by_name=False,
        allow_inf_nan=False,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truths(cls, given: Any, info: ValidationInfo) -> Any:
        return refuse_truths(cls, given, info)


class InterceptorSection(Section):
    """What bytes go through, on their way in or out."""

    type: str
    """`split`, `join`, `length-prefixed`, or another that is installed."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The options of its type."""


class InterceptorsSection(Section):
    """Chains, each in the order in which bytes go through it."""

    in_: tuple[InterceptorSection, ...] = Field(default=(), alias="in")
    """From the peer: what makes events of its bytes."""
    out: tuple[InterceptorSection, ...] = ()
    """To the peer: what makes bytes of events."""


class ReconnectSection(Section):
    """How a connection that is gone is tried again."""

    first: SomeSeconds = 0.1
    """The first pause."""
    factor: Annotated[float, Field(ge=1)] = 2.0
    """By which it grows with each try."""
    max: SomeSeconds = 30.0
    """The longest pause."""
    tries: Annotated[int, Field(ge=1)] | None = None
    """Consecutive failures after which it stays closed until an operator acts; by default it retries forever."""


class BreakerSection(Section):
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


class WatermarkSection(Section):
    """How far events may be out of order, and how long a silent stream is waited for."""

    max_disorder: Seconds = 0.0
    """How far, in event time, an event may be behind the highest one of its stream."""
    idle_timeout: SecondsOrOff = None
    """A stream that is silent for so long no longer blocks the watermark; `off`: never."""
    when_all_idle: Literal["wait", "clock"] = "wait"
    """When all streams are idle, the watermark waits for the next event, or follows the worker's clock. Where event
    time is the time of arrival, it follows the clock in any case."""


class EventTimeSection(Section):
    """The event times of a source of the connector protocol."""

    unit: Literal["s", "ms", "us", "ns"] = "ms"
    """Of the numbers that it sends."""
    ingest: bool = False
    """An event time of 0 means the time of arrival."""


class ConnectorSection(Section):
    """A connection to the outside: events enter through its port `out`, and leave through its port `in`."""

    id: Name
    """Its name in links, and of its events' source."""
    type: str
    """One of `penstock connectors`."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The options of its type: `penstock connectors TYPE`."""
    codec: str | None = None
    """What makes columns of bytes, and bytes of columns."""
    codec_map: dict[str, str] = Field(default_factory=dict)
    """Content type (`text/*` for all of a kind) → codec; `codec` is for the others."""
    schema_: Annotated[str, Field(min_length=1)] | None = Field(default=None, alias="schema")
    """The columns that the codec makes, as Spark's DDL: `id BIGINT, name STRING`."""
    interceptors: InterceptorsSection = InterceptorsSection()
    """What bytes go through on their way in and out."""
    reconnect: ReconnectSection = ReconnectSection()
    """How a connection that is gone is tried again."""
    breaker: BreakerSection = BreakerSection()
    """When the port `in` closes by itself, and when it is tried again."""
    segments: Annotated[int, Field(ge=1, le=SEGMENTS_MAX)] = 2
    """Logs that its streams are spread over: how many readers a pipeline may have."""
    quota: Size | None = None
    """Bytes that its segments may hold together; then its peers wait."""
    window: Annotated[Size, Field(ge=FRAME_SIZE_FLOOR, le=WINDOW_BYTES)] = SMALL_WINDOW_BYTES
    """What a program on the connector protocol may have in flight, unless it announces a larger window."""
    ack: Literal["checkpoint", "durable"] = "checkpoint"
    """When an event is acknowledged: once every pipeline on it has completed it, or once it is on disk."""
    watermark: WatermarkSection = WatermarkSection()
    """How far events may be out of order."""
    event_time: EventTimeSection = EventTimeSection()
    """How event times are written."""


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


class PipelineSection(Section):
    """A function on Spark: its parameters are its inputs, what it returns leaves through its ports."""

    id: Name
    """Its name in links."""
    spark: str
    """`file.py:function`, the file beside this one, or `system::passthrough`."""
    trigger: Duration | None = None
    """Between the starts of two epochs; without it one follows the other."""
    mode: Literal["append", "complete"] | None = None
    """What an epoch writes: rows that are new, or the whole result."""
    starting: Starting | None = None
    """Where its first epoch begins: `earliest`, `latest`, a time, or offsets of segments."""
    max_bytes_per_epoch: Size | None = None
    """What one epoch reads at most."""
    max_rows_per_epoch: Annotated[int, Field(ge=1)] | None = None
    """What one epoch reads at most."""
    outputs: tuple[PortName, ...] = ()
    """Its ports beside `out`, `err` and `late`."""
    guarantee: GuaranteeName | None = None
    """What must hold from its sources to its sinks; the file is refused if it cannot."""

    @property
    def settings(self) -> dict[str, Any]:
        """The keys that were set, as plain values."""
        found = self.model_dump(exclude={"id", "spark"}, exclude_defaults=True, mode="json")
        return {key: value for key, value in found.items() if value is not None}


class BindingSection(Section):
    """What leads where, as often as it has instances."""

    id: Name
    """Its name."""
    links: dict[str, str | tuple[str, ...]] = Field(min_length=1)
    """From a port (`connector/ID/{instance}/out`) to one or several (`pipeline/ID/{instance}/in`)."""
    instances: tuple[Name, ...] | dict[Name, dict[str, Any] | None] | None = None
    """Names of the instances that run side by side, or each with the variables that are filled in for it."""
    guarantee: GuaranteeName | None = None
    """As of a pipeline, for all that is linked here."""


STRENGTH = (Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.IDEMPOTENT, Guarantee.EXACTLY_ONCE)
"""Guarantees from weak to strong: each includes those before it."""
