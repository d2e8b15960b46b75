"""The output of one task attempt, in segments of its own: it takes effect only when the driver merges them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ssl import SSLContext
from uuid import uuid4

from penstock.client.coordinator import CoordinatorClient
from penstock.client.credentials import accept_port
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

# A Python worker's connection to the segment port, reused across tasks.

_WRITERS_MAX = 1000
"""After this many writers a connection is replaced, between two tasks: the worker remembers each writer for the
lifetime of the connection, and accepts 10,000."""


class Link:
    """Connects on first use, and again after `drop`. Each time it calls `find`: a restarted worker may have another
    port.

    Raises Interrupted while the worker is unreachable: the caller retries. Not thread-safe.
    """

    def __init__(
        self, find: Callable[[], Address], tls: SSLContext | None = None, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._find = find
        self._tls = tls
        self._timeout_seconds = timeout_seconds
        self._connection: BlockingConnection | None = None
        self.writers = 0
        """The number of writers that were set up over this connection."""

    def connected(self) -> BlockingConnection:
        if self._connection is None:
            self._connection = BlockingConnection(self._find(), self._tls, self._timeout_seconds)
        return self._connection

    def begin_task(self) -> None:
        """Nothing is in flight now: replace the connection if it has had too many writers."""
        if self.writers >= _WRITERS_MAX:
            self.drop()

    def drop(self) -> None:
        """Close the connection. Data in flight may or may not arrive."""
        self.writers = 0
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def segment_address(worker: str, *, tls: bool) -> Address:
    """The address of the segment port, from the worker's HTTP status. `tls`: whether we are set up for TLS."""
    with CoordinatorClient(worker, 0) as client:
        status = client.status()
        http = client.address
    if status.tls and not tls:
        raise RequestError(
            f"the worker at {worker} accepts only TLS on its segment port",
            "Set the authority of its certificate: option tlsCa, or PENSTOCK_TLS_CA where the executors run.",
        )
    found = Address(http.host, status.ports["segment"])
    accept_port(found, http)
    return found


# Appends to a segment that the writer creates itself: the first block is sent without waiting for a reply. No I/O.


class NewSegment(Appending):
    """The requests to create the segment and to set up the writer are sent together with the blocks: one round trip,
    one fsync.

    That is safe because both the segment's name and the writer are new: nothing of it can be stored yet. After a
    failure or a lost connection the segment may exist, and the writer waits for the set-up as usual. `SegmentExists` if
    the name was taken.

    The worker closes a connection that sends blocks of a writer whose set-up it has refused: after any failure,
    continue over a new one.
    """

    def __init__(self, segment: str, window: AppendWindow) -> None:
        super().__init__(segment, uuid4().bytes, window)
        window.set_up(None)
        self._tries = 0

    def set_up(self, session: Session) -> bytes:
        setup = super().set_up(session)
        self._tries += 1
        self.is_open = self._tries == 1
        return VERSIONED.encode(CreateSegment(self.segment, token=session.token, request_id=self._request_id)) + setup

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
"""Passed to the connection before they can be sent, so that one system call sends several blocks."""

_DISCARD_SECONDS = 5.0
"""How long to wait for deletions. The worker sweeps whatever remains, and the task has failed already."""

PORTS_MAX = 100
"""Each port costs a separate segment for every partition of every batch, and is an output of its own."""

_PORTS_HINT = "A port is an output of the pipeline; to distinguish rows of one output, use `stream` or `key`."

_TRANSIENT = (Interrupted, NoRoom)
"""Errors that may be temporary."""


@dataclass(frozen=True, slots=True)
class StagedPort:
    """The staged output of one port: `length` bytes that are `rows` events, all of them durable. With a `target`, they
    are for that segment of a stream of Pravega's clients.
    """

    port: str
    segment: str
    length: int
    rows: int
    target: str = ""


class _Staged:
    def __init__(self, port: str, target: str, appending: NewSegment) -> None:
        self.port = port
        self.target = target
        self.appending = appending
        self.length = 0
        self.rows = 0


def _finished(one: _Staged) -> StagedPort:
    port = one.port.rpartition(".")[0] if one.target else one.port  # each segment of a target has a number
    return StagedPort(port, one.appending.segment, one.length, one.rows, one.target)


class Staging:
    """Appends blocks of events, in order per port, to segments `PREFIX/PORT`, created with their first block.

    All share one connection and one window: at most `window_bytes` that the worker has not acknowledged are buffered.
    While the worker is unreachable or has no room, it retries for `retry_seconds`. After any error: `discard`.
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
    def buffered_bytes(self) -> int:
        """Bytes that are buffered until the worker acknowledges them."""
        return sum(staged.appending.window.buffered_bytes for staged in self._ports.values())

    def append(self, port: str, framed: Buffer, rows: int, target: str = "") -> None:
        """Append a block of events with their headers. Not copied: it must not change until `finish` returns. With a
        target, the port is just a name for it.
        """
        staged = self._ports.get(port) or self._begin(port, target)
        self._until(lambda: self._has_room(staged, len(framed)))
        staged.appending.window.add_block(framed, rows)
        staged.length += len(framed)
        staged.rows += rows
        self._pump()

    def finish(self) -> tuple[StagedPort, ...]:
        """Wait until everything is durable."""
        self._until(lambda: not self.buffered_bytes)
        for staged in self._ports.values():
            staged.appending.close()
        return tuple(_finished(one) for one in self._ports.values())

    def discard(self) -> None:
        """Delete what was staged, best effort: over the same connection, so that nothing sent earlier arrives after the
        deletion.
        """
        with suppress(PenstockError):
            self._delete_all()

    def _begin(self, port: str, target: str) -> _Staged:
        if not self._ports:
            self._link.begin_task()
        elif not target and sum(not one.target for one in self._ports.values()) >= PORTS_MAX:
            raise LimitExceeded(f"more than {PORTS_MAX} ports: {port!r} is one more", _PORTS_HINT)
        segment = NewSegment(f"{self._prefix}/{port}", AppendWindow(self._window_bytes))
        staged = self._ports[port] = _Staged(port, target, segment)
        return staged

    def _has_room(self, staged: _Staged, size: int) -> bool:
        buffered = self.buffered_bytes
        return not buffered or (buffered + size <= self._window_bytes and staged.appending.window.has_room(size))

    # Sending and receiving.

    def _pump(self) -> None:
        """Send and receive what is possible without waiting. The next call waits for transient errors to pass."""
        with suppress(*_TRANSIENT):
            self._step(0)

    def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            for attempt in retrying(self._retry_seconds, *_TRANSIENT):
                with attempt:
                    self._advance(done)

    def _advance(self, done: Callable[[], bool]) -> None:
        """Raises the error that stopped it, unless there was progress: then the retry time starts again."""
        before = self.buffered_bytes
        try:
            while not done():
                self._step(None)
        except _TRANSIENT:
            if self.buffered_bytes == before:
                raise

    def _step(self, wait_seconds: float | None) -> None:
        """Any error ends the connection: how much of the sent data will be stored is unknown."""
        try:
            connection = self._link.connected()
            self._hand_over(connection)
            try:
                connection.exchange(connection.timeout_seconds if wait_seconds is None else wait_seconds)
            finally:
                self._check()  # a refused request explains more than a closed connection, which may follow from it
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
                request = DeleteSegment(staged.appending.segment, connection.session.token, request_id)
                connection.send([VERSIONED.encode(request)])
            while deleted.replies < len(self._ports):
                connection.exchange(_DISCARD_SECONDS)
        finally:
            self._link.drop()


class _Count:
    """Counts replies of any kind: an error for a segment that was never created is fine too."""

    def __init__(self) -> None:
        self.replies = 0

    def on_reply(self, reply: Reply) -> None:  # noqa: ARG002
        self.replies += 1

    def on_lost(self, error: PenstockError) -> None:
        pass
