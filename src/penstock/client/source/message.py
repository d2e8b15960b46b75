"""What a connector passes to the SDK: messages, and factories of iterators that yield them."""

from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from penstock.core.errors import RequestError
from penstock.core.types import Buffer
from penstock.protocol.connector import NOTHING_YET, Notify, encode
from penstock.protocol.connector.codec import MESSAGE_HEAD


class Message(NamedTuple):
    """Ids increase from message to message of a stream, from 0 to 2^64-2. A plain tuple in this order works as well.

    The event time is in the source's unit. The key is the partition key of the event.
    """

    id: int
    payload: Buffer
    event_time: int = 0
    key: bytes = b""


PlainMessage: TypeAlias = tuple[int, Buffer] | tuple[int, Buffer, int] | tuple[int, Buffer, int, bytes]

Yielded: TypeAlias = Message | PlainMessage | None
"""What an iterator may yield. None means "nothing now": it is asked again after `poll_seconds`."""

Factory: TypeAlias = Callable[[int | None], Iterable[Yielded]]
"""`factory(after)` returns the messages with ids above `after`, or all for None. It may start earlier: messages that
are already stored are skipped. The same id must always refer to the same message."""

AsyncFactory: TypeAlias = Callable[[int | None], AsyncIterable[Yielded]]

Entry: TypeAlias = tuple[int, int, bytes, bytes]
"""A checked message in wire order: id, event time, key, payload."""


def entry_size(entry: Entry) -> int:
    """The size of its frame in bytes."""
    return MESSAGE_HEAD.size + len(entry[2]) + len(entry[3])


class Intake:
    """Checks what one iterator yields, and skips what is already stored. Raises RequestError for what cannot be sent:
    ids that do not increase, payloads that are not bytes.
    """

    __slots__ = ("_last", "_name", "_stored", "skipped")

    def __init__(self, stream_name: str, after: int | None) -> None:
        self._name = stream_name
        self._stored = -1 if after is None else after
        self._last = -1
        self.skipped = 0

    def take(self, given: Message | PlainMessage) -> Entry | None:
        """The entry, with its own copy of the bytes; None if it is already stored."""
        try:
            message_id, payload, event_time, key = given if len(given) == 4 else Message(*given)
            grows = self._last < message_id < NOTHING_YET
        except TypeError:
            raise self._wrong(f"{given!r:.100} is not a message", "Yield Message(id, payload).") from None
        if not grows:
            raise self._wrong(f"id {message_id} after {self._last}", "Ids must grow, from 0 to 2^64-2.")
        self._last = message_id
        if message_id <= self._stored:
            self.skipped += 1
            return None
        if type(payload) is bytes and type(key) is bytes:
            return message_id, event_time, key, payload
        return message_id, event_time, self._own(key), self._own(payload)

    def _own(self, data: Buffer) -> bytes:
        """A copy: the iterator may reuse its buffer for the next message."""
        if not isinstance(data, bytes | bytearray | memoryview):
            kind = type(data).__name__  # type: ignore[unreachable]
            raise self._wrong(f"message {self._last} has a {kind} instead of bytes", "Encode it: text.encode().")
        return bytes(data)

    def _wrong(self, text: str, hint: str) -> RequestError:
        return RequestError(f"stream {self._name!r}: {text}", hint)


# A stream of a source, over all connections of the source.


class SourceStream:
    """What `stream` returns: the progress of a stream. Read-only for callers; the source updates it."""

    def __init__(self, name: str, stream_id: int, factory: Callable[[int | None], Any]) -> None:
        encode(Notify(stream_id, name))  # raises if the name or id does not fit
        self.name = name
        self.stream_id = stream_id
        self.factory = factory
        self.stored: int | None = None
        """The last id that the worker had stored when it last opened the stream; None if it had stored nothing."""
        self.first_stored: int | None = None
        """The same when it first opened the stream: how far an earlier run got."""
        self.acknowledged: int | None = None
        """The last id that an ACK reported as complete; it only increases. None before the first ACK."""
        self.sent = 0
        """Messages sent; those sent again after a lost connection count again."""
        self.was_opened = False
        self.is_done = False
        """The iterator has ended, and the worker has acknowledged its last message."""

    def opened(self, point_of_reference: int) -> bool:
        """The worker opened the stream. Returns True if it has stored more than we knew."""
        stored = None if point_of_reference == NOTHING_YET else point_of_reference
        is_more = self.was_opened and stored is not None and (self.stored is None or stored > self.stored)
        if not self.was_opened:
            self.first_stored, self.was_opened = stored, True
        self.stored = stored
        return is_more

    def acked(self, point_of_reference: int) -> bool:
        """Returns True if the stream has advanced."""
        if self.acknowledged is not None and point_of_reference <= self.acknowledged:
            return False
        self.acknowledged = point_of_reference
        return True

    def __repr__(self) -> str:
        return f"SourceStream({self.name!r}, sent={self.sent}, acknowledged={self.acknowledged})"
