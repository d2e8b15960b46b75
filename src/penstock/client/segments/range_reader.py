"""Reading a range of a segment as fast as the worker can give it: the next request is out while a reply is used."""

from collections.abc import Generator
from typing import NamedTuple, Protocol

from penstock.client.segments.connections import BlockingConnection
from penstock.client.segments.failures import RETRY_SECONDS, Interrupted, error_of, retrying
from penstock.core.errors import Damaged, PenstockError, ProtocolError
from penstock.protocol.segment import VERSIONED, Failure, ReadSegment, Reply, SegmentRead

READ_BYTES = 2**20
"""Asked for at a time. A worker gives whole appends, about so much at most."""


class Connected(Protocol):
    """Where the connection comes from; it is kept there, for the next range."""

    def connected(self) -> BlockingConnection:
        """Raises Interrupted while the worker is away."""

    def drop(self) -> None:
        """It is of no use any more."""


class Piece(NamedTuple):
    """Bytes of a segment; `data` is a view of a receive buffer that is used again when the next piece is asked for."""

    offset: int
    data: memoryview


def read_range(
    link: Connected, segment: str, start: int, end: int, retry_seconds: float = RETRY_SECONDS
) -> Generator[Piece, None, None]:
    """The bytes [start, end), which are durable, in order and in pieces. A lost connection is made again, and reading
    goes on where it was, for up to `retry_seconds` without progress.

    Raises what the worker refuses, SegmentTruncated among it, and Damaged if the segment ends before `end`.
    """
    asked = _Asked(link, segment, min(start, end), end)
    try:
        while asked.offset < end:
            for attempt in retrying(retry_seconds, Interrupted):
                with attempt:
                    piece = asked.next_piece()
            yield piece
            del piece  # or its memory could not be used again
    finally:
        asked.forget()


class _Asked:
    """The one request that is out, if any: it asks for what lies at `offset`."""

    def __init__(self, link: Connected, segment: str, offset: int, end: int) -> None:
        self.offset = offset
        self._end = end
        self._link = link
        self._segment = segment
        self._connection: BlockingConnection | None = None
        self._request_id = 0
        self._reply: Reply | None = None

    def next_piece(self) -> Piece:
        """The bytes at `offset`, which goes on behind them; asks for the next ones before it returns."""
        try:
            if self._connection is None:
                self._ask(self._link.connected())
            piece = self._piece(self._answer())
        except PenstockError as error:
            self._give_up(error)
            raise
        self.offset += len(piece.data)
        self._ask_ahead()
        return piece

    def _ask_ahead(self) -> None:
        """What goes wrong here is found, and tried again, when the next piece is wanted."""
        if self.offset < self._end:
            try:
                self._ask(self._link.connected())
            except PenstockError as error:
                self._give_up(error)

    def _give_up(self, error: PenstockError) -> None:
        self.forget()
        if isinstance(error, Interrupted | ProtocolError):
            self._link.drop()

    def forget(self) -> None:
        if self._connection is not None:
            self._connection.session.forget(self._request_id)
        self._connection = self._reply = None

    def on_reply(self, reply: Reply) -> None:
        self._reply = reply

    def on_lost(self, error: PenstockError) -> None:
        pass

    def _ask(self, connection: BlockingConnection) -> None:
        self._connection = connection
        self._request_id = connection.session.expect(self)
        length = min(READ_BYTES, self._end - self.offset)
        request = ReadSegment(self._segment, self.offset, length, request_id=self._request_id)
        connection.send([VERSIONED.encode(request)])
        connection.push()  # and no more: received bytes would need a buffer beside the one that is looked at

    def _answer(self) -> Reply:
        assert self._connection is not None
        self._connection.exchange_until(lambda: self._reply is not None)
        reply = self._reply
        assert reply is not None
        self.forget()
        return reply

    def _piece(self, reply: Reply) -> Piece:
        if isinstance(reply, Failure):
            raise error_of(reply)
        if not isinstance(reply, SegmentRead):
            raise ProtocolError(f"{type(reply).__name__} is not a reply to ReadSegment")
        data = memoryview(reply.data)[: self._end - self.offset]
        if not data:
            raise Damaged(f"segment {self._segment!r} ends at {self.offset}, before {self._end}")
        return Piece(self.offset, data)
