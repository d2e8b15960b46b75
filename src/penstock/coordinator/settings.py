"""The coordinator's limits, each with its reason."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from penstock.coordinator.machine.state import COMPLETE, Retention

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    retention: Retention = COMPLETE

    epoch_bytes: int = GIB
    """What an epoch takes at most if nobody says otherwise: a failed batch is run again as a whole."""

    undelivered_bytes: int = GIB
    """Output that no reader has completed, before the pipeline's cut stops advancing."""

    heartbeat_lapse_seconds: float = 15.0
    """Silence after which a pipeline counts as failing: five heartbeats."""

    wait_seconds_max: float = 60.0
    """How long a request may wait for something new: below the silence that proxies take for an end."""

    table_bytes: int = 64 * MIB
    """Data after which a pipeline's table of streams is written down again: bounds what a restart must read."""

    watermark_seconds: float = 1.0
    """How long after its last rise a watermark may rise without data: an epoch without any costs Spark as much as one
    with some."""

    truncate_bytes: int = 8 * MIB
    """So much of a segment can be given up: do it at once. It costs a copy of every table of streams that reads it."""

    truncate_seconds: float = 5.0
    """Less than that can be given up: do it so often."""

    retention_seconds: float = 1.0
    """How often to look what can be given up."""

    sweep_seconds: float = 30.0
    """How often to look for staged segments that nobody will merge."""

    orphan_seconds: float = 3600.0
    """Staged by a pipeline that is not known: it may be about to merge for the first time, but not after an hour."""


# What the coordinator needs to know of connectors, besides their segments.


class SourceTimes(NamedTuple):
    """How a source's events get their times, and what its watermark waits for."""

    has_arrival_times: bool = False
    """Its watermark follows the worker's clock."""
    follows_clock_when_idle: bool = False
    """It does so while no stream is active."""
    idle_timeout_seconds: float | None = None
    disorder_us: int = 0
    last_event_us: int | None = None
    """When the last event came; None: not since the worker started."""
    active_streams: int = 0


class Connectors(NamedTuple):
    """Asked in the worker's loop; of a connector that is not known, too."""

    disorder_us: Callable[[str], int] = lambda _: 0
    """How far its streams may be out of order, in microseconds."""
    stream_name: Callable[[str, int], str] = lambda _, __: ""
    """The name of a stream; "" if it is not known."""
    open_streams: Callable[[str], Collection[int]] = lambda _: ()
    """Those that have begun, and have neither ended nor become idle."""
    has_finished: Callable[[str], bool] = lambda _: False
    """Whether it has ended for good."""
    times: Callable[[str], SourceTimes] = lambda _: SourceTimes()


NO_CONNECTORS = Connectors()
