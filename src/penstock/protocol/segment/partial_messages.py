"""Puts messages together again that were cut into pieces (document's dialect)."""

from penstock.core.errors import ProtocolError
from penstock.protocol.segment.frame import FRAME_SIZE_MAX, HEADER_SIZE, unpack_header
from penstock.protocol.segment.messages import Part, PartialMessage


class PartialMessages:
    """At most one message is in pieces at a time; its pieces are copied, so it holds up no receive buffer."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: bytearray | None = None

    @property
    def size(self) -> int:
        """Bytes of pieces that wait for their end."""
        return len(self._pieces or b"")

    def add(self, piece: PartialMessage) -> bytearray | None:
        """The whole message, header included, once its end has come. ProtocolError for a piece out of order."""
        pieces = self._expecting(piece.part)
        if len(pieces) + len(piece.data) > FRAME_SIZE_MAX:
            raise ProtocolError(f"PartialMessage: the pieces are over the limit of {FRAME_SIZE_MAX} bytes")
        pieces += piece.data
        self._pieces = None if piece.part is Part.END else pieces
        return _whole(pieces) if piece.part is Part.END else None

    def _expecting(self, part: Part) -> bytearray:
        """The pieces so far."""
        if part is Part.BEGIN:
            # "It is not valid to attempt to start a new partial message before completing the previous one."
            if self._pieces is not None:
                raise ProtocolError("PartialMessage: begin before the end of the previous one")
            return bytearray()
        if self._pieces is None:
            raise ProtocolError(f"PartialMessage: {part.name.lower()} without a begin")
        return self._pieces


def _whole(message: bytearray) -> bytearray:
    if len(message) < HEADER_SIZE:
        raise ProtocolError(f"PartialMessage: {len(message)} bytes in all are not a message")
    kind, length = unpack_header(message)
    if length != len(message) - HEADER_SIZE:
        raise ProtocolError(
            f"PartialMessage: {len(message) - HEADER_SIZE} bytes in all for a message of type {kind} that has {length}"
        )
    return message
