"""How a stream of a hosted connector begins: it has an id, nobody else has it, and that it has started is durable."""

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.connectors.api import StreamRef
from penstock.core.errors import NoRoom, PenstockError, RequestError
from penstock.ingest.connector import Batch, started
from penstock.ingest.connectors.admission import packed
from penstock.ingest.connectors.stream import HostedStream
from penstock.ingest.opened_streams import STREAM_NAME_MAX
from penstock.ingest.registry import StreamKey
from penstock.protocol.connector import stream_id_of

if TYPE_CHECKING:
    from penstock.ingest.connectors.host import SourceHost


async def open_stream(host: "SourceHost", name: str, resume: bool, metadata: Mapping[str, Any] | None) -> HostedStream:
    """As `connectors.api.Host.open_stream`. What cannot begin leaves nothing, or is ended with the next start."""
    if host.is_draining:
        raise RequestError(f"connector {host.name!r} reads no more", "It is being drained.")
    host.gateway.hosted(host.connector.name)
    name = name if resume else name[: STREAM_NAME_MAX - 1]
    stream_id = stream_id_of(name) if resume else await host.ground.incarnation.next_id()
    stream = _claim(host, stream_id, name, resume, metadata)
    try:
        await _begin(host, stream)
    except BaseException:
        stream.abandon()
        with suppress(PenstockError):  # else the next start does
            host.gateway.endings.recover(host.connector)
        raise
    return stream


def _claim(
    host: "SourceHost", stream_id: int, name: str, resume: bool, metadata: Mapping[str, Any] | None
) -> HostedStream:
    """Raises NoRoom, and RequestError where it is open already, or metadata cannot be stored."""
    connector, limit = host.connector, host.gateway.settings.streams_per_connector_max
    if len(connector.streams) >= limit and stream_id not in connector.streams:
        raise NoRoom(f"{host.name!r} has {limit} streams already (streams_per_connector_max)")
    packed(metadata)
    if not host.gateway.registry.claim(StreamKey(host.name, stream_id), host):
        raise RequestError(f"stream {name!r} of {host.name!r} is open already", "Close it first.")
    known = connector.find(stream_id, name[:STREAM_NAME_MAX])
    stream = HostedStream(host, StreamRef(host.name, stream_id), name, known, metadata, resumes=resume)
    host.streams[stream_id] = stream
    return stream


async def _begin(host: "SourceHost", stream: HostedStream) -> None:
    known = host.connector.streams[stream.ref.stream_id]
    mark = started(stream.ref.stream_id, known)
    (placed,) = host.connector.append([Batch(known.route, [mark])])
    await host.durable(placed.position)
    if stream.closed.is_set():  # its end must not be told before its start
        raise RequestError(f"stream {stream.name!r} of {host.name!r} was closed before it began")
    host.counters.streams += 1
    host.gateway.counters.streams_opened += 1
    host.gate.started(stream.ref)
    may_send = host.gate.may_send(stream.ref)
    host.gateway.keep_back(stream.ref, is_kept=not may_send)
    host.gate_changed(stream.ref, may_send)
