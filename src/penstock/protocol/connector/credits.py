"""Credits: how a worker slows a source down. "Slow down a client only by withholding credits; never by ceasing to read
its socket."

The worker's side is `Credits`, one for each session, with a `LargestFrame` that outlives the sessions of a connector.
The source's side is `Allowance`.
"""

from penstock.core.errors import ProtocolError

WINDOW_BYTES = 8 * 2**20
"""Bytes a session may have sent that are not durable yet: the memory it may occupy."""

FRAME_SIZE_FLOOR = 4096
"""Frames count as at least this large, so that a source of small ones does not start with a million credits."""

LATELY_S = 60.0
"""How long a large frame is remembered, at least; at most twice as long."""

WINDOWS_MAX = 2
"""A session with more windows than this in flight is closed plainly, and resumes with fewer credits."""


class LargestFrame:
    """The largest frame that a connector has sent lately. Two numbers: this period's largest, and the last one's."""

    __slots__ = ("_before", "_now", "_since")

    def __init__(self) -> None:
        self._before = self._now = 0
        self._since = 0.0

    def saw(self, size: int, now: float) -> None:
        """A frame of this size arrived, perhaps the largest of several. `now` in seconds, on any monotonic clock."""
        self._turn(now)
        self._now = max(self._now, size)

    def size(self, now: float) -> int:
        self._turn(now)
        return max(self._before, self._now, FRAME_SIZE_FLOOR)

    def _turn(self, now: float) -> None:
        periods = (now - self._since) // LATELY_S
        if periods >= 1:
            self._before = self._now if periods == 1 else 0
            self._now = 0
            self._since += periods * LATELY_S


class Credits:
    """One session's credits, as its worker counts them.

    A credit is in one of four places: *available* (the source may spend it), *in flight* (spent on a message that is
    not durable yet), *asked* (spent on a NOTIFY that is not answered yet), *owed* (answered, not returned yet).
    `grant` keeps the sum at the window's worth; while `stopped`, because a quota is reached, it returns only owed ones.
    """

    __slots__ = ("_asked", "_available", "_in_flight", "_in_flight_bytes", "_largest", "_owed", "_window", "stopped")

    def __init__(self, largest: LargestFrame, window_bytes: int = WINDOW_BYTES) -> None:
        self._largest = largest
        self._window = window_bytes
        self._available = self._in_flight = self._in_flight_bytes = self._asked = self._owed = 0
        self.stopped = False

    @property
    def available(self) -> int:
        """What the source can still spend; negative after NOTIFYs it sent without credit."""
        return self._available

    @property
    def in_flight_bytes(self) -> int:
        return self._in_flight_bytes

    @property
    def is_over(self) -> bool:
        """Frames were larger than the credits allowed for: close the session, without an ERROR."""
        return self._in_flight_bytes > WINDOWS_MAX * self._window

    def messages(self, count: int, size: int, largest: int, now: float) -> None:
        """`count` MESSAGE frames arrived, `size` bytes together. Raises ProtocolError without credit for all of
        them.
        """
        if count > max(self._available, 0):
            raise ProtocolError(f"MESSAGE: {count} came, and there was credit for {max(self._available, 0)}")
        self._largest.saw(largest, now)
        self._available -= count
        self._in_flight += count
        self._in_flight_bytes += size

    def notify(self) -> None:
        """A NOTIFY arrived; it spends a credit and is "never refused for want of credit". EOS spends none."""
        self._available -= 1
        self._asked += 1

    def answered(self) -> None:
        """A NOTIFY is answered, either way: "a NOTIFY's credit comes back with its answer", by the next `grant`."""
        assert self._asked > 0
        self._asked -= 1
        self._owed += 1

    def settled(self, count: int, size: int) -> None:
        """`count` messages, `size` bytes of frames, are durable or were duplicates: they no longer occupy memory."""
        assert count <= self._in_flight
        assert size <= self._in_flight_bytes
        self._in_flight -= count
        self._in_flight_bytes -= size

    def grant(self, now: float) -> int:
        """The credits for an OK or an ACK that is sent now. If 0, no ACK need be sent for their sake."""
        out = self._available + self._in_flight + self._asked
        granted = self._owed
        if not self.stopped:
            granted = max(granted, max(self._window // self._largest.size(now), 1) - out)
        self._owed = 0
        self._available += granted
        return granted


class Allowance:
    """A source's credits: OK and ACK add, NOTIFY and MESSAGE spend, and only a MESSAGE must wait for one."""

    __slots__ = ("_available",)

    def __init__(self) -> None:
        self._available = 0

    @property
    def available(self) -> int:
        """How many MESSAGE frames may be sent now."""
        return max(self._available, 0)

    def add(self, count: int) -> None:
        self._available += count

    def spend(self, count: int = 1) -> None:
        """For `count` frames; the caller has waited for them to be `available`, unless it is a NOTIFY."""
        self._available -= count
