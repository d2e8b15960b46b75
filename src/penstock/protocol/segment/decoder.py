"""Bytes in, messages and appends out: one decoder for each connection, at either end of it."""

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from struct import Struct
from typing import ClassVar, TypeAlias

from penstock.core.errors import ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.incremental import IncrementalDecoder
from penstock.protocol.segment.append import BLOCK_SIZE_MAX, AppendByNumber, AppendByOffset, Incoming
from penstock.protocol.segment.dialect import (
    APPEND_BLOCK,
    APPEND_BLOCK_END,
    CONDITIONAL_APPEND,
    CONDITIONAL_BLOCK_END,
    DOCUMENT,
    END_APPEND_BLOCK,
    HELLO,
    PADDING,
    PARTIAL_EVENT,
    PARTIAL_MESSAGE,
    VERSIONED,
    Dialect,
    Role,
)
from penstock.protocol.segment.frame import EVENT, HEADER, HEADER_SIZE, pack_header, unpack_header
from penstock.protocol.segment.messages import (
    NO_REQUEST,
    AppendBlock,
    AppendBlockEnd,
    BeginAppendBlock,
    ConditionalAppend,
    ConditionalBlockEnd,
    EndAppendBlock,
    Event,
    Message,
    Padding,
    Part,
    PartialEvent,
    PartialMessage,
    PartialMessages,
    UnknownRequest,
)

# What the readers of both dialects share: a reader turns a stream of bytes into messages and appends. A `Reading` is a
# generator for one of them: it yields the number of bytes it needs next, is sent a view of exactly these, and returns
# the result (None: nothing of interest). It checks the limit before it yields a number, because that much memory will
# be allocated.

Reading: TypeAlias = Generator[int, memoryview, Incoming | None]


class Reader(ABC):
    dialect: ClassVar[Dialect]

    def __init__(self, role: Role, block_size_max: int) -> None:
        self._role = role
        self._block_size_max = block_size_max

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were received and copied, and wait for the rest."""
        return 0

    @abstractmethod
    def read(self) -> Reading:
        """The next message or append. Raises ProtocolError if the stream is invalid."""

    def _header(self) -> Generator[int, memoryview, tuple[int, int]]:
        """Type and length of the next message, after checking that our side may receive it."""
        kind, length = unpack_header((yield HEADER_SIZE))
        self.dialect.check_receiver(kind, self._role)
        return kind, length


# Reads the versioned dialect. A block becomes one AppendByNumber; its events are never looked at one by one.

FIELDS_SIZE_MAX = 1024
"""The most bytes around the data of an append: its fields, about 50 bytes, and what later versions may add."""

_REQUEST_ID = Struct(">q")

_ENDS = (APPEND_BLOCK_END, CONDITIONAL_BLOCK_END)
_APPENDS = (APPEND_BLOCK, CONDITIONAL_APPEND, *_ENDS)

_End: TypeAlias = AppendBlockEnd | ConditionalBlockEnd


class VersionedReader(Reader):
    dialect = VERSIONED

    def read(self) -> Reading:
        message = yield from self._message()
        match message:
            case AppendBlock():
                end = yield from self._end_of_block(message)
                return self._checked(end, _append(end, _content(message, end)))
            case AppendBlockEnd() | ConditionalBlockEnd():
                # "EndAppendBlock without a BeginAppendBlock is legal: the data is the append."
                return self._checked(message, _append(message, ()))
            case ConditionalAppend():
                return self._checked(message, _one_event(message))
            case Event() | PartialEvent():
                raise ProtocolError(f"{type(message).__name__}: outside a block")
            case Padding():
                return None
        return message

    def _message(self) -> Generator[int, memoryview, Message]:
        kind, length = unpack_header((yield HEADER_SIZE))
        if self._role is Role.SERVER and not VERSIONED.has(kind):
            return (yield from self._unknown(kind, length))
        VERSIONED.check_receiver(kind, self._role)
        if kind in _APPENDS:
            self._check_size(VERSIONED.describe(kind), length - FIELDS_SIZE_MAX)
        return VERSIONED.decode(kind, (yield length))

    def _unknown(self, kind: int, length: int) -> Generator[int, memoryview, UnknownRequest]:
        """A later version's. Requests of the public protocol that came late begin with their request id."""
        self._check_size(f"type {kind}", length)
        data = yield length
        return UnknownRequest(kind, _REQUEST_ID.unpack_from(data)[0] if length >= _REQUEST_ID.size else NO_REQUEST)

    def _end_of_block(self, block: AppendBlock) -> Generator[int, memoryview, _End]:
        # "Between begin and end only the block's own content is legal", and all of that is in the begin's frame.
        self._check_size("AppendBlock", len(block.data))
        kind, length = yield from self._header()
        if kind not in _ENDS:
            raise ProtocolError(f"{VERSIONED.describe(kind)}: a block has begun, and its end must follow")
        self._check_size(VERSIONED.describe(kind), len(block.data) + length - FIELDS_SIZE_MAX)
        end = VERSIONED.decode(kind, (yield length))
        assert isinstance(end, _End)
        return end

    def _checked(self, end: Message, append: AppendByNumber) -> AppendByNumber:
        self._check_size(type(end).__name__, append.size)
        return append

    def _check_size(self, message: str, size: int) -> None:
        if size > self._block_size_max:
            raise ProtocolError(f"{message}: an append of {size} bytes is over the limit of {self._block_size_max}")


def _one_event(append: ConditionalAppend) -> AppendByNumber:
    writer_id, number = append.writer_id, append.event_number
    return AppendByNumber(writer_id, number, 1, _pieces(append.event), append.request_id, append.expected_offset)


def _append(end: _End, content: tuple[Buffer, ...]) -> AppendByNumber:
    # "stored = block[:size of whole events] + partial event's bytes + EndAppendBlock's data"
    pieces = _pieces(*content, end.data)
    if isinstance(end, ConditionalBlockEnd):
        return AppendByNumber(end.writer_id, end.event_number, 1, pieces, end.request_id, end.expected_offset)
    if end.event_count <= 0:
        raise ProtocolError(f"AppendBlockEnd: an append of {end.event_count} events")
    if end.size_of_whole_events < 0:
        raise ProtocolError(f"AppendBlockEnd: {end.size_of_whole_events} bytes of whole events")
    return AppendByNumber(end.writer_id, end.event_number, end.event_count, pieces, end.request_id)


def _content(block: AppendBlock, end: _End) -> tuple[Buffer, ...]:
    """The bytes of the block to store: the whole events, and the partial one after them."""
    if end.writer_id != block.writer_id:
        raise ProtocolError(
            f"{type(end).__name__}: writer {end.writer_id.hex()} ends the block of {block.writer_id.hex()}"
        )
    if isinstance(end, ConditionalBlockEnd):
        return (block.data,)  # it does not contain where whole events end, so all events are whole
    whole = end.size_of_whole_events
    if not 0 <= whole <= len(block.data):
        raise ProtocolError(f"AppendBlockEnd: {whole} bytes of whole events in a block of {len(block.data)}")
    return block.data[:whole], _partial_event(memoryview(block.data)[whole:])


def _partial_event(tail: memoryview) -> memoryview:
    """The bytes of the PartialEvent that fills the rest of a block; none if that is Padding, or nothing."""
    if not tail:
        return tail
    if len(tail) < HEADER_SIZE:
        raise ProtocolError(f"AppendBlock: {len(tail)} bytes after the whole events are not a message")
    kind, length = unpack_header(tail)
    if kind not in (PADDING, PARTIAL_EVENT):
        raise ProtocolError(f"AppendBlock: {VERSIONED.describe(kind)} after the whole events")
    if length != len(tail) - HEADER_SIZE:
        raise ProtocolError(f"AppendBlock: {VERSIONED.describe(kind)} does not end where its block does")
    return tail[HEADER_SIZE:] if kind == PARTIAL_EVENT else tail[:0]


def _pieces(*buffers: Buffer) -> tuple[memoryview, ...]:
    return tuple(memoryview(buffer) for buffer in buffers if buffer)


# Reads the document's dialect. A block becomes one AppendByOffset; its events are never looked at one by one.


class DocumentReader(Reader):
    dialect = DOCUMENT

    def __init__(self, role: Role, block_size_max: int) -> None:
        super().__init__(role, block_size_max)
        self._partial = PartialMessages()

    @property
    def buffered_bytes(self) -> int:
        return self._partial.size

    def read(self) -> Reading:
        message = yield from self._message()
        match message:
            case BeginAppendBlock():
                return (yield from self._block(message))
            case Event() | EndAppendBlock():
                raise ProtocolError(f"{type(message).__name__}: outside a block")
            case Padding():
                return None
        return message

    def _message(self, *, in_block: bool = False) -> Generator[int, memoryview, Message]:
        """The next whole message. Other messages may come between the pieces of a split one, which counts where its
        last piece is.
        """
        while True:
            kind, length = yield from self._header()
            if in_block and kind not in (END_APPEND_BLOCK, PARTIAL_MESSAGE):
                raise ProtocolError(f"{DOCUMENT.describe(kind)}: a block has begun, and its end must follow")
            message = DOCUMENT.decode(kind, (yield length))
            if not isinstance(message, PartialMessage):
                return message
            if whole := self._partial.add(message):
                return self._decode_whole(whole)

    def _decode_whole(self, whole: bytearray) -> Message:
        kind, _ = unpack_header(whole)
        DOCUMENT.check_receiver(kind, self._role)
        if kind == PARTIAL_MESSAGE:
            raise ProtocolError("PartialMessage: inside a PartialMessage")
        return DOCUMENT.decode(kind, memoryview(whole).toreadonly()[HEADER_SIZE:])

    def _block(self, begin: BeginAppendBlock) -> Generator[int, memoryview, AppendByOffset]:
        self._check_length("BeginAppendBlock", begin.length)
        if begin.offset < 0:
            raise ProtocolError(f"BeginAppendBlock: offset {begin.offset}")
        content = yield begin.length
        end = yield from self._message(in_block=True)
        if not isinstance(end, EndAppendBlock):
            raise ProtocolError(f"{type(end).__name__}: a block has begun, and its end must follow")
        self._check_end(begin, end)
        if (at := _start_of_partial(content[: end.block_length])) is not None:
            pieces = yield from self._event_across_the_end(content, at, end.block_length)
            return AppendByOffset(begin.writer_id, begin.offset, end.offset, pieces)
        # "Note that this may be more or less than the number of bytes between the BeginAppendBlock and this message."
        # Less: the surplus is padding. More: the missing bytes, the rest of a partial event, follow.
        content = content[: end.block_length]
        missing = yield end.block_length - len(content)
        pieces = tuple(piece for piece in (content, missing) if piece)
        return AppendByOffset(begin.writer_id, begin.offset, end.offset, pieces)

    def _event_across_the_end(
        self, content: memoryview, at: int, block_length: int
    ) -> Generator[int, memoryview, tuple[memoryview, ...]]:
        # "It can write a partial message followed the EndAppendBlock message, followed by the remaining partial
        # message." What is stored is the event without the headers of its pieces; the block's length counts all of it.
        first = self._piece(*unpack_header(content[at:]), content[at + HEADER_SIZE :], Part.BEGIN)
        pieces, missing, part = [content[:at], first], block_length - at - len(first), Part.BEGIN
        while part is not Part.END:
            kind, length = yield from self._header()
            data = yield length
            part = Part.END if data[:1] == _END else Part.MIDDLE
            pieces.append(self._piece(kind, length, data, part))
            missing -= len(pieces[-1])
            if missing < 0:
                break
        event = sum(map(len, pieces)) - at
        if missing or event < HEADER_SIZE or _first_bytes(pieces[1:]) != pack_header(EVENT, event - HEADER_SIZE):
            raise ProtocolError(
                f"PartialMessage: the pieces are not the event that a block of {block_length} ends with"
            )
        return tuple(piece for piece in pieces if piece)

    def _piece(self, kind: int, length: int, data: memoryview, part: Part) -> memoryview:
        if kind != PARTIAL_MESSAGE:
            raise ProtocolError(f"{DOCUMENT.describe(kind)}: the rest of a partial message must follow the block")
        message = DOCUMENT.decode(kind, data)
        assert isinstance(message, PartialMessage)
        if message.part is not part or length != len(data):
            raise ProtocolError("PartialMessage: in a block it is the last message, and begins there")
        return memoryview(message.data)

    def _check_end(self, begin: BeginAppendBlock, end: EndAppendBlock) -> None:
        self._check_length("EndAppendBlock", end.block_length)
        if end.writer_id != begin.writer_id:
            raise ProtocolError(
                f"EndAppendBlock: connection {end.writer_id.hex()} ends the block of {begin.writer_id.hex()}"
            )
        if end.offset != begin.offset + end.block_length:
            raise ProtocolError(
                f"EndAppendBlock: offset {end.offset} after a block of {end.block_length} bytes at {begin.offset}"
            )

    def _check_length(self, message: str, length: int) -> None:
        if not 0 <= length <= self._block_size_max:
            raise ProtocolError(f"{message}: a block of {length} bytes, the limit is {self._block_size_max}")


_PARTIAL_TYPE = re.compile(re.escape(pack_header(PARTIAL_MESSAGE, 0)[:4]))
_END = bytes([Part.END])
_LARGE_EVENT_BYTES = 512
"""To look at an event takes as long as to search so many bytes, roughly."""
_STEPS_MIN = 16


def _start_of_partial(content: memoryview) -> int | None:
    """Where a block's content has a PartialMessage among its events. Large events are looked at one by one, which costs
    less than to search their bytes. If there are many small ones, the rest of them is only looked at if the number of
    its type is anywhere in the bytes, which hardly any block has.
    """
    at, size = 0, len(content)
    steps = _STEPS_MIN + size // _LARGE_EVENT_BYTES
    while at + HEADER_SIZE < size:
        if not steps and _PARTIAL_TYPE.search(content, at) is None:
            return None
        steps -= 1
        kind, length = HEADER.unpack_from(content, at)
        if kind == PARTIAL_MESSAGE:
            return at
        if kind != EVENT or length < 0:
            return None
        at += HEADER_SIZE + length
    return None


def _first_bytes(pieces: list[memoryview]) -> bytes:
    """The header of what was split into them."""
    found = b""
    for piece in pieces:
        found += piece[: HEADER_SIZE - len(found)]
    return found


# The memory of received bytes, while they are parsed and as long as views of them exist.

CHUNK_SIZE = 2**20
"""Large enough for a socket's whole backlog, and for few blocks to straddle two chunks. A connection has one."""

ROOM_FRACTION = 16
"""Between two messages, a chunk with less than this fraction free is replaced: many tiny reads would cost more."""


class ReceiveBuffer:
    """Bytes in by `room` and `received`, out by `take`, which returns views and copies nothing.

    A byte is never overwritten while a view of it exists: a chunk is filled from start to end, and reused only when no
    view of it is left. If a message does not fit into the rest of the chunk, the part that has arrived is copied, once,
    to a chunk large enough for all of it.
    """

    __slots__ = ("_chunk", "_chunk_size", "_end", "_needed", "_readable", "_start", "_writable")

    def __init__(self, chunk_size: int = CHUNK_SIZE) -> None:
        self._chunk_size = chunk_size
        self._needed = 1
        self._start = self._end = 0
        self._use(bytearray())  # allocated with the first byte: an idle connection needs none

    @property
    def size(self) -> int:
        """Bytes of memory that this buffer uses now, not counting older chunks that views still refer to."""
        return len(self._chunk)

    @property
    def unread(self) -> int:
        """Bytes that have arrived and have not been taken."""
        return self._end - self._start

    def room(self) -> memoryview:
        """Where to receive next; never empty. Take everything that `take` can return first."""
        unread = self.unread
        assert unread < self._needed
        free = len(self._chunk) - self._end
        if unread + free < self._needed or (unread == 0 and free * ROOM_FRACTION < self._chunk_size):
            self._move()
        return self._writable[self._end :]

    def received(self, count: int) -> None:
        """`count` bytes have been written to the start of `room`."""
        assert 0 <= count <= len(self._chunk) - self._end
        self._end += count

    def peek(self, count: int) -> memoryview | None:
        """The next `count` bytes, or None as long as they have not arrived."""
        end = self._start + count
        if end <= self._end:
            return self._readable[self._start : end]
        self._needed = count
        if self._start == self._end and len(self._chunk) > self._chunk_size:
            self._move()  # a chunk made for a large message is not kept by an idle connection
        return None

    def take(self, count: int) -> memoryview | None:
        """Like `peek`, and consumes the bytes. The caller has checked `count`: that much memory is allocated if
        necessary.
        """
        view = self.peek(count)
        if view is not None:
            self._start += count
        return view

    def _move(self) -> None:
        """Continue in a chunk that has room for what is needed, starting with the unread bytes."""
        old, start, end = self._chunk, self._start, self._end
        size = max(self._needed, self._chunk_size)
        self._readable.release()
        self._writable.release()
        self._use(old if len(old) == size and not _seen(old) else bytearray(size))
        self._start, self._end = 0, end - start
        with memoryview(old) as view:
            self._writable[: self._end] = view[start:end]

    def _use(self, chunk: bytearray) -> None:
        self._chunk = chunk
        self._writable = memoryview(chunk)
        self._readable = self._writable.toreadonly()


def _seen(chunk: bytearray) -> bool:
    """Whether a view of the chunk exists: Python does not let a bytearray change its size while one does."""
    try:
        chunk.append(chunk.pop())
    except BufferError:
        return True
    return False


class Decoder(IncrementalDecoder[Incoming]):
    """Data comes out as views of the receive buffers: nothing that can still be seen is ever overwritten. A view keeps
    its whole chunk in memory, so copy what you retain for long.
    """

    def __init__(
        self,
        role: Role,
        *,
        block_size_max: int = BLOCK_SIZE_MAX,
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        super().__init__()
        self._role = role
        self._block_size_max = block_size_max
        self._buffer = ReceiveBuffer(chunk_size)
        self._reader: Reader | None = None
        self._reading: Reading | None = None
        self._needed = 0
        self._begun = False

    @property
    def dialect(self) -> Dialect | None:
        """The peer's dialect; None until its first header has arrived."""
        return self._reader.dialect if self._reader else None

    @property
    def buffered_bytes(self) -> int:
        """The memory allocated for messages that are not complete."""
        return self._buffer.size + self._buffered_pieces

    @property
    def is_inside_message(self) -> bool:
        """Whether a message or a block has begun to arrive, and its end has not."""
        return self._begun or self._buffer.unread > 0 or self._buffered_pieces > 0

    @property
    def _buffered_pieces(self) -> int:
        return self._reader.buffered_bytes if self._reader else 0

    def get_buffer(self, sizehint: int = -1) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        self._check_usable()
        return self._buffer.room()

    def received(self, count: int) -> Iterator[Incoming]:
        self._check_usable()
        self._buffer.received(count)
        return self._each()

    def feed(self, data: Buffer) -> Iterator[Incoming]:
        """Decode bytes that are in memory already. They are consumed as the iterator advances, and copied once."""
        view = memoryview(data)
        while view:
            count = self._copy(view)
            yield from self.received(count)
            view = view[count:]

    def _copy(self, view: memoryview) -> int:
        room = self.get_buffer()
        count = min(len(room), len(view))
        room[:count] = view[:count]
        return count

    def _read(self) -> Incoming | None:
        reader = self._reader or self._choose_reader()
        while reader is not None:
            if self._reading is None:
                self._reading = reader.read()
                self._needed = next(self._reading)
            data = self._buffer.take(self._needed)
            if data is None:
                break
            try:
                self._needed = self._reading.send(data)
                self._begun = True
            except StopIteration as done:
                self._reading, self._begun = None, False
                if done.value is not None:
                    incoming: Incoming = done.value
                    return incoming
        return None

    def _choose_reader(self) -> Reader | None:
        # "A connection that opens with Hello speaks the versioned dialect, any other the document's."
        header = self._buffer.peek(HEADER_SIZE)
        if header is not None:
            kind, _ = unpack_header(header)
            reader: type[Reader] = VersionedReader if kind == HELLO else DocumentReader
            self._reader = reader(self._role, self._block_size_max)
        return self._reader
