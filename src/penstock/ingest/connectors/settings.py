"""How the gateway is to set a hosted connector up."""

from penstock.config.deployment import ConnectorSpec
from penstock.ingest.settings import AckMode, ConnectorSettings, WhenAllIdle
from penstock.protocol.connector.frames import EventTimeUnit


def settings_of(spec: ConnectorSpec, *, own_event_times: bool | None) -> ConnectorSettings:
    """`own_event_times`: as the connector's capabilities say."""
    return ConnectorSettings(
        segments=spec.segments,
        ack=AckMode(spec.ack),
        event_time_unit=EventTimeUnit[spec.event_time_unit.upper()],
        event_time_ingest=spec.event_time_ingest,
        quota_bytes=spec.quota_bytes,
        max_disorder_us=spec.max_disorder_us,
        idle_timeout_seconds=spec.idle_timeout_seconds,
        when_all_idle=WhenAllIdle(spec.when_all_idle),
        arrival_time=None if own_event_times is None else not own_event_times,
    )
