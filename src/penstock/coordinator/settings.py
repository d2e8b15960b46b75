"""The coordinator's limits, each with its reason."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from penstock.coordinator.machine.state import COMPLETE, Retention
from penstock.core.sizes import MIB

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    retention: Retention = COMPLETE

    epoch_bytes: int = GIB
    """The most that an epoch reads by default: a failed batch is run again as a whole."""

    undelivered_bytes: int = GIB
    """Output that readers and sinks have not completed, before the pipeline's cut stops advancing."""

    heartbeat_lapse_seconds: float = 15.0
    """Silence after which a pipeline counts as failing: five heartbeats."""

    wait_seconds_max: float = 60.0
    """How long a request may wait for something new: below the idle timeout of proxies."""

    table_bytes: int = 64 * MIB
    """Bytes of input after which a pipeline's table of streams is written again: bounds what a restart must read."""

    watermark_seconds: float = 1.0
    """Between two cuts that advance only the watermark: an epoch without data costs Spark as much as one with some."""

    truncate_bytes: int = 8 * MIB
    """Removable bytes that are truncated at once. It costs a copy of every table of streams that reads the segment."""

    truncate_seconds: float = 5.0
    """How often less than that is truncated."""

    retention_seconds: float = 1.0
    """How often to look for what can be removed."""

    sweep_seconds: float = 30.0
    """How often to look for staged segments that will never be merged."""

    checkpoint_sweep_seconds: float = 60.0
    """How often to remove objects of mirrored checkpoints: a request to list some hundred of them, for each pipeline
    that has committed an epoch."""

    orphan_seconds: float = 3600.0
    """How long segments staged by an unknown pipeline stay: it may be about to merge for the first time."""


class SourceTimes(NamedTuple):
    """How a source's events get their times, and what its watermark waits for."""

    has_arrival_times: bool = False
    """Its watermark follows the worker's clock."""
    follows_clock_when_idle: bool = False
    """Its watermark follows the worker's clock while no stream is active."""
    idle_timeout_seconds: float | None = None
    disorder_us: int = 0
    last_event_us: int | None = None
    """When the last event arrived; None: none since the worker started."""
    active_streams: int = 0


class Connectors(NamedTuple):
    """What the coordinator needs to know about connectors, by name. Called in the worker's event loop; the connector
    may be unknown.
    """

    disorder_us: Callable[[str], int] = lambda _: 0
    """How far its streams may be out of order, in microseconds."""
    stream_name: Callable[[str, int], str] = lambda _, __: ""
    """The name of a stream; "" if it is unknown."""
    open_streams: Callable[[str], Collection[int]] = lambda _: ()
    """Streams that have started, and are neither ended nor idle."""
    has_finished: Callable[[str], bool] = lambda _: False
    """Whether the source has ended for good."""
    times: Callable[[str], SourceTimes] = lambda _: SourceTimes()
    store_gathered: Callable[[], bool] = lambda: False
    """Stores what programs have sent and was gathered, to be stored together with more; False if there is nothing."""


NO_CONNECTORS = Connectors()
