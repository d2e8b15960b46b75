"""Tracks which owner has which stream open. A (source, stream id) is active for at most one owner."""

from array import array
from enum import Enum
from typing import NamedTuple, Protocol

from penstock.core.address import Address
from penstock.core.types import Offset


class StreamKey(NamedTuple):
    source: str
    stream_id: int


class Use(Enum):
    ACTIVE = "active"
    CLOSING = "closing"
    INACTIVE = "inactive"


class StreamOwner(Protocol):
    """An owner of open streams: a session, or a connector's `out` port."""

    def acknowledge(self, stream_ids: "array[int]", last_ids: "array[int]") -> None:
        """Every pipeline has completed these streams up to these message ids."""
        ...

    def gate_changed(self, stream_id: int, may_send: bool) -> None:
        """The gate lets the stream send from now on, or no longer."""
        ...

    def touch(self, stream_id: int) -> None:
        """The stream is alive although it has sent no message: its silence is counted from now."""
        ...

    def stored_id(self, stream_id: int) -> int:
        """The last message id of the stream that is stored, or NOTHING_YET."""
        ...


class StreamWaiter(Protocol):
    """Was refused a stream, and is notified when it is free."""

    def stream_freed(self, stream_id: int) -> None: ...


class ClaimingOwner(Protocol):
    """Wants streams of a source with several partitions, which the registry of the source grants."""

    def claimed(self, stream_id: int, last_id: int) -> None:
        """The stream may be opened here. It is stored up to `last_id`, or up to what the partition itself knows."""
        ...

    def claim_refused(self, stream_id: int, elsewhere: Address | None) -> None:
        """It is active elsewhere, or it is not known where; or it belongs to the partition at this address."""
        ...

    def claim_exceeds(self, limit: int) -> None:
        """The source may have only so many streams (streams_per_source_max)."""
        ...

    def claims_answered(self) -> None:
        """All answers that have come together were passed on."""
        ...


class ClaimedStreams(Protocol):
    """The streams of one partition of a source, as its registry knows them."""

    def claim(self, stream_id: int, owner: ClaimingOwner) -> bool: ...

    def written(self, stream_id: int) -> bool: ...

    def release(self, stream_id: int) -> None: ...

    def end(self, stream_id: int, before: Offset) -> None: ...


class StreamRegistry(Protocol):
    """Of one shard. For sources with several partitions it is the first of two: see `partitions`."""

    def claim(self, key: StreamKey, owner: StreamOwner) -> bool:
        """Make the stream active for this owner. False if it is already active or closing, for any owner."""
        ...

    def close(self, key: StreamKey, owner: StreamOwner) -> None:
        """The owner's stream has ended, and its last message is not acknowledged yet."""
        ...

    def release(self, key: StreamKey, owner: StreamOwner) -> None:
        """Make the owner's stream inactive. Does nothing to a stream of another owner."""
        ...

    def wait(self, key: StreamKey, waiter: StreamWaiter) -> None:
        """Call the waiter once, when the stream is released. Idempotent."""
        ...

    def stop_waiting(self, key: StreamKey, waiter: StreamWaiter) -> None: ...

    def use(self, key: StreamKey) -> Use: ...

    def owner(self, key: StreamKey) -> StreamOwner | None:
        """The owner of the stream, active or closing; None: it has none."""
        ...

    def counts(self) -> dict[Use, int]:
        """How many streams are active, and how many closing."""
        ...


class LocalRegistry:
    """The registry of a single worker: only in memory, because its sessions end with it."""

    def __init__(self) -> None:
        self._owners: dict[StreamKey, tuple[StreamOwner, Use]] = {}
        self._waiters: dict[StreamKey, dict[StreamWaiter, None]] = {}
        self._counts = dict.fromkeys((Use.ACTIVE, Use.CLOSING), 0)

    def claim(self, key: StreamKey, owner: StreamOwner) -> bool:
        if key in self._owners:
            return False
        self._owners[key] = owner, Use.ACTIVE
        self._counts[Use.ACTIVE] += 1
        return True

    def close(self, key: StreamKey, owner: StreamOwner) -> None:
        if self._owners.get(key) == (owner, Use.ACTIVE):
            self._owners[key] = owner, Use.CLOSING
            self._counts[Use.ACTIVE] -= 1
            self._counts[Use.CLOSING] += 1

    def release(self, key: StreamKey, owner: StreamOwner) -> None:
        holder, use = self._owners.get(key, (None, Use.INACTIVE))
        if holder == owner and use is not Use.INACTIVE:
            del self._owners[key]
            self._counts[use] -= 1
            for waiter in self._waiters.pop(key, ()):
                waiter.stream_freed(key.stream_id)

    def wait(self, key: StreamKey, waiter: StreamWaiter) -> None:
        self._waiters.setdefault(key, {})[waiter] = None

    def stop_waiting(self, key: StreamKey, waiter: StreamWaiter) -> None:
        waiters = self._waiters.get(key, {})
        waiters.pop(waiter, None)
        if not waiters:
            self._waiters.pop(key, None)

    def use(self, key: StreamKey) -> Use:
        return self._owners.get(key, (None, Use.INACTIVE))[1]

    def owner(self, key: StreamKey) -> StreamOwner | None:
        return self._owners.get(key, (None, Use.INACTIVE))[0]

    def counts(self) -> dict[Use, int]:
        return dict(self._counts)
