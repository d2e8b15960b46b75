"""The limits of ingest, each with its reason, and the settings of sources."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from ssl import SSLContext
from typing import NamedTuple

import msgspec

from penstock.core.sizes import MIB
from penstock.protocol.api.deployment import ConnectorSpec
from penstock.protocol.connector.credits import SMALL_WINDOW_BYTES, WINDOW_BYTES
from penstock.protocol.connector.frames import EventTimeUnit
from penstock.protocol.event_time.field import EventTimeField

PORT = 7100
"""The default connector port of a worker."""


QUOTA_BYTES = 10 << 30
"""The default quota of a source: about a day of 100 KB per second that no pipeline reads. A source without readers
must not fill the disk for all others."""


class WhenAllIdle(Enum):
    """What the watermark of a source does while all its streams are idle."""

    WAIT = "wait"
    """It does not move until the next event."""
    CLOCK = "clock"
    """It follows the worker's clock, minus the disorder."""


class AckMode(Enum):
    """When a stream's point of reference is sent."""

    CHECKPOINT = "checkpoint"
    """When every pipeline that reads the source has completed an epoch with it; without any, when it is durable."""
    DURABLE = "durable"
    """When it is durable, after the fsync."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """What can be set for each source."""

    segments: int = 2
    """Segments that its streams are spread over; a stream stays where it was first put."""

    partitions: int = 1
    """In a cluster: how many shards its streams are spread over, from when the source is first used. Elsewhere there is
    one shard, and it has no effect."""

    ack: AckMode = AckMode.CHECKPOINT
    event_time_unit: EventTimeUnit = EventTimeUnit.MS

    event_time_ingest: bool = False
    """An event time of 0 means the time of arrival."""

    event_time: EventTimeField | None = None
    """The field of the data that contains the event time, instead of the time in the MESSAGE or of arrival."""

    quota_bytes: int | None = QUOTA_BYTES
    """Bytes that its segments may retain together, without what pipelines have completed; beyond it no credits are
    granted until there is room. None: no limit but the disk."""

    window_bytes: int = SMALL_WINDOW_BYTES
    """What a program may have sent that is not durable yet, unless its HELLO announces a larger window."""

    max_disorder_us: int = 0
    """How much older, in event time, an event may be than the latest one of its stream: the watermark waits for it."""

    idle_timeout_seconds: float | None = None
    """A stream that was silent for this long although it could send no longer blocks the watermark; None: it always
    does.
    """

    when_all_idle: WhenAllIdle = WhenAllIdle.WAIT
    """Has no effect without an idle timeout, because then no stream is ever idle."""

    arrival_time: bool | None = False
    """The worker stamps all events with the time of their arrival; None: not declared, so the events decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramServerSettings:
    host: str = "127.0.0.1"
    port: int = PORT
    ssl: SSLContext | None = None
    cookie: bytes = field(default=b"", repr=False)
    source: SourceSettings = field(default_factory=SourceSettings)
    sources: Mapping[str, SourceSettings] = field(default_factory=dict)
    """Settings of single sources, by name, instead of `source`."""

    stamps_arrivals: bool = False
    """Records contain when they arrived: pipelines that read several shards of a cluster read them in that order."""

    auto_create: bool = True
    """A program that names an unknown source creates it; otherwise it is refused."""

    sources_max: int = 10_000
    """The most sources: any new name creates one, with three segments."""

    handshake_seconds: float = 10.0
    """How long a peer may take to send its HELLO."""

    sessions_max: int = 1000
    """Each costs a receive buffer and a window. Beyond it a new one takes the place of one that has no stream and waits
    for nothing; if there is none, it is closed at once, and counted."""

    address_sessions_max: int | None = None
    """Sessions from one address, and of one principal; None: four fifths of the total. Even if all programs run on one
    machine, one on another machine must still get in.
    """

    joining_max: int = 500
    """Connections that have not sent their HELLO; beyond it the oldest of them makes room for a new one."""

    address_joining_max: int = 250
    """The same for one address: enough for all programs on one machine to restart at once."""

    frame_bytes_max: int = 4 * MIB
    """Largest frame; checked before its bytes are buffered."""

    streams_per_session_max: int = 100_000
    """Streams open in one session at the same time, at about 200 bytes each."""

    streams_per_source_max: int = 1_000_000
    """Streams that a source may ever have: each is remembered, at about 300 bytes."""

    window_bytes: int = WINDOW_BYTES
    """The largest window of a session, whatever its HELLO announces: the memory that it may occupy."""

    in_flight_bytes_max: int = 256 * MIB
    """The same over all sessions and connectors: bounds what a stalled disk makes the worker buffer."""

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
    """Where programs are sent when this worker stops, as "host:port"; empty: they are closed, and reconnect."""

    drain_seconds: float = 10.0
    """How long a stop waits for what was received to become durable; not for pipelines to complete it."""

    snapshot_bytes: int = 64 * MIB
    """Data after which a source's table of streams is written again: bounds what a restart must read."""

    @property
    def address_max(self) -> int:
        return self.address_sessions_max or max(self.sessions_max * 4 // 5, 1)

    @property
    def partitions(self) -> dict[str, int]:
        """Sources that are declared with several partitions."""
        return {name: one.partitions for name, one in self.sources.items() if one.partitions > 1}

    def of(self, name: str) -> SourceSettings:
        """The settings of this source."""
        return self.sources.get(name, self.source)


class Listener(msgspec.Struct, frozen=True):
    """A connector that every worker of a cluster listens with (`listen: every-worker`)."""

    spec: ConnectorSpec
    has_out: bool
    """Whether something reads its events."""


class DeclaredSource(NamedTuple):
    """What an application declares about a source that is in other shards, as a whole or in part."""

    settings: SourceSettings
    listener: Listener | None = None
    """None: programs bring its events, or nothing is to be read now."""


def settings_of(
    spec: ConnectorSpec, *, own_event_times: bool | None, quota_bytes: int | None = QUOTA_BYTES
) -> SourceSettings:
    """The settings for the source of an application's connector. `own_event_times` is one of its capabilities, and
    `quota_bytes` applies if the connector sets no quota.
    """
    return SourceSettings(
        segments=spec.segments,
        partitions=spec.partitions,
        ack=AckMode(spec.ack),
        event_time_unit=EventTimeUnit[spec.event_time_unit.upper()],
        event_time_ingest=spec.event_time_ingest,
        event_time=spec.event_time,
        quota_bytes=quota_bytes if spec.quota_bytes is None else spec.quota_bytes,
        window_bytes=spec.window_bytes,
        max_disorder_us=spec.max_disorder_us,
        idle_timeout_seconds=spec.idle_timeout_seconds,
        when_all_idle=WhenAllIdle(spec.when_all_idle),
        arrival_time=_arrival_time(spec, own_event_times),
    )


def _arrival_time(spec: ConnectorSpec, own_event_times: bool | None) -> bool | None:
    if spec.event_time is not None:
        return False
    return None if own_event_times is None else not own_event_times
