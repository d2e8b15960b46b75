"""The status of a connector of the application."""

from dataclasses import asdict, dataclass, field

from penstock.application.instance import Instance
from penstock.delivery.breakers.signals import Signals
from penstock.ingest.source_view import SourceView

_SHOWN = 20
"""The number of streams of each kind that a status lists; the counts cover all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedStream:
    """A stream that may not send, and why."""

    stream_id: int
    stream: str
    """Its name, or # and its id."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrippedStream:
    """A stream whose breaker at this sink is not passing, and why."""

    connector: str
    stream_id: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorStatus:
    name: str
    id: str
    instance: str
    type: str
    state: str
    """starting, connected, disconnected, ended, failed, draining or stopped, whether it is paused or not."""
    reason: str
    streams: int
    """The number of open streams."""
    blocked_count: int
    """The number of open streams that may not send."""
    blocked_streams: list[BlockedStream]
    """Some of them."""
    paused: bool
    paused_streams: list[int]
    breaker: str
    """The state of its `in` port as a whole: passing, tripped or probing; "" if it has none."""
    breaker_reason: str
    """Why its `in` port accepts nothing; "" if it accepts events."""
    tripped_streams: list[TrippedStream]
    """Some of the streams that its `in` port has tripped."""
    tripped_count: int
    events_in: int
    bytes_in: int
    events_out: int
    dead_letters: int
    """Input that could not become an event, and output that could not be sent."""
    outbox_bytes: int
    """Retained on disk for tripped streams."""
    guarantee: dict[str, str]
    """By port."""
    reached_at: str = ""
    """Where programs reach it, for people."""
    counts: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def report(instance: Instance, signals: Signals, sources: SourceView) -> ConnectorStatus:
    status, spec, sink = instance.host.status(), instance.built.spec, instance.sink
    breakers, streams = signals.breakers, signals.streams
    blocked, blocked_count = status.blocked, status.blocked_count
    if not status.streams:  # programs send, not the connector
        waiting = [stream for stream in streams.streams_of(spec.name) if not streams.may_send(stream)]
        blocked = {stream.stream_id: streams.why(stream) for stream in waiting[:_SHOWN]}
        blocked_count = len(waiting)
    paused = [stream_id for name, stream_id in breakers.pauses.all() if name == spec.name]
    tripped = breakers.tripped_streams(spec.name)
    refusal = breakers.sink_refusal(spec.name) if instance.built.capabilities.sink is not None else None
    open_streams = sources.open_streams(spec.name) if not status.streams else ()
    return ConnectorStatus(
        name=spec.name,
        id=spec.id,
        instance=spec.instance,
        type=spec.type,
        state=status.state,
        reason=status.reason,
        streams=status.streams or len(open_streams),
        blocked_count=blocked_count,
        blocked_streams=[_blocked(sources, spec.name, stream_id, why) for stream_id, why in blocked.items()],
        paused=None in paused,
        paused_streams=[stream_id for stream_id in paused if stream_id is not None],
        breaker=breakers.state(spec.name),
        breaker_reason=refusal or "",
        tripped_streams=[
            TrippedStream(connector=stream.connector, stream_id=stream.stream_id, why=why)
            for stream, why in [*tripped.items()][:_SHOWN]
        ],
        tripped_count=len(tripped),
        events_in=status.events,
        bytes_in=status.bytes,
        events_out=0 if sink is None else sink.events_out,
        dead_letters=status.dead_letters + (0 if sink is None else sink.dead_letters),
        outbox_bytes=0 if sink is None else sink.outbox_bytes,
        guarantee=instance.built.guarantee,
        reached_at=instance.built.connector.reached_at,
        counts=status.counts,
    )


def _blocked(sources: SourceView, connector: str, stream_id: int, why: str) -> BlockedStream:
    name = sources.stream_names(connector, [stream_id])[0]
    return BlockedStream(stream_id=stream_id, stream=f"{name!r} (#{stream_id})" if name else f"#{stream_id}", why=why)


def failed(name: str, type_name: str, reason: str) -> dict[str, object]:
    """The status of a connector that could not be built."""
    status = ConnectorStatus(
        name=name,
        id=name,
        instance="",
        type=type_name,
        state="failed",
        reason=reason,
        streams=0,
        blocked_count=0,
        blocked_streams=[],
        paused=False,
        paused_streams=[],
        breaker="",
        breaker_reason="",
        tripped_streams=[],
        tripped_count=0,
        events_in=0,
        bytes_in=0,
        events_out=0,
        dead_letters=0,
        outbox_bytes=0,
        guarantee={},
    )
    return status.as_json()
