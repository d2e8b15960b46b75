"""Appends to a segment, blocking."""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self
from uuid import UUID

from penstock.client.segments.appending import Appending
from penstock.client.segments.batches import batches
from penstock.client.segments.blocking_connection import BlockingConnection
from penstock.client.segments.failures import Interrupted
from penstock.client.segments.retrying import retrying
from penstock.client.segments.window import AppendWindow
from penstock.core.errors import NoRoom, PenstockError
from penstock.core.types import Buffer
from penstock.protocol.segment import frame_events

_SEND_AHEAD_BYTES = 2**20
"""Handed to the connection before they can be sent, so that one call to the system sends several blocks."""


class Appender:
    """One writer's appends to one segment: stored once each, in order, over lost connections and restarted workers.

    An event leaves when its block is full or on `flush`; it is stored when it is acknowledged, and held until then. At
    most `window_bytes` are held. `append` waits for room in the window. While the connection is lost, or the segment
    has no room, it tries again for `retry_seconds` and then raises: then this event was not taken. `flush` that raises
    keeps everything that was taken, and may be called again. Leaving `with` on an error drops what is not acknowledged:
    a writer that comes back with the same id learns from `last_number` where to go on.

    Not for use by several threads at once.
    """

    def __init__(
        self, appending: Appending, connect: Callable[[], BlockingConnection], block_bytes: int, retry_seconds: float
    ) -> None:
        self._appending = appending
        self._window: AppendWindow = appending.window
        self._connect = connect
        self._block_bytes = block_bytes
        self._retry_seconds = retry_seconds
        self._connection: BlockingConnection | None = None
        try:
            self._until(lambda: appending.is_open)
        except BaseException:
            self.close()
            raise
        self.last_number = self._window.acknowledged
        """The number of this writer's last event in the segment when it was opened; None if there is none."""

    @property
    def writer_id(self) -> UUID:
        return UUID(bytes=self._appending.writer_id)

    @property
    def acknowledged(self) -> int | None:
        """The number of the last event that is known to be stored; None if there is none."""
        return self._window.acknowledged

    @property
    def taken(self) -> int | None:
        """The number of the last event that was taken, stored or not; None if there is none."""
        return self._window.taken

    @property
    def bytes_held(self) -> int:
        """Bytes taken and not acknowledged."""
        return self._window.bytes_held

    def append(self, event: Buffer, *, number: int | None = None) -> int:
        """Take one event, copied. Returns its number, by default one more than the last one's; the first is 1."""
        framed = frame_events((event,))
        self._wait_for_room(len(framed))
        taken = self._window.add(framed, 1, number)
        self._pump()
        return taken

    def append_many(self, events: Iterable[Buffer]) -> int | None:
        """Take events, copied, with the next numbers; returns the last. If it raises, `taken` says how far it got."""
        for framed, count in batches(events, self._block_bytes):
            self._wait_for_room(len(framed))
            self._window.add(framed, count)
            self._pump()
        return self._window.taken

    def append_block(self, framed: Buffer, event_count: int, *, number: int | None = None) -> int:
        """Take events that have their headers already, as one block: stored as a whole or not at all. Not copied: the
        buffer must stay as it is until it is acknowledged. `number` is that of the last event.
        """
        self._wait_for_room(len(framed))
        taken = self._window.add_block(framed, event_count, number)
        self._pump()
        return taken

    def flush(self) -> None:
        """Wait until everything that was taken is acknowledged."""
        self._window.close_block()
        self._until(lambda: self._window.is_empty)

    def close(self) -> None:
        """Drops what is not acknowledged."""
        self._appending.close()
        self._disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def _wait_for_room(self, size: int) -> None:
        if self._appending.is_healthy and self._window.has_room(size):
            return
        self._window.close_block()
        self._until(lambda: self._appending.is_healthy and self._window.has_room(size))

    def _pump(self) -> None:
        """Send and receive what is possible without waiting. A failure is the next call's: this event was taken."""
        if self._connection is None or not self._window.has_unsent:
            return
        try:
            self._hand_over(self._connection)
            self._connection.exchange(0)
        except PenstockError:
            self._disconnect()
        except BaseException:  # a signal's: it is not known what was sent
            self._disconnect()
            raise

    def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            for attempt in retrying(self._retry_seconds, Interrupted, NoRoom):
                with attempt:
                    self._advance(done)

    def _advance(self, done: Callable[[], bool]) -> None:
        """Raises what stopped it, unless there was progress: then the time to try again begins anew."""
        before = self._window.acknowledged
        try:
            self._exchange(done)
        except (Interrupted, NoRoom):
            if self._window.acknowledged == before:
                raise

    def _exchange(self, done: Callable[[], bool]) -> None:
        connection = self._connected()
        while not done():
            self._hand_over(connection)
            try:
                connection.exchange(connection.timeout_seconds)
            except BaseException:
                self._disconnect()
                raise
            if self._appending.failure is not None:
                raise self._appending.failure

    def _connected(self) -> BlockingConnection:
        if self._connection is None:
            self._connection = self._connect()
        if self._appending.must_set_up:
            self._connection.send([self._appending.set_up(self._connection.session)])
        return self._connection

    def _hand_over(self, connection: BlockingConnection) -> None:
        while connection.unsent_bytes < _SEND_AHEAD_BYTES and (parts := self._appending.take()):
            connection.send(parts)

    def _disconnect(self) -> None:
        self._appending.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
