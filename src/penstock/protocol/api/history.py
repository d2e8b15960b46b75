"""Replies to GET /history, /segments, /sources/NAME/streams and /principal: what people look at besides the status."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec


class EpochTimes(msgspec.Struct, frozen=True, array_like=True):
    """A complete epoch; times in seconds since 1970. In JSON an array."""

    number: int
    arrived: float | None
    """When the first of its input arrived; None if that is not known."""
    cut: float
    merged: float | None
    """None if it was merged before the worker started."""
    complete: float
    """When the sinks had it."""


class WorkerHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reply to GET /history: how fast everything has flowed in the last hour, and the last epochs."""

    seconds: float
    """From one sample to the next."""
    times: Sequence[float]
    """When samples were taken, in seconds since 1970, oldest first."""
    series: Mapping[str, Sequence[float | None]]
    """A value for each of `times`; None: it did not exist then. By `source/NAME/events`, `source/NAME/bytes`,
    `pipeline/NAME/rows_in`, `bytes_in` and `rows_out`, `sink/PIPELINE/NAME/rows` and `epochs`, all per second; and
    `pipeline/NAME/lag_bytes`, `latency_seconds`, `watermark_lag_seconds` (behind the clock), `state_bytes` and
    `open_windows` (one for each key and window)."""
    epochs: Mapping[str, Sequence[EpochTimes]]
    """By pipeline: the last ones that are complete, oldest first."""
    not_kept: Sequence[str] = ()
    """Of the series that were asked for: those that exist, but for which the worker has no room."""


class SegmentPage(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to GET /segments: some of them, by name."""

    segments: Sequence[Mapping[str, Any]]
    more: bool
    after: str
    """Where the next page starts."""


class StreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of a source."""

    stream_id: int
    name: str
    state: Literal["active", "idle", "ended"]
    """Only active streams count for the watermark."""
    last_message_id: int | None
    """The last stored message; None if there is none yet."""
    event_time: int | None
    """The highest event time that pipelines have read, in microseconds; None if there is none, or no pipeline."""


class SourceStreams(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to GET /sources/NAME/streams: the slowest streams of a source first, then those without event times.
    For a source with several partitions, only those of the worker that replies.
    """

    count: int
    """The number of all streams, shown or not."""
    newest: int | None
    """The highest event time of any stream that pipelines have read, in microseconds."""
    streams: Sequence[StreamStatus]


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to GET /principal: as whom the worker knows the one who asks."""

    name: str
    role: str
    """read, write, deploy or admin"""
    prefixes: Sequence[str] = ()
    """The names that the role is limited to; empty: it is not."""
