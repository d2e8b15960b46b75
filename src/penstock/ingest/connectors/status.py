"""What a hosted connector says of its source side."""

from dataclasses import dataclass, field
from enum import Enum


class State(Enum):
    STARTING = "starting"
    CONNECTED = "connected"
    """It listens, or is connected."""
    DISCONNECTED = "disconnected"
    """It is tried again."""
    ENDED = "ended"
    """It has returned: a bounded source, or one that was drained."""
    FAILED = "failed"
    """All tries are used up: an operator must look."""
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(slots=True)
class SourceCounters:
    """Of the connector's own streams, since the host was made."""

    events: int = 0
    bytes: int = 0
    """Of events, as they are stored."""
    duplicates: int = 0
    streams: int = 0
    """That were opened."""
    failures: int = 0
    """Of `run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    name: str
    type: str
    state: str
    reason: str = ""
    """Why it is not connected; with the time of the next try."""
    streams: int = 0
    """That are open."""
    kept_back: dict[int, str] = field(default_factory=dict)
    """Streams that may not send, and who keeps them from it; some of them, if there are many."""
    kept_back_count: int = 0
    has_room: bool = True
    events: int = 0
    """Of the source since the worker started; programs that send to it count, too."""
    bytes: int = 0
    duplicates: int = 0
    streams_opened: int = 0
    failures: int = 0
    letters: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """What the connector itself counts."""
