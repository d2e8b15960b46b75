"""What one attempt of a task has to say, as segments of its own: they count only when the driver merges them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from penstock.client.segments.blocking_connection import BlockingConnection
from penstock.client.segments.failures import Interrupted
from penstock.client.segments.new_segment import NewSegment
from penstock.client.segments.retrying import RETRY_SECONDS, retrying
from penstock.client.segments.window import WINDOW_BYTES, AppendWindow
from penstock.core.errors import LimitExceeded, NoRoom, PenstockError
from penstock.core.types import Buffer
from penstock.protocol.segment import VERSIONED, DeleteSegment, Reply
from penstock.spark.staging_link import Link

_SEND_AHEAD_BYTES = 2**20
"""Handed to the connection before they can be sent, so that one call to the system sends several blocks."""

_DISCARD_SECONDS = 5.0
"""How long to wait for what is discarded to be gone. The worker sweeps what stays, and the task has failed already."""

PORTS_MAX = 100
"""Each is a segment of its own for every partition of every batch, and an output that somebody reads."""

_PORTS_HINT = "A port is an output of the pipeline; what tells rows of one output apart belongs into `stream` or `key`."

_PASSING = (Interrupted, NoRoom)
"""What may be over in a moment."""


@dataclass(frozen=True, slots=True)
class StagedPort:
    """What is staged for one port: `length` bytes that are `rows` events, all of them durable."""

    port: str
    segment: str
    length: int
    rows: int


class _Staged:
    def __init__(self, port: str, appending: NewSegment) -> None:
        self.port = port
        self.appending = appending
        self.length = 0
        self.rows = 0


class Staging:
    """Appends blocks of events, each port's in order, to segments `PREFIX/PORT`, made when their first block comes.

    All share one connection and one window: at most `window_bytes` are held that the worker has not acknowledged.
    While the worker is away or has no room, it is tried again for `retry_seconds`. After any error: `discard`.
    """

    def __init__(
        self,
        link: Link,
        prefix: str,
        *,
        window_bytes: int = WINDOW_BYTES,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._link = link
        self._prefix = prefix
        self._window_bytes = window_bytes
        self._retry_seconds = retry_seconds
        self._ports: dict[str, _Staged] = {}

    @property
    def bytes_held(self) -> int:
        """Bytes taken and not acknowledged."""
        return sum(staged.appending.window.bytes_held for staged in self._ports.values())

    def append(self, port: str, framed: Buffer, rows: int) -> None:
        """Take a block of events with their headers. Not copied: it must stay as it is until `finish` returns."""
        staged = self._ports.get(port) or self._begin(port)
        self._until(lambda: self._has_room(staged, len(framed)))
        staged.appending.window.add_block(framed, rows)
        staged.length += len(framed)
        staged.rows += rows
        self._pump()

    def finish(self) -> tuple[StagedPort, ...]:
        """Wait until everything is durable."""
        self._until(lambda: not self.bytes_held)
        for staged in self._ports.values():
            staged.appending.close()
        return tuple(StagedPort(s.port, s.appending.segment, s.length, s.rows) for s in self._ports.values())

    def discard(self) -> None:
        """Delete what was staged, as well as that can be done now: over the same connection, so that nothing that was
        sent before comes after it.
        """
        with suppress(PenstockError):
            self._delete_all()

    def _begin(self, port: str) -> _Staged:
        if not self._ports:
            self._link.begin_task()
        elif len(self._ports) >= PORTS_MAX:
            raise LimitExceeded(f"more than {PORTS_MAX} ports: {port!r} is one more", _PORTS_HINT)
        segment = NewSegment(f"{self._prefix}/{port}", AppendWindow(self._window_bytes))
        staged = self._ports[port] = _Staged(port, segment)
        return staged

    def _has_room(self, staged: _Staged, size: int) -> bool:
        held = self.bytes_held
        return not held or (held + size <= self._window_bytes and staged.appending.window.has_room(size))

    # Sending and receiving.

    def _pump(self) -> None:
        """Send and receive what is possible without waiting. What is only passing is the next call's to wait for."""
        with suppress(*_PASSING):
            self._step(0)

    def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            for attempt in retrying(self._retry_seconds, *_PASSING):
                with attempt:
                    self._advance(done)

    def _advance(self, done: Callable[[], bool]) -> None:
        """Raises what stopped it, unless there was progress: then the time to try again begins anew."""
        before = self.bytes_held
        try:
            while not done():
                self._step(None)
        except _PASSING:
            if self.bytes_held == before:
                raise

    def _step(self, wait_seconds: float | None) -> None:
        """Any error ends the connection: it is not known what of what was sent will be stored."""
        try:
            connection = self._link.connected()
            self._hand_over(connection)
            try:
                connection.exchange(connection.timeout_seconds if wait_seconds is None else wait_seconds)
            finally:
                self._check()  # what was refused says more than the connection's end, which may follow from it
        except BaseException:
            self._disconnect()
            raise

    def _hand_over(self, connection: BlockingConnection) -> None:
        for staged in self._ports.values():
            appending = staged.appending
            if appending.must_set_up:
                connection.send([appending.set_up(connection.session)])
                self._link.writers += 1
            while connection.unsent_bytes < _SEND_AHEAD_BYTES and (parts := appending.take()):
                connection.send(parts)

    def _check(self) -> None:
        for staged in self._ports.values():
            if staged.appending.failure is not None:
                raise staged.appending.failure

    def _disconnect(self) -> None:
        for staged in self._ports.values():
            staged.appending.close()
        self._link.drop()

    def _delete_all(self) -> None:
        if not self._ports:
            return
        deleted = _Count()
        try:
            connection = self._link.connected()
            for staged in self._ports.values():
                staged.appending.close()
                request_id = connection.session.expect(deleted)
                connection.send([VERSIONED.encode(DeleteSegment(staged.appending.segment, request_id=request_id))])
            while deleted.replies < len(self._ports):
                connection.exchange(_DISCARD_SECONDS)
        finally:
            self._link.drop()


class _Count:
    """Replies of any kind: a segment that was never made cannot be deleted, which is as well."""

    def __init__(self) -> None:
        self.replies = 0

    def on_reply(self, reply: Reply) -> None:  # noqa: ARG002
        self.replies += 1

    def on_lost(self, error: PenstockError) -> None:
        pass
