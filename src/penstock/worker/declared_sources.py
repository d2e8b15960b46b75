"""The settings of sources with several partitions that an application declares: `cluster/sources/NAME` in the bucket.

The application is in one shard, and most partitions are in others. Its shard writes the settings before the source gets
its place, so that no partition stores an event without them, and again when they change. Other shards read them before
the first program joins, and then every LOOK_SECONDS.
"""

from typing import Any
from urllib.parse import quote

import msgspec

from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists, VersionChanged
from penstock.core.errors import Damaged, Unavailable, UnreadableFormat
from penstock.ingest.settings import SourceSettings, settings_of
from penstock.protocol.api.deployment import ConnectorSpec

FORMAT = 1
SOURCES = "cluster/sources/"


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    own_event_times: bool | None
    spec: dict[str, Any]


def _key(source: str) -> str:
    return f"{SOURCES}{quote(source, safe='')}"


def publish(bucket: Bucket, spec: ConnectorSpec, own_event_times: bool | None) -> None:
    """Whichever of two writes at the same time is later counts. Raises what the store raises."""
    plain = ConnectorSpec(**{name: getattr(spec, name) for name in _KEPT})
    record = _Record(own_event_times=own_event_times, spec=msgspec.to_builtins(plain))
    key, data = _key(spec.name), msgspec.json.encode(record)
    try:
        found = bucket.get(key)
        if found.data != data:
            bucket.replace(key, data, found.version)
    except NoSuchObject:
        try:
            bucket.create(key, [data])
        except ObjectExists:
            publish(bucket, spec, own_event_times)
    except VersionChanged:
        raise Unavailable(f"the settings of source {spec.name!r} are being changed by another process") from None


def read(bucket: Bucket, source: str, quota_bytes: int | None) -> SourceSettings | None:
    """None if no application has declared it. `quota_bytes`: if the application sets none. Raises what the store
    raises, UnreadableFormat and Damaged.
    """
    try:
        data = bucket.get(_key(source)).data
    except NoSuchObject:
        return None
    try:
        record = msgspec.json.decode(data, type=_Record)
        if record.format != FORMAT:
            where = f"{bucket.url}/{_key(source)}"
            raise UnreadableFormat(where, record.format, FORMAT, "Apply the application again.")
        spec = msgspec.convert(record.spec, ConnectorSpec)
    except msgspec.MsgspecError as error:
        raise Damaged(f"{bucket.url}/{_key(source)} is not valid: {error}", "Apply the application again.") from None
    return settings_of(spec, own_event_times=record.own_event_times, quota_bytes=quota_bytes)


_KEPT = (
    *("name", "id", "instance", "type", "segments", "partitions", "quota_bytes", "window_bytes", "ack"),
    *("max_disorder_us", "idle_timeout_seconds", "when_all_idle"),
    *("event_time_unit", "event_time_ingest", "event_time"),
)
"""What a source log needs. Options of the connector may contain secrets, and stay in the application's shard."""
