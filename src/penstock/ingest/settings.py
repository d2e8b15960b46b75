"""The gateway's limits, each with its reason, and how connectors are set up that nobody has configured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from ssl import SSLContext

from penstock.protocol.connector.frames import EventTimeUnit

MIB = 1 << 20


class WhenAllIdle(Enum):
    """What becomes of the watermark of a source whose streams are all idle."""

    WAIT = "wait"
    """It stays where it is until the next event."""
    CLOCK = "clock"
    """It follows the worker's clock, less the disorder."""


class AckMode(Enum):
    """When a stream's point of reference is sent."""

    CHECKPOINT = "checkpoint"
    """When every pipeline on the connector has completed an epoch that holds it; without any, when it is durable."""
    DURABLE = "durable"
    """After the fsync."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSettings:
    """What can be set for each connector."""

    segments: int = 2
    """Segments that its streams are spread over; a stream stays where it was first put."""

    ack: AckMode = AckMode.CHECKPOINT
    event_time_unit: EventTimeUnit = EventTimeUnit.MS

    event_time_ingest: bool = False
    """An event time of 0 means the time of arrival."""

    quota_bytes: int | None = None
    """Bytes that its segments may hold together; from then on no credits are granted until there is room."""

    max_disorder_us: int = 0
    """How far, in event time, an event may be behind the highest one of its stream: the watermark waits for it."""

    idle_timeout_seconds: float | None = None
    """A stream that could send and has been silent for so long no longer holds the watermark back; None: never."""

    when_all_idle: WhenAllIdle = WhenAllIdle.WAIT
    """Without an idle timeout no stream is ever idle, and it changes nothing."""

    arrival_time: bool | None = False
    """The worker itself gives all events the time of their arrival; None: nobody has said, so the events decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    host: str = "127.0.0.1"
    port: int = 7100
    ssl: SSLContext | None = None
    cookie: bytes = field(default=b"", repr=False)
    connector: ConnectorSettings = field(default_factory=ConnectorSettings)
    connectors: Mapping[str, ConnectorSettings] = field(default_factory=dict)
    """Of those, by name, that are set up otherwise."""

    auto_create: bool = True
    """A name that is not known yet becomes a connector; otherwise it is refused."""

    connectors_max: int = 10_000
    """Sources that may be known: any name makes one, three segments each."""

    handshake_seconds: float = 10.0
    """How long a peer may take until its HELLO is there."""

    sessions_max: int = 1000
    """Beyond it a new connection is closed at once, and counted: each costs a receive buffer and a window."""

    frame_bytes_max: int = 4 * MIB
    """Largest frame; checked before its bytes are buffered."""

    streams_per_session_max: int = 100_000
    """Streams open in one session at the same time, at about 200 bytes each."""

    streams_per_connector_max: int = 1_000_000
    """Streams that a source may ever have: each is remembered, at about 300 bytes."""

    window_bytes: int = 8 * MIB
    """What a session may have sent that is not durable yet: its credits are counted from it."""

    write_buffer_bytes_max: int = MIB
    """Acknowledgements that a peer has not fetched; beyond it no more credits are granted."""

    unread_bytes_max: int = 8 * MIB
    """Answers and acknowledgements that a peer has not fetched; beyond it the session is ended. NOTIFYs need no credit,
    and those of all the streams that a session may have are answered even if it reads nothing until the last."""

    dead_peer_seconds: int = 30
    """A peer that does not answer on the network for so long is gone, and its streams are free again."""

    half_closed_seconds: float = 30.0
    """How long a source that has closed its side may wait for the acknowledgement of what it has sent."""

    successor: str = ""
    """Where sources are sent when this gateway stops, as "host:port"; empty: they are closed plainly, and come back."""

    drain_seconds: float = 10.0
    """How long a stop waits for what was received to become durable; not for pipelines to complete it."""

    snapshot_bytes: int = 64 * MIB
    """Data after which a connector's table of streams is written down again: bounds what a restart must read."""

    def of(self, name: str) -> ConnectorSettings:
        """How this connector is set up."""
        return self.connectors.get(name, self.connector)
