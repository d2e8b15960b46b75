"""Who has which stream. A (connector, stream id) is active in at most one session."""

from collections.abc import Hashable
from enum import Enum
from typing import NamedTuple, Protocol


class StreamKey(NamedTuple):
    connector: str
    stream_id: int


class Use(Enum):
    ACTIVE = "active"
    CLOSING = "closing"
    INACTIVE = "inactive"


class StreamRegistry(Protocol):
    """On one worker a dict; in a cluster, shared. `owner` is whoever holds the stream: a session."""

    def claim(self, key: StreamKey, owner: Hashable) -> bool:
        """Make the stream active for this owner. False when it is active or closing already, whoever has it."""
        ...

    def close(self, key: StreamKey, owner: Hashable) -> None:
        """The owner's stream has ended, and its last message is not acknowledged yet."""
        ...

    def release(self, key: StreamKey, owner: Hashable) -> None:
        """Make the owner's stream inactive. Does nothing to a stream of another owner."""
        ...

    def use(self, key: StreamKey) -> Use: ...

    def owner(self, key: StreamKey) -> Hashable | None:
        """Who has the stream, active or closing; None: nobody."""
        ...

    def counts(self) -> dict[Use, int]:
        """How many streams are active, and how many closing."""
        ...


class LocalRegistry:
    """The registry of a single worker: in memory alone, since its sessions end with it."""

    def __init__(self) -> None:
        self._held: dict[StreamKey, tuple[Hashable, Use]] = {}
        self._counts = dict.fromkeys((Use.ACTIVE, Use.CLOSING), 0)

    def claim(self, key: StreamKey, owner: Hashable) -> bool:
        if key in self._held:
            return False
        self._held[key] = owner, Use.ACTIVE
        self._counts[Use.ACTIVE] += 1
        return True

    def close(self, key: StreamKey, owner: Hashable) -> None:
        if self._held.get(key) == (owner, Use.ACTIVE):
            self._held[key] = owner, Use.CLOSING
            self._counts[Use.ACTIVE] -= 1
            self._counts[Use.CLOSING] += 1

    def release(self, key: StreamKey, owner: Hashable) -> None:
        holder, use = self._held.get(key, (None, Use.INACTIVE))
        if holder == owner and use is not Use.INACTIVE:
            del self._held[key]
            self._counts[use] -= 1

    def use(self, key: StreamKey) -> Use:
        return self._held.get(key, (None, Use.INACTIVE))[1]

    def owner(self, key: StreamKey) -> Hashable | None:
        return self._held.get(key, (None, Use.INACTIVE))[0]

    def counts(self) -> dict[Use, int]:
        return dict(self._counts)
