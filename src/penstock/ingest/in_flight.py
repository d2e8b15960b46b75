"""The memory budget of ingest: for all bytes that were received and are not durable yet.

Sessions of programs and connectors' `out` ports share it, so that a stalled disk cannot exhaust the memory, however
many of them there are. Half of it is divided into equal, guaranteed shares; the other half is lent to busy ones, at
most an eighth of the remainder at a time. So none of them starves, and a new one always gets something.
"""

from penstock.core.errors import NoRoom
from penstock.core.sizes import show_size

PORTS_MAX = 1000
"""The number of `out` ports, beside the sessions, that have a guaranteed share; further ones can only borrow."""

_LENT_AT_ONCE = 8
"""A share may borrow this fraction of the remainder."""


class InFlightBudget:
    """Used only in the worker's event loop."""

    def __init__(self, bytes_max: int, sessions_max: int) -> None:
        self.bytes_max = bytes_max
        self.own_bytes = bytes_max // 2 // (sessions_max + PORTS_MAX)
        """The guaranteed size of each share."""
        self.in_flight_bytes = 0
        self._lendable_bytes = bytes_max // 2

    @property
    def lendable_bytes(self) -> int:
        return max(self._lendable_bytes, 0)

    @property
    def is_full(self) -> bool:
        return self.in_flight_bytes >= self.bytes_max

    @property
    def is_short(self) -> bool:
        """Whether sources must wait because others use the budget."""
        return self.in_flight_bytes > self.bytes_max // 2

    @property
    def text(self) -> str:
        return f"{show_size(self.in_flight_bytes)} of {show_size(self.bytes_max)} wait for it"

    def share(self) -> "Share":
        return Share(self)

    def lend(self, size: int) -> None:
        """Lend this many bytes; a negative size returns them."""
        self._lendable_bytes -= size


class Share:
    """What one session or port has in flight, and how much its peer may still send."""

    __slots__ = ("_borrowed_bytes", "_budget", "_promised_bytes", "in_flight_bytes")

    def __init__(self, budget: InFlightBudget) -> None:
        self._budget = budget
        self.in_flight_bytes = self._promised_bytes = self._borrowed_bytes = 0

    @property
    def limit_bytes(self) -> int:
        """The limit for what is in flight and promised together."""
        budget = self._budget
        return budget.own_bytes + (self._borrowed_bytes + budget.lendable_bytes) // _LENT_AT_ONCE

    def limit_for(self, frame_bytes: int) -> int:
        """Like `limit_bytes`, but at least one frame of this size if that fits into the budget now: frames larger than
        a share pass one by one.
        """
        limit, budget = self.limit_bytes, self._budget
        fits = budget.in_flight_bytes + frame_bytes <= budget.bytes_max
        return max(limit, frame_bytes) if fits else limit

    @property
    def has_room(self) -> bool:
        return self.in_flight_bytes < self.limit_bytes and not self._budget.is_full

    def check(self, size: int) -> None:
        """Raises NoRoom if this many more bytes would exceed the budget: frames were larger than their credits allowed
        for.
        """
        budget = self._budget
        if budget.in_flight_bytes + size > budget.bytes_max:
            raise NoRoom(
                f"{budget.in_flight_bytes:,} bytes of all sources wait for the disk, and {size:,} more are too many",
                "Look at the disk; --in-flight sets the limit.",
            )

    def promise(self, size: int) -> None:
        """The peer may send this many bytes, estimated from its frames so far."""
        self._promised_bytes = size
        self._borrow()

    def received(self, size: int) -> None:
        """These bytes are in flight until `settled`."""
        self.in_flight_bytes += size
        self._budget.in_flight_bytes += size
        self._borrow()

    def settled(self, size: int) -> None:
        self.in_flight_bytes -= size
        self._budget.in_flight_bytes -= size
        self._borrow()

    def close(self) -> None:
        """The peer is gone: nothing is promised any more. What it has sent counts until it is durable."""
        self.promise(0)

    def _borrow(self) -> None:
        needed = max(self.in_flight_bytes + self._promised_bytes - self._budget.own_bytes, 0)
        self._budget.lend(needed - self._borrowed_bytes)
        self._borrowed_bytes = needed
