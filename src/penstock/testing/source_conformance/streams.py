"""What a client has sent of each stream over all connections of a scenario: what it sends again must match."""

from bisect import bisect_left, bisect_right

from penstock.protocol.connector import NOTHING_YET, Message
from penstock.testing.source_conformance.rules import Rule, Violation


class StreamLog:
    """The messages of one stream, and how far they are stored and acknowledged."""

    def __init__(self, stream_id: int, name: str) -> None:
        self.stream_id = stream_id
        self.name = name
        self.stored: int | None = None
        """The last id that the worker reports in NOTIFY_ACK."""
        self.acked: int | None = None
        self.is_done = False
        """It has ended, and its last message is acknowledged."""
        self._ids: list[int] = []
        self._contents: dict[int, tuple[bytes, bytes]] = {}

    @property
    def count(self) -> int:
        """The number of different messages so far."""
        return len(self._ids)

    @property
    def point_of_reference(self) -> int:
        return NOTHING_YET if self.stored is None else self.stored

    def following(self, last: int | None) -> int | None:
        """The first known id after this one; after None, the first of all."""
        at = 0 if last is None else bisect_right(self._ids, last)
        return self._ids[at] if at < len(self._ids) else None

    def take(self, message: Message, last: int | None) -> None:
        """The client has sent this message after the one with the id `last`, or after the point of reference."""
        expected, got = self.following(last), message.message_id
        if expected is None:
            self._ids.append(got)
        elif got > expected:
            place = "at the beginning" if last is None else f"after {last}"
            raise Violation(f"stream {self.name!r}: expected message {expected} {place}, not {got}", Rule.RESUMES)
        self._check(got, (message.key, bytes(message.payload)))

    def _check(self, message_id: int, content: tuple[bytes, bytes]) -> None:
        if self._contents.setdefault(message_id, content) != content:
            raise Violation(f"stream {self.name!r}: message {message_id} had another content before", Rule.SAME_MESSAGE)
        if self._ids[bisect_left(self._ids, message_id)] != message_id:
            raise Violation(f"stream {self.name!r}: message {message_id} did not exist before", Rule.SAME_MESSAGE)

    def store(self, message_id: int, lost: int) -> bool:
        """Store what has come up to this message, without the last `lost`. Returns whether that is more than before."""
        at = bisect_left(self._ids, message_id) - lost
        is_more = at >= 0 and (self.stored is None or self._ids[at] > self.stored)
        if is_more:
            self.stored = self._ids[at]
        return is_more

    def check_end(self, last: int | None) -> None:
        """The client has ended the stream after this message."""
        expected = self.following(last)
        if expected is not None:
            raise Violation(
                f"stream {self.name!r}: it ended, but message {expected} is not stored and must come first",
                Rule.RESUMES,
            )
