"""The status of a connector of the application."""

from penstock.application.instance import Instance
from penstock.delivery.breakers.signals import Signals
from penstock.ingest.source_view import SourceView
from penstock.protocol.api.status import BlockedStream, ConnectorStatus, TrippedStream

_SHOWN = 20
"""The number of streams of each kind that a status lists; the counts cover all of them."""


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
        reached_at=instance.built.connector.mask.text(instance.built.connector.reached_at),
        counts=status.counts,
    )


def _blocked(sources: SourceView, connector: str, stream_id: int, why: str) -> BlockedStream:
    name = sources.stream_names(connector, [stream_id])[0]
    return BlockedStream(stream_id=stream_id, stream=f"{name!r} (#{stream_id})" if name else f"#{stream_id}", why=why)
