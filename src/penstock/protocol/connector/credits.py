"""Credits: how a worker slows a source down. "Slow down a client only by withholding credits; never by ceasing to read
its socket."

The worker's side is `Credits`, one for each session, with a `LargestFrame` that outlives the sessions of a connector.
The source's side is `Allowance`.

Many programs send a frame for every credit without waiting for the socket, and lose the rest of a partial send; the
next frame then completes the truncated one, and wrong data are stored. So a program gets a small window, which fits
into a socket's buffers, unless its HELLO announces that it can use a larger one: its program name ends in
`;window=BYTES`. Other workers ignore the name.
"""

import re

from penstock.core.errors import ProtocolError

WINDOW_BYTES = 8 * 2**20
"""Bytes a session may have sent that are not durable yet: the memory it may occupy. No HELLO can announce more."""

SMALL_WINDOW_BYTES = 256 * 2**10
"""The window of a program whose HELLO announces none."""

FRAME_SIZE_FLOOR = 4096
"""Frames count as at least this large in a small window, and in any window while none has come lately: a source does
not start with a million credits.
"""

SEEN_SIZE_FLOOR = 512
"""The same in a larger window, once frames have come. With 4 KiB for each, a session that sends 100 bytes at a time
used a thirtieth of its window, and waited for an fsync after every 2,048 messages. Nothing that does not fit into the
window is promised: should its frames become larger, the session is closed at two windows, and resumes.
"""

LATELY_S = 60.0
"""How long a large frame is remembered, at least; at most twice as long."""

WINDOWS_MAX = 2
"""A session with more windows than this in flight is closed plainly, and resumes with fewer credits."""


_ANNOUNCED = re.compile(r"(.*);window=([0-9]{1,15})", re.DOTALL)


def announce_window(program: str, window_bytes: int = WINDOW_BYTES) -> str:
    """The program name for the HELLO of a source that handles partial sends, with up to this many bytes in flight."""
    return f"{program};window={window_bytes}"


def announced_window(program: str) -> tuple[str, int]:
    """The plain name in a HELLO's program name, and the window that it announces; 0 if it announces none."""
    found = _ANNOUNCED.fullmatch(program)
    return (program, 0) if found is None else (found[1], int(found[2]))


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

    def size(self, now: float, floor: int = FRAME_SIZE_FLOOR) -> int:
        """At least `floor`; at least FRAME_SIZE_FLOOR if no frame has come lately."""
        self._turn(now)
        largest = max(self._before, self._now)
        return max(largest, floor if largest else FRAME_SIZE_FLOOR)

    def _turn(self, now: float) -> None:
        periods = (now - self._since) // LATELY_S
        if periods >= 1:
            self._before = self._now if periods == 1 else 0
            self._now = 0
            self._since += periods * LATELY_S


class Credits:
    """One session's credits, as its worker counts them.

    A credit is in one of five places: *available* (the source may spend it), *in flight* (spent on a message that is
    not durable yet), *asked* (spent on a NOTIFY that is not answered yet), *refused* (spent on a NOTIFY that was
    refused, and kept back so that it is not repeated at once), *owed* (to be returned by the next `grant`).
    `grant` keeps the sum at the window's worth; while `stopped`, because a quota is reached, it returns only owed ones.
    """

    __slots__ = (
        "_asked",
        "_available",
        "_floor",
        "_in_flight",
        "_in_flight_bytes",
        "_in_flight_bytes_max",
        "_largest",
        "_owed",
        "_refused",
        "_window",
        "stopped",
    )

    def __init__(
        self, largest: LargestFrame, window_bytes: int = WINDOW_BYTES, in_flight_bytes_max: int | None = None
    ) -> None:
        """`in_flight_bytes_max` ends a session whose frames are larger than expected: two windows by default. Behind a
        small window it must leave room for one frame of any size.
        """
        self._largest = largest
        self._window = window_bytes
        self._floor = SEEN_SIZE_FLOOR if window_bytes > SMALL_WINDOW_BYTES else FRAME_SIZE_FLOOR
        self._in_flight_bytes_max = in_flight_bytes_max or WINDOWS_MAX * window_bytes
        self._available = self._in_flight = self._in_flight_bytes = 0
        self._asked = self._refused = self._owed = 0
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
        return self._in_flight_bytes > self._in_flight_bytes_max

    def messages(self, count: int, size: int, largest: int, now: float) -> None:
        """`count` MESSAGE frames arrived, `size` bytes together. Raises ProtocolError without credit for all of
        them.
        """
        if count > max(self._available, 0):
            raise ProtocolError(f"MESSAGE: {count} received, with credit for {max(self._available, 0)}")
        self._largest.saw(largest, now)
        self._available -= count
        self._in_flight += count
        self._in_flight_bytes += size

    def notify(self) -> None:
        """A NOTIFY arrived; it spends a credit and is "never refused for want of credit". EOS spends none."""
        self._available -= 1
        self._asked += 1

    def answered(self) -> None:
        """A NOTIFY is accepted: "a NOTIFY's credit comes back with its answer", by the next `grant`."""
        assert self._asked > 0
        self._asked -= 1
        self._owed += 1

    def refused(self) -> None:
        """A NOTIFY is refused: its credit comes back after `return_refused`."""
        assert self._asked > 0
        self._asked -= 1
        self._refused += 1

    def return_refused(self) -> None:
        """The credits of refused NOTIFYs are owed now."""
        self._owed += self._refused
        self._refused = 0

    def settled(self, count: int, size: int) -> None:
        """`count` messages, `size` bytes of frames, are durable or were duplicates: they no longer occupy memory."""
        assert count <= self._in_flight
        assert size <= self._in_flight_bytes
        self._in_flight -= count
        self._in_flight_bytes -= size

    def frame_bytes(self, now: float) -> int:
        """How large a frame is expected to be at most."""
        return self._largest.size(now, self._floor)

    def promised_bytes(self, now: float) -> int:
        """What the source can still send, by the size of its largest frames."""
        return max(self._available, 0) * self.frame_bytes(now)

    def grant(self, now: float, limit_bytes: int | None = None) -> int:
        """The credits for an OK or an ACK that is sent now. If 0, no ACK need be sent for their sake. `limit_bytes`: a
        smaller window, for now; it may be too small for a single frame.
        """
        out = self._available + self._in_flight + self._asked + self._refused
        granted = self._owed
        if not self.stopped:
            size = self.frame_bytes(now)
            whole = max(self._window // size, 1)
            granted = max(granted, min(whole, whole if limit_bytes is None else limit_bytes // size) - out)
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
