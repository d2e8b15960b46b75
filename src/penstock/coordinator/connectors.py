"""What the coordinator needs to know of connectors, besides their segments."""

from collections.abc import Callable, Collection
from typing import NamedTuple


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
