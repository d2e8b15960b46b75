"""Reads the versioned dialect. A block becomes one AppendByNumber; its events are never looked at one by one."""

from collections.abc import Generator
from typing import TypeAlias

from penstock.core.errors import ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.segment.append import AppendByNumber
from penstock.protocol.segment.frame import HEADER_SIZE, unpack_header
from penstock.protocol.segment.messages import (
    AppendBlock,
    AppendBlockEnd,
    ConditionalAppend,
    ConditionalBlockEnd,
    Event,
    Message,
    Padding,
    PartialEvent,
)
from penstock.protocol.segment.reader import Reader, Reading
from penstock.protocol.segment.versioned import (
    APPEND_BLOCK,
    APPEND_BLOCK_END,
    CONDITIONAL_APPEND,
    CONDITIONAL_BLOCK_END,
    PADDING,
    PARTIAL_EVENT,
    VERSIONED,
)

FIELDS_SIZE_MAX = 1024
"""What may stand around the data of an append: its fields, some 50 bytes, and what later versions may add to them."""

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
        kind, length = yield from self._header()
        if kind in _APPENDS:
            self._check_size(VERSIONED.describe(kind), length - FIELDS_SIZE_MAX)
        return VERSIONED.decode(kind, (yield length))

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
    """What of the block is to be stored: the whole events, and the bytes of the partial one behind them."""
    if end.writer_id != block.writer_id:
        raise ProtocolError(
            f"{type(end).__name__}: writer {end.writer_id.hex()} ends the block of {block.writer_id.hex()}"
        )
    if isinstance(end, ConditionalBlockEnd):
        return (block.data,)  # it does not say where whole events end, so there is nothing but whole events
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
