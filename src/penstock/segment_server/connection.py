"""One connection: bytes to requests, requests to the store, replies back in order, memory within its limits."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias, TypeVar, cast

from penstock.access.principals import certificate_names
from penstock.access.refusals import Port
from penstock.core import errors
from penstock.core.connection_limits import address_of, find_dead_peers
from penstock.core.errors import (
    Damaged,
    Forbidden,
    PenstockError,
    ProtocolError,
    Unauthenticated,
    Unavailable,
)
from penstock.core.logs import one_line
from penstock.core.tls_handshakes import close_once
from penstock.core.types import Buffer, Position
from penstock.protocol.segment import (
    DOCUMENT,
    VERSIONED,
    AppendByNumber,
    AppendByOffset,
    CreateSegment,
    CreateTable,
    Decoder,
    DeleteSegment,
    Dialect,
    ErrorMessage,
    Failure,
    Hello,
    Incoming,
    KeepAlive,
    MergeSegments,
    Message,
    OperationUnsupported,
    ReadSegment,
    Role,
    SealSegment,
    SegmentRead,
    SetupAppend,
    TruncateSegment,
    WrongHost,
)
from penstock.protocol.segment.messages import (
    VERSION_HIGH,
    VERSION_LOW,
    ErrorCode,
    UnknownRequest,
)
from penstock.protocol.stored.names import STAGING_PREFIX
from penstock.segment_server.appends import Appending, failure
from penstock.segment_server.caller import Caller
from penstock.segment_server.requests import SegmentRequests
from penstock.segment_server.state import Locate, ServerState
from penstock.store.index import ClosedIndex
from penstock.store.reader import IndexNotLoaded, Located

T = TypeVar("T")

# Replies are sent in the order of their requests, each when it is allowed.


class Slot:
    """The place of one reply; empty until it is known and may be sent."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data: Sequence[Buffer] | None = None


class Outbox:
    """One connection's replies. A filled slot is sent when all before it have been sent."""

    def __init__(self, send: Callable[[Iterable[Buffer]], None]) -> None:
        self._send = send
        self._slots: deque[Slot] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    def reserve(self) -> Slot:
        slot = Slot()
        self._slots.append(slot)
        return slot

    def give_up(self, slot: Slot) -> None:
        """Let later replies pass it; its own will be sent when it is available."""
        self._slots.remove(slot)
        self.flush()

    def flush(self) -> None:
        ready: list[Buffer] = []
        while self._slots and self._slots[0].data is not None:
            ready.extend(self._slots.popleft().data or ())
        if ready:
            self._send(ready)


_Creation: TypeAlias = CreateSegment | CreateTable


def _segment(request: Message) -> str:
    name: str = request.target if isinstance(request, MergeSegments) else getattr(request, "segment", "")
    return name


log = logging.getLogger(__name__)

# Concurrent reads of one connection: with their size this bounds the memory they take.
_FETCHES_MAX = 2
_TAIL_READS_MAX = 1024

# Receives bytes after the last request that counts.
_IGNORED = bytearray(64 * 1024)


class SegmentConnection(asyncio.BufferedProtocol):
    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._store = server.store
        self._settings = server.settings
        self._decoder = Decoder(Role.SERVER, block_size_max=server.settings.block_bytes_max)
        self._outbox = Outbox(self._send)
        self._caller = caller = Caller(server.store, server.access, server.check_staging)
        self._appending = Appending(server.store, server.counters, server.settings.appenders_max, caller, self._answer)
        self._requests = SegmentRequests(server.store, caller, server.settings, server.counters, server.tables)
        self._tail_reads: dict[int, Callable[[], None]] = {}
        self._unacknowledged = 0
        self._fetching = 0
        self._write_blocked = False
        self._paused = False
        self._ending = False
        self._received_at = 0.0
        self._kept_alive_at = 0.0
        self._has_asked = False
        self._incoming: Iterator[Incoming] = iter(())
        self._has_more = False
        self._peer_is_done = False
        self._was_refused = False
        self._delay: asyncio.TimerHandle | None = None
        self._finding: set[asyncio.Task[None]] = set()
        self._claiming: Slot | None = None

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes_max)
        self._peer = self._transport.get_extra_info("peername")
        self._caller.certificate_names = certificate_names(self._transport.get_extra_info("peercert"))
        self._received_at = self._server.loop.time()
        find_dead_peers(self._transport, self._settings.dead_peer_seconds)
        if not self._server.opened(self, address_of(self._peer)):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        for cancel in self._tail_reads.values():
            cancel()
        self._tail_reads.clear()
        for task in self._finding:
            task.cancel()
        self._requests.close()
        if self._delay is not None:  # which would keep this connection in memory
            self._delay.cancel()
        self._server.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint) if not self._ending else memoryview(_IGNORED)

    def buffer_updated(self, nbytes: int) -> None:
        if self._has_asked:  # before that, the time limit is for all of the first request
            self._received_at = self._server.loop.time()
        if self._ending:
            return
        self._incoming, self._has_more = self._decoder.received(nbytes), True
        self._work()

    def _work(self) -> None:
        """Handle what has been received, as long as there is room for it; the rest waits in the receive buffer."""
        try:
            while self._has_more and not (self._ending or self._is_full()):
                self._handle_some()
                self._outbox.flush()
        except ProtocolError as error:
            self._reject(error)
        if self._peer_is_done and not self._has_more:
            self._end_when_answered()
        self._pause_or_resume()

    def _handle_some(self) -> None:
        while not self._is_full():
            incoming = next(self._incoming, None)
            if incoming is None:
                self._has_more = False
                return
            self._handle(incoming)

    def eof_received(self) -> bool:
        """The peer has stopped sending; its requests are still answered."""
        self._peer_is_done = True
        self._work()
        return self._transport.get_extra_info("sslcontext") is None

    def pause_writing(self) -> None:
        self._write_blocked = True
        self.throttle()

    def resume_writing(self) -> None:
        self._write_blocked = False
        self.throttle()

    # Requests.

    @property
    def _dialect(self) -> Dialect:
        return self._decoder.dialect or VERSIONED

    def _handle(self, incoming: Incoming) -> None:
        self._has_asked = True
        match incoming:
            case AppendByNumber() | AppendByOffset():
                self._appending.append(incoming)
            case ReadSegment():
                self._read(incoming, self._outbox.reserve(), may_wait=True)
            case KeepAlive():
                self._answer(incoming, Position(0))
            case Hello():
                self._greet(incoming)
            case _:
                self._manage(incoming)

    def _greet(self, hello: Hello) -> None:
        self._answer(Hello(VERSION_HIGH, VERSION_LOW), Position(0))
        if hello.low > VERSION_HIGH or hello.high < VERSION_LOW:
            raise ProtocolError(
                f"the client speaks versions {hello.low} to {hello.high}, this worker {VERSION_LOW} to {VERSION_HIGH}"
            )

    def _manage(self, request: Message, *, is_claimed: bool = False) -> None:
        segment = _segment(request)
        request_id = getattr(request, "request_id", -1)
        try:
            self._caller.check(request)
            self._requests.check_form(request)
            if isinstance(request, _Creation) and not is_claimed and self._must_claim(request):
                return
            if isinstance(request, SetupAppend):
                self._appending.set_up(request, by_offset=self._dialect is not VERSIONED)
                return
            handler = self._requests.handlers.get(type(request))
            if handler is None:
                name = f"type {request.kind}" if isinstance(request, UnknownRequest) else type(request).__name__
                unsupported = OperationUnsupported(name, "", request_id)
                self._answer(unsupported, Position(0))
                return
            reply, position = handler(request)
        except ProtocolError:
            raise
        except PenstockError as error:
            self._refused(error)
            if not self._may_be_elsewhere(error, failure(error, segment, request_id), self._outbox.reserve):
                self._answer(failure(error, segment, request_id), Position(0))
            return
        self._answer(reply, position)
        for name in _changed(request):
            self._server.durability.after(position, partial(self._server.tail.wake, name))

    def _may_be_elsewhere(self, error: PenstockError, reply: Failure, reserve: Callable[[], Slot]) -> bool:
        """In a cluster, a segment that is not here may be in another shard: the reply waits until that is known."""
        if self._server.locate is None or not isinstance(error, errors.NoSuchSegment):
            return False
        task = self._server.loop.create_task(self._find(self._server.locate, reply, reserve()))
        self._finding.add(task)
        task.add_done_callback(self._finding.discard)
        return True

    async def _find(self, locate: Locate, reply: Failure, slot: Slot) -> None:
        segment, request_id = getattr(reply, "segment", ""), getattr(reply, "request_id", -1)
        try:
            address = await locate(segment)
        except PenstockError:
            address = ""
        if not self._transport.is_closing():
            self._fill(slot, WrongHost(segment, address, "", request_id=request_id) if address else reply)

    def _must_claim(self, request: _Creation) -> bool:
        """In a cluster, a segment of a program's own has a place before it is created. Requests behind it wait."""
        claim = self._server.claim
        if claim is None or request.segment.startswith(STAGING_PREFIX):
            return False
        self._claiming = self._outbox.reserve()
        task = self._server.loop.create_task(self._claim(claim, request, self._claiming))
        self._finding.add(task)
        task.add_done_callback(self._finding.discard)
        return True

    async def _claim(self, claim: Locate, request: _Creation, slot: Slot) -> None:
        reply: Message | None = None
        try:
            if address := await claim(request.segment):
                reply = WrongHost(request.segment, address, "", request_id=request.request_id)
        except PenstockError as error:
            reply = failure(error, request.segment, request.request_id)
        self._claiming = None
        if self._transport.is_closing():
            return
        self._outbox.give_up(slot)
        if reply is None:
            self._manage(request, is_claimed=True)
        else:
            self._answer(reply, Position(0))
        self.flush()

    def _refused(self, error: PenstockError) -> None:
        """Every refusal is counted, the first of a connection logged. An unauthenticated peer's next request waits."""
        if not isinstance(error, Unauthenticated | Forbidden):
            return
        is_first, self._was_refused = not self._was_refused, True
        self._server.refusals.add(Port.SEGMENT, address_of(self._peer), error, is_logged=is_first)
        if not self._caller.is_authenticated and (delay := self._server.refusal_pace.delay(self._server.loop.time())):
            self._delay = self._server.loop.call_later(delay, self._end_delay)

    def _end_delay(self) -> None:
        self._delay = None
        if not self._transport.is_closing():
            self.throttle()

    def _answer(self, reply: Message, position: int, size: int = 0) -> None:
        """Send the reply, in its turn, once the journal is durable up to `position`."""
        slot = self._outbox.reserve()
        data = [self._dialect.encode(reply)]
        self._unacknowledged += size
        self._server.taken(size)

        def fill() -> None:
            slot.data = data
            self._unacknowledged -= size
            self._server.released(size)
            self._server.to_flush.add(self)

        self._server.durability.after(Position(position), fill)

    # Reads.

    def _read(self, request: ReadSegment, slot: Slot, *, may_wait: bool) -> None:
        length = min(max(request.suggested_length, 1), self._settings.read_bytes_max)
        try:
            self._caller.check(request)
            located = self._store.locate(request.segment, request.offset, length, loaded_only=True)
        except IndexNotLoaded as missing:
            self._load_index(missing.chapter, request, slot, may_wait=may_wait)
            return
        except PenstockError as error:
            self._refused(error)
            self._refuse_read(request, slot, error)
            return
        if located.pieces:
            self._fetch(request, located, slot)
        elif may_wait and not located.end_of_segment and len(self._tail_reads) < _TAIL_READS_MAX:
            self._wait_at_tail(request, slot)
        else:
            self._fill(slot, _segment_read(request, located, b""))

    def _wait_at_tail(self, request: ReadSegment, slot: Slot) -> None:
        """Replies to later requests pass a read that waits; it is known by its segment and offset."""
        self._outbox.give_up(slot)
        key = id(slot)

        def answer() -> None:
            if self._tail_reads.pop(key, None) is not None:
                self._read(request, self._outbox.reserve(), may_wait=False)

        self._tail_reads[key] = self._server.tail.wait(request.segment, answer)

    def _load_index(self, chapter: Position, request: ReadSegment, slot: Slot, *, may_wait: bool) -> None:
        def loaded(index: ClosedIndex) -> None:
            self._store.indexes.put(chapter, index)
            self._read(request, slot, may_wait=may_wait)

        self._when_read(self._server.load_index(chapter), loaded, request, slot)

    def _fetch(self, request: ReadSegment, located: Located, slot: Slot) -> None:
        def fetched(found: list[memoryview]) -> None:
            data = b"".join(found)
            self._server.counters.reads += 1
            self._server.counters.read_bytes += len(data)
            self._fill(slot, _segment_read(request, located, data))

        pool = self._server.pool(is_here=self._store.is_here(located))
        reading = self._server.loop.run_in_executor(pool, self._store.fetch, located)
        self._when_read(reading, fetched, request, slot)

    def _when_read(
        self, reading: "asyncio.Future[T]", use: Callable[[T], None], request: ReadSegment, slot: Slot
    ) -> None:
        self._fetching += 1

        def done(future: "asyncio.Future[T]") -> None:
            self._fetching -= 1
            try:
                use(future.result())
            except LookupError:  # moved or truncated meanwhile
                self._read(request, slot, may_wait=False)
            except PenstockError as error:
                self._refuse_read(request, slot, error)
            except Exception as error:  # an answer that never comes would keep the client waiting forever
                log.exception("a read of segment %r failed", request.segment)
                self._refuse_read(request, slot, Unavailable(f"the worker cannot read: {type(error).__name__}"))
            self.throttle()

        reading.add_done_callback(done)

    def _refuse_read(self, request: ReadSegment, slot: Slot, error: PenstockError) -> None:
        if isinstance(error, Damaged):
            self._store.note_damage(request.segment, error)
        reply = failure(error, request.segment, request.request_id, request.offset)
        if not self._may_be_elsewhere(error, reply, lambda: slot):
            self._fill(slot, reply)

    def _fill(self, slot: Slot, reply: Message) -> None:
        slot.data = self._dialect.encode_parts(reply)
        self._outbox.flush()

    # Flow and end.

    def flush(self) -> None:
        self._outbox.flush()
        self.throttle()
        if self._ending and not self._outbox:
            close_once(self._transport)

    def throttle(self) -> None:
        """Continue with the peer's requests, if what is buffered for it is within its limits again."""
        if self._paused and not self._is_full() and not self._ending:
            self._work()
        else:
            self._pause_or_resume()

    def _is_full(self) -> bool:
        return (
            self._write_blocked
            or self._delay is not None
            or self._unacknowledged > self._settings.unacknowledged_bytes_max
            or self._server.is_full
            or len(self._outbox) > self._settings.replies_max
            or self._fetching >= _FETCHES_MAX
            or self._claiming is not None
        )

    def _pause_or_resume(self) -> None:
        """Read from the peer only while there is room for more."""
        full = self._is_full()
        if self._ending or self._transport.is_closing():
            return
        if full != self._paused:
            self._paused = full
            if full:
                self._server.paused.add(self)
                self._transport.pause_reading()
            else:
                self._server.paused.discard(self)
                self._transport.resume_reading()

    def end_if_silent(self, now: float) -> None:
        """End a peer that has not begun, stopped in the middle of a message, or asked for nothing for very long."""
        settings, since = self._settings, self.idle_since
        if since is None or self._paused:
            return
        if not self._has_asked and now - since > settings.handshake_seconds:
            log.warning("%s sent no request within %g s: closed", self._peer, settings.handshake_seconds)
        elif self._decoder.is_inside_message and now - since > settings.stall_seconds:
            log.warning("%s sent half a message and then nothing: closed", self._peer)
        elif now - since <= settings.idle_seconds:
            self._keep_alive(now)
            return
        self._transport.abort()

    def _keep_alive(self, now: float) -> None:
        """Show a peer that the server is still there; in the document a KeepAlive is a reply, too."""
        is_due = now - max(self._received_at, self._kept_alive_at) > self._settings.keep_alive_seconds
        if is_due and self._decoder.dialect is DOCUMENT:
            self._kept_alive_at = now
            self._answer(KeepAlive(), Position(0))
            self._outbox.flush()

    @property
    def idle_since(self) -> float | None:
        """None while the peer waits for a reply, or for data at the tail of a segment."""
        is_busy = self._outbox or self._tail_reads or self._fetching or self._unacknowledged
        return None if is_busy else self._received_at

    @property
    def is_authenticated(self) -> bool:
        return self._caller.is_authenticated

    def evict(self) -> None:
        self._server.counters.connections_evicted += 1
        self._transport.abort()

    def end_if_revoked(self) -> None:
        """End a peer whose access was revoked or changed: it may connect again, with what it is allowed now."""
        if not self._caller.is_current():
            log.warning("%s: the access of %s has changed: closed", self._peer, self._caller)
            self._transport.abort()

    def stop_reading(self) -> None:
        """Accept no more requests; those accepted are still answered."""
        if not self._transport.is_closing():
            self._ending = True
            self._transport.pause_reading()

    def close(self) -> None:
        close_once(self._transport)

    def abort(self) -> None:
        self._transport.abort()

    def _reject(self, error: ProtocolError) -> None:
        self._server.counters.protocol_errors += 1
        log.warning("%s: %s", self._peer, one_line(error))
        self._answer(ErrorMessage("", str(error), ErrorCode.PROTOCOL_ERROR), self._store.journal.end)
        self._end_when_answered()

    def _end_when_answered(self) -> None:
        self.stop_reading()
        self._server.to_flush.add(self)
        self._server.flush_soon()

    def _send(self, data: Iterable[Buffer]) -> None:
        if not self._transport.is_closing():
            self._transport.writelines(data)


def _changed(request: Message) -> tuple[str, ...]:
    """The segments whose waiting reads must look again."""
    match request:
        case SealSegment() | DeleteSegment() | TruncateSegment():
            return (request.segment,)
        case MergeSegments():
            return request.target, request.source
        case _:
            return ()


def _segment_read(request: ReadSegment, located: Located, data: bytes) -> SegmentRead:
    return SegmentRead(
        request.segment, request.offset, located.at_tail, located.end_of_segment, data, request.request_id
    )
