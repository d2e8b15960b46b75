"""What one attempt of a task has to say, as segments of its own: they count only when the driver merges them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ssl import SSLContext
from uuid import uuid4

from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments.appenders import Appending
from penstock.client.segments.connections import BlockingConnection, Session
from penstock.client.segments.failures import RETRY_SECONDS, TIMEOUT_SECONDS, Interrupted, retrying
from penstock.client.segments.window import WINDOW_BYTES, AppendWindow
from penstock.core.address import Address
from penstock.core.errors import ConditionFailed, LimitExceeded, NoRoom, PenstockError, RequestError
from penstock.core.types import Buffer
from penstock.protocol.segment import (
    NO_EVENT_NUMBER,
    VERSIONED,
    AppendSetup,
    CreateSegment,
    DeleteSegment,
    Reply,
    SegmentAlreadyExists,
    SegmentCreated,
)

# A Python worker's connection to the segment port, kept from task to task.

_WRITERS_MAX = 1000
"""After so many a connection is given up, between two tasks: the worker remembers each writer as long as the
connection lives, and takes 10,000."""


class Link:
    """Connects when it is needed, and again after `drop`. `find` is asked every time: a worker that was restarted
    may have another port.

    Raises Interrupted while the worker is away: trying again is the caller's business. Not for several threads.
    """

    def __init__(
        self, find: Callable[[], Address], tls: SSLContext | None = None, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._find = find
        self._tls = tls
        self._timeout_seconds = timeout_seconds
        self._connection: BlockingConnection | None = None
        self.writers = 0
        """How many have been set up over this connection."""

    def connected(self) -> BlockingConnection:
        if self._connection is None:
            self._connection = BlockingConnection(self._find(), self._tls, self._timeout_seconds)
        return self._connection

    def begin_task(self) -> None:
        """Nothing is on its way now: the time to take a new connection if the old one is worn."""
        if self.writers >= _WRITERS_MAX:
            self.drop()

    def drop(self) -> None:
        """Whatever was on its way may or may not arrive."""
        self.writers = 0
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def segment_address(worker: str, *, tls: bool) -> Address:
    """Where the segment port is, as the worker's HTTP side tells. `tls`: whether we can speak it."""
    with CoordinatorClient(worker, 0) as client:
        status = client.status()
        host = client.address.host
    if status["tls"] and not tls:
        raise RequestError(
            f"the worker at {worker} speaks TLS alone on its segment port",
            "Set the authority of its certificate: option tlsCa, or PENSTOCK_TLS_CA where the executors run.",
        )
    return Address(host, status["ports"]["segment"])


# Appends to a segment that the writer makes itself: nothing is waited for before the first block is sent. No I/O.


class NewSegment(Appending):
    """The request to make the segment, the set-up and the blocks leave together: one round trip, one fsync.

    That is right because both the segment's name and the writer are new: nothing can be stored of it. After a failure
    or a loss the segment may be there, and the set-up is waited for, as ever. `SegmentExists` if the name was taken.

    The worker ends a connection that brings blocks of a writer whose set-up it has refused: after any failure, go on
    over a new one.
    """

    def __init__(self, segment: str, window: AppendWindow) -> None:
        super().__init__(segment, uuid4().bytes, window)
        window.set_up(None)
        self._tries = 0

    def set_up(self, session: Session) -> bytes:
        begin = super().set_up(session)
        self._tries += 1
        self.is_open = self._tries == 1
        return VERSIONED.encode(CreateSegment(self.segment, request_id=self._request_id)) + begin

    def _take_reply(self, reply: Reply) -> None:
        match reply:
            case SegmentCreated():
                pass
            case SegmentAlreadyExists() if self._tries > 1:
                pass
            case AppendSetup() if self._tries == 1:
                if reply.acknowledged != NO_EVENT_NUMBER:
                    raise ConditionFailed(f"segment {self.segment!r} already knows a writer id that was just generated")
            case _:
                super()._take_reply(reply)


_SEND_AHEAD_BYTES = 2**20
"""Handed to the connection before they can be sent, so that one call to the system sends several blocks."""

_DISCARD_SECONDS = 5.0
"""How long to wait for what is discarded to be gone. The worker sweeps what stays, and the task has failed already."""

PORTS_MAX = 100
"""Each is a segment of its own for every partition of every batch, and an output that somebody reads."""

_PORTS_HINT = "A port is an output of the pipeline; to tell rows of one output apart, use `stream` or `key`."

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
        """Raises what stopped it, unless there was progress: then the retry time starts again."""
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
