"""Reads a range of a segment: from the journal's files or objects where that is possible, otherwise as fast as the
worker can send it, with one request always in flight.
"""

from collections.abc import Generator
from contextlib import closing
from typing import NamedTuple

from penstock.client.segments.connections import BlockingConnection, Connected
from penstock.client.segments.failures import RETRY_SECONDS, Interrupted, error_of, retrying
from penstock.client.segments.short_circuit import ShortCircuit
from penstock.core.errors import Damaged, PenstockError, ProtocolError
from penstock.protocol.segment import VERSIONED, Failure, ReadSegment, Reply, SegmentRead

READ_BYTES = 2**20
"""Requested at a time. A worker returns whole appends, about this much at most."""

FALLBACK_BYTES = 64 << 20
"""Over the socket before the journal's files are tried again: what failed may be one chapter, and a range has many."""


class Piece(NamedTuple):
    """Bytes of a segment; `data` is a view of a receive buffer that is reused for the next piece."""

    offset: int
    data: memoryview


def read_range(
    link: Connected,
    segment: str,
    start: int,
    end: int,
    retry_seconds: float = RETRY_SECONDS,
    files: ShortCircuit | None = None,
) -> Generator[Piece, None, None]:
    """The bytes [start, end), which are durable, in order and in pieces. After a lost connection it reconnects and
    continues, for up to `retry_seconds` without progress. `files`: where to read first, as far as that is possible.

    Raises the worker's error, such as SegmentTruncated, and Damaged if the segment ends before `end`.
    """
    while start < end:
        upto = end
        if files is not None:
            with closing(files.read(link, segment, start, end)) as found:
                for offset, data in found:
                    start = offset + len(data)
                    yield Piece(offset, data)
            upto = min(start + FALLBACK_BYTES, end)
        yield from _by_socket(link, segment, start, upto, retry_seconds)
        start = upto


def _by_socket(
    link: Connected, segment: str, start: int, end: int, retry_seconds: float
) -> Generator[Piece, None, None]:
    asked = _Asked(link, segment, start, end)
    try:
        while asked.offset < end:
            for attempt in retrying(retry_seconds, Interrupted):
                with attempt:
                    piece = asked.next_piece()
            yield piece
            del piece  # or its memory could not be reused
    finally:
        asked.forget()


class _Asked:
    """The one request in flight, if any: it requests the bytes at `offset`."""

    def __init__(self, link: Connected, segment: str, offset: int, end: int) -> None:
        self.offset = offset
        self._end = end
        self._link = link
        self._segment = segment
        self._connection: BlockingConnection | None = None
        self._request_id = 0
        self._reply: Reply | None = None

    def next_piece(self) -> Piece:
        """The bytes at `offset`, which then advances; requests the next ones before it returns."""
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
        """A failure here is noticed, and retried, when the next piece is requested."""
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
        request = ReadSegment(self._segment, self.offset, length, connection.session.token, self._request_id)
        connection.send([VERSIONED.encode(request)])
        connection.push()  # only send: receiving would need another buffer besides the one in use

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
