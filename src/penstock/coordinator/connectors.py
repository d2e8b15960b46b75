"""What the coordinator needs to know of connectors, besides their segments."""

from collections.abc import Callable, Collection
from typing import NamedTuple


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


NO_CONNECTORS = Connectors()
