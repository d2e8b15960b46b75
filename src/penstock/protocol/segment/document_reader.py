"""Reads the document's dialect. A block becomes one AppendByOffset; its events are never looked at one by one."""

from collections.abc import Generator

from penstock.core.errors import ProtocolError
from penstock.protocol.segment.append import AppendByOffset
from penstock.protocol.segment.dialect import Role
from penstock.protocol.segment.document import DOCUMENT, END_APPEND_BLOCK, PARTIAL_MESSAGE
from penstock.protocol.segment.frame import HEADER_SIZE, unpack_header
from penstock.protocol.segment.messages import (
    BeginAppendBlock,
    EndAppendBlock,
    Event,
    Message,
    Padding,
    PartialMessage,
)
from penstock.protocol.segment.partial_messages import PartialMessages
from penstock.protocol.segment.reader import Reader, Reading


class DocumentReader(Reader):
    dialect = DOCUMENT

    def __init__(self, role: Role, block_size_max: int) -> None:
        super().__init__(role, block_size_max)
        self._partial = PartialMessages()

    @property
    def held_bytes(self) -> int:
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
        """The next whole message. Others may stand between the pieces of one; it counts where its end stands."""
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
        # "Note that this may be more or less than the number of bytes between the BeginAppendBlock and this message."
        # Less: the surplus is padding. More: the missing bytes, the rest of a partial event, follow.
        content = content[: end.block_length]
        missing = yield end.block_length - len(content)
        pieces = tuple(piece for piece in (content, missing) if piece)
        return AppendByOffset(begin.writer_id, begin.offset, end.offset, pieces)

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
