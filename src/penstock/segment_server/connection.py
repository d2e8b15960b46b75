"""One connection: bytes to requests, requests to the store, replies back in order, memory within its limits."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, cast
from uuid import uuid4

from penstock.access.principals import certificate_names
from penstock.access.refusals import Port
from penstock.core import errors
from penstock.core.address import this_machine
from penstock.core.connection_limits import address_of, find_dead_peers
from penstock.core.errors import (
    Damaged,
    Forbidden,
    LimitExceeded,
    NoSuchSegment,
    PenstockError,
    ProtocolError,
    RequestError,
    Unauthenticated,
    Unavailable,
)
from penstock.core.logs import one_line
from penstock.core.types import NO_VALUE, Buffer, Position
from penstock.protocol.segment import (
    DOCUMENT,
    VERSIONED,
    AppendByNumber,
    AppendByOffset,
    Attribute,
    AttributeUpdated,
    CreateSegment,
    CreateTable,
    CreateTransientSegment,
    Decoder,
    DeleteSegment,
    Dialect,
    ErrorMessage,
    Failure,
    GetAttribute,
    GetSegmentInfo,
    Hello,
    Incoming,
    KeepAlive,
    LocatedFile,
    LocatedObject,
    LocatedRow,
    LocateSegment,
    MergeSegments,
    Message,
    OperationUnsupported,
    ReadSegment,
    Role,
    SealSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentInfo,
    SegmentLocated,
    SegmentRead,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    SetupAppend,
    TruncateSegment,
    UpdateAttribute,
    WrongHost,
)
from penstock.protocol.segment.messages import (
    VERSION_HIGH,
    VERSION_LOW,
    AttributeUpdateKind,
    ErrorCode,
    UnknownRequest,
)
from penstock.protocol.segment.primitives import LOCATED_ROWS_MAX
from penstock.protocol.stored.names import STAGING_PREFIX, TRANSIENT
from penstock.segment_server.appends import Appending, failure
from penstock.segment_server.caller import Caller
from penstock.segment_server.settings import Counters, ServerSettings
from penstock.segment_server.state import Locate, ServerState
from penstock.segment_server.tables import TableRequests, Tables
from penstock.store.files import LocalFile, RemoteFile
from penstock.store.journal import Journal
from penstock.store.plan import AttributeUpdate
from penstock.store.reader import Located
from penstock.store.store import SegmentStore

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


# Requests about segments as a whole: each is one change of the store, or one look at it.

Handled = tuple[Message, Position]
"""A reply, and how far the journal must be durable before it is sent."""


class Managing:
    def __init__(
        self, store: SegmentStore, caller: Caller, settings: ServerSettings, counters: Counters, tables: Tables
    ) -> None:
        self._store = store
        self._caller = caller
        self._settings = settings
        self._counters = counters
        self._tables = tables
        self._transient: set[str] = set()
        self.handlers: dict[type[Message], Callable[[Any], Handled]] = {
            CreateSegment: self._create,
            CreateTransientSegment: self._create_transient,
            DeleteSegment: self._delete,
            GetAttribute: self._get_attribute,
            GetSegmentInfo: self._info,
            LocateSegment: self._locate,
            MergeSegments: self._merge,
            SealSegment: self._seal,
            TruncateSegment: self._truncate,
            UpdateAttribute: self._update_attribute,
            **TableRequests(store, caller, tables).handlers,
        }

    def check_form(self, request: Message) -> None:
        """Raises RequestError for a request that would put something else than entries into a table."""
        if not isinstance(request, _NOT_FOR_TABLES):
            return
        names = (request.target, request.source) if isinstance(request, MergeSegments) else (request.segment,)
        for name in filter(self._tables.is_table, names):
            raise RequestError(f"segment {name!r} is a table", "Use requests about tables.")

    def close(self) -> None:
        """Delete what the connection has begun, and cannot end any more."""
        for name in self._transient:
            with suppress(PenstockError):
                self._store.delete(name)
        self._transient.clear()

    def _create_transient(self, request: CreateTransientSegment) -> Handled:
        if not self._store.exists(request.segment):
            raise NoSuchSegment(f"segment {request.segment!r} not found")
        if len(self._transient) >= self._settings.appenders_max:
            raise LimitExceeded(f"{len(self._transient)} transient segments on one connection (appenders_max)")
        name = f"{request.segment}{TRANSIENT}{uuid4().hex}"
        self._caller.check_count(name)
        position = self._store.create(name, self._caller.attributes_of_new(name))
        self._transient.add(name)
        return SegmentCreated(name, request.request_id), position

    def _create(self, request: CreateSegment) -> Handled:
        self._caller.check_count(request.segment)
        position = self._store.create(request.segment, self._caller.attributes_of_new(request.segment))
        return SegmentCreated(request.segment, request.request_id), position

    def _seal(self, request: SealSegment) -> Handled:
        return SegmentSealed(request.segment, request.request_id), self._store.seal(request.segment)

    def _delete(self, request: DeleteSegment) -> Handled:
        position = self._store.delete(request.segment)
        self._transient.discard(request.segment)
        self._caller.audit(request.segment, "delete")
        return SegmentDeleted(request.segment, request.request_id), position

    def _truncate(self, request: TruncateSegment) -> Handled:
        position = self._store.truncate(request.segment, request.offset)
        self._caller.audit(request.segment, f"truncate before {request.offset}")
        return SegmentTruncated(request.segment, request.request_id), position

    def _info(self, request: GetSegmentInfo) -> Handled:
        info = self._store.info(request.segment)
        reply = SegmentInfo(
            segment=info.name,
            exists=True,
            sealed=info.sealed,
            deleted=False,
            modified=0,
            # Bytes that are not durable yet will be when the reply leaves.
            write_offset=self._store.length(request.segment),
            start_offset=info.start,
            request_id=request.request_id,
        )
        return reply, self._store.journal.end

    def _get_attribute(self, request: GetAttribute) -> Handled:
        value = self._store.attribute(request.segment, request.attribute_id)
        reply = Attribute(NO_VALUE if value is None else value, request.request_id)
        return reply, self._store.journal.end

    def _update_attribute(self, request: UpdateAttribute) -> Handled:
        update = AttributeUpdate(request.segment, request.attribute_id, request.value, request.expected)
        try:
            position = self._store.update_attributes([update])
        except errors.ConditionFailed:
            return AttributeUpdated(success=False, request_id=request.request_id), self._store.journal.end
        return AttributeUpdated(success=True, request_id=request.request_id), position

    def _locate(self, request: LocateSegment) -> Handled:
        """For a reader that opens the journal's files or objects itself: whether it may, their permissions decide."""
        is_here = bool(request.machine) and request.machine == this_machine()
        if not self._settings.short_circuit or not (is_here or (request.objects and self._has_objects())):
            self._counters.locates_refused += 1
            why = "is off" if not self._settings.short_circuit else "is for readers on the same machine"
            return OperationUnsupported("LocateSegment", f"reading files {why}", request.request_id), Position(0)
        length = min(max(request.length, 1), self._settings.located_bytes_max)
        located = self._store.locate(request.segment, request.offset, length, LOCATED_ROWS_MAX)
        places = _Places(self._store.journal, paths=is_here, objects=request.objects)
        rows = tuple(places.rows(located))
        self._counters.locates += 1
        self._counters.located_bytes += sum(row.take for row in rows)
        self._counters.located_remote_bytes += sum(row.take for row in rows if not places.files[row.file].path)
        reply = SegmentLocated(
            request.segment,
            request.offset,
            tuple(places.files),
            rows,
            request.request_id,
            tuple(places.objects) if request.objects else (),
        )
        return reply, Position(0)

    def _has_objects(self) -> bool:
        """Whether the journal is in a bucket: the oldest chapter is the first to be closed. Readers on other machines
        do not ask again for a while if it is not.
        """
        journal = self._store.journal
        return journal.remote_file(journal.chapters[0]) is not None

    def _merge(self, request: MergeSegments) -> Handled:
        updates = []
        for update in request.updates:
            if update.kind not in (AttributeUpdateKind.REPLACE, AttributeUpdateKind.REPLACE_IF_EQUALS):
                reply = OperationUnsupported("attribute update", f"kind {update.kind}", request.request_id)
                return reply, self._store.journal.end
            conditional = update.kind == AttributeUpdateKind.REPLACE_IF_EQUALS
            expected = update.expected if conditional else None
            updates.append(AttributeUpdate(request.target, update.attribute_id, update.value, expected))
        self._caller.check_merge(request.target, request.source)
        position = self._store.merge([(request.target, request.source)], updates)
        self._transient.discard(request.source)
        length = self._store.length(request.target)
        return SegmentsMerged(request.target, request.source, length, request.request_id), position


_NO_FILE = LocatedFile("", 0, 0)
_NO_OBJECT = LocatedObject("", "")


class _Places:
    """Where a reader finds chapters, each with its number: as files, if it may have their `paths`, as objects, or as
    both.
    """

    def __init__(self, journal: Journal, *, paths: bool, objects: bool) -> None:
        self._journal = journal
        self._paths = paths
        self._objects = objects
        self._chapters: dict[Position, tuple[LocalFile | None, RemoteFile | None]] = {}
        self._numbers: dict[tuple[Position, tuple[str, int]], int] = {}
        self.files: list[LocatedFile] = []
        self.objects: list[LocatedObject] = []

    def rows(self, located: Located) -> Iterator[LocatedRow]:
        """Only those before a chapter that the reader cannot find."""
        for chapter, row, _, skip, take in located.pieces:
            position = self._journal.local_offset(chapter, row.position)
            number = self._number(chapter, position, position + row.head_length + row.length)
            if number is None:
                return
            yield LocatedRow(number, position, row.head_length, row.length, row.checksum, skip, take)

    def _number(self, chapter: Position, start: int, end: int) -> int | None:
        """Of the place that has all these bytes. A chapter that is in several objects has several numbers."""
        local, remote = self._found(chapter)
        part = None if remote is None else remote.part(start, end)
        if local is None and part is None:
            return None
        key = chapter, ("", 0) if part is None else (part.key, part.shift)
        if key not in self._numbers:
            self._numbers[key] = len(self.files)
            self.files.append(_NO_FILE if local is None else LocatedFile(*local))
            self.objects.append(_NO_OBJECT if part is None else LocatedObject(part.url, part.key, part.shift))
        return self._numbers[key]

    def _found(self, chapter: Position) -> tuple[LocalFile | None, RemoteFile | None]:
        if chapter not in self._chapters:
            local = self._journal.local_file(chapter) if self._paths else None
            remote = self._journal.remote_file(chapter) if self._objects else None
            self._chapters[chapter] = local, remote
        return self._chapters[chapter]


_Creation: TypeAlias = CreateSegment | CreateTable
_NOT_FOR_TABLES = (SetupAppend, SealSegment, TruncateSegment, MergeSegments)


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
        self._managing = Managing(server.store, caller, server.settings, server.counters, server.tables)
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
        self._managing.close()
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
            self._managing.check_form(request)
            if isinstance(request, _Creation) and not is_claimed and self._must_claim(request):
                return
            if isinstance(request, SetupAppend):
                self._appending.set_up(request, by_offset=self._dialect is not VERSIONED)
                return
            handler = self._managing.handlers.get(type(request))
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
            located = self._store.locate(request.segment, request.offset, length)
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

    def _fetch(self, request: ReadSegment, located: Located, slot: Slot) -> None:
        self._fetching += 1

        def fetched(future: "asyncio.Future[list[memoryview]]") -> None:
            self._fetching -= 1
            self._fetched(request, located, slot, future)
            self.throttle()

        loop, pool = self._server.loop, self._server.read_pool
        loop.run_in_executor(pool, self._store.fetch, located).add_done_callback(fetched)

    def _fetched(
        self, request: ReadSegment, located: Located, slot: Slot, future: "asyncio.Future[list[memoryview]]"
    ) -> None:
        try:
            data = b"".join(future.result())
        except LookupError:  # moved or truncated meanwhile
            self._read(request, slot, may_wait=False)
        except PenstockError as error:
            self._refuse_read(request, slot, error)
        except Exception as error:  # an answer that never comes would keep the client waiting forever
            log.exception("a read of segment %r failed", request.segment)
            self._refuse_read(request, slot, Unavailable(f"the worker cannot read: {type(error).__name__}"))
        else:
            self._server.counters.reads += 1
            self._server.counters.read_bytes += len(data)
            self._fill(slot, _segment_read(request, located, data))

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
            self._transport.close()

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
        self._transport.close()

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
