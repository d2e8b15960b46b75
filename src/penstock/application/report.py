"""What people are shown of a connector of the application."""

from dataclasses import asdict, dataclass, field

from penstock.application.instance import Instance
from penstock.delivery.breakers.table import Breakers
from penstock.ingest.source_view import SourceView

_SHOWN = 20
"""Streams of each kind; the counts say how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStream:
    """One that may not send, and who keeps it from it."""

    stream_id: int
    stream: str
    """Its name, or # and its id."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedStream:
    """One whose events the sink does not take now."""

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
    """starting, connected, disconnected, ended, failed, draining or stopped; a pause is another thing."""
    reason: str
    streams: int
    """That are open."""
    waiting_streams: int
    """Of those, that may not send."""
    held_streams: list[HeldStream]
    """Some of them."""
    paused: bool
    paused_streams: list[int]
    takes: str
    """Why its port `in` takes nothing; "" if it does."""
    closed_streams: list[ClosedStream]
    """Some of those that its port `in` has closed."""
    closed_count: int
    events_in: int
    bytes_in: int
    events_out: int
    dead_letters: int
    """What came in and is no event, and what was to leave and never will."""
    held_bytes: int
    """Of streams that its port `in` has closed, on disk."""
    guarantee: dict[str, str]
    """By port."""
    reached_at: str = ""
    """How events come in from the outside, for people."""
    counts: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def report(instance: Instance, breakers: Breakers, sources: SourceView) -> ConnectorStatus:
    told, spec, sink = instance.host.status(), instance.built.spec, instance.sink
    blocked, blocked_count = told.blocked, told.blocked_count
    if not told.streams:  # programs send, and not the connector
        waiting = [stream for stream in breakers.streams_of(spec.name) if not breakers.may_send(stream)]
        blocked = {stream.stream_id: breakers.why(stream) for stream in waiting[:_SHOWN]}
        blocked_count = len(waiting)
    paused = [stream_id for name, stream_id in breakers.pauses if name == spec.name]
    closed = breakers.tripped_streams(spec.name)
    takes = breakers.sink_refusal(spec.name) if instance.built.capabilities.sink is not None else None
    open_streams = sources.open_streams(spec.name) if not told.streams else ()
    return ConnectorStatus(
        name=spec.name,
        id=spec.id,
        instance=spec.instance,
        type=spec.type,
        state=told.state,
        reason=told.reason,
        streams=told.streams or len(open_streams),
        waiting_streams=blocked_count,
        held_streams=[_held(sources, spec.name, stream_id, why) for stream_id, why in blocked.items()],
        paused=None in paused,
        paused_streams=[stream_id for stream_id in paused if stream_id is not None],
        takes=takes or "",
        closed_streams=[
            ClosedStream(connector=stream.connector, stream_id=stream.stream_id, why=why)
            for stream, why in [*closed.items()][:_SHOWN]
        ],
        closed_count=len(closed),
        events_in=told.events,
        bytes_in=told.bytes,
        events_out=0 if sink is None else sink.events_out,
        dead_letters=told.dead_letters + (0 if sink is None else sink.dead_letters),
        held_bytes=0 if sink is None else sink.outbox_bytes,
        guarantee=instance.built.guarantee,
        reached_at=instance.built.connector.reached_at,
        counts=told.counts,
    )


def _held(sources: SourceView, connector: str, stream_id: int, why: str) -> HeldStream:
    name = sources.stream_names(connector, [stream_id])[0]
    return HeldStream(stream_id=stream_id, stream=f"{name!r} (#{stream_id})" if name else f"#{stream_id}", why=why)


def failed(name: str, type_name: str, reason: str) -> dict[str, object]:
    """Of one that could not be made."""
    status = ConnectorStatus(
        name=name,
        id=name,
        instance="",
        type=type_name,
        state="failed",
        reason=reason,
        streams=0,
        waiting_streams=0,
        held_streams=[],
        paused=False,
        paused_streams=[],
        takes="it could not be made",
        closed_streams=[],
        closed_count=0,
        events_in=0,
        bytes_in=0,
        events_out=0,
        dead_letters=0,
        held_bytes=0,
        guarantee={},
    )
    return status.as_json()
