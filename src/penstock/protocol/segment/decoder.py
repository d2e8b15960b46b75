"""Bytes in, messages and appends out: one decoder for each connection, at either end of it."""

from collections.abc import Iterator

from penstock.core.errors import ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.segment.append import BLOCK_SIZE_MAX, Incoming
from penstock.protocol.segment.dialect import Dialect, Role
from penstock.protocol.segment.document_reader import DocumentReader
from penstock.protocol.segment.frame import HEADER_SIZE, unpack_header
from penstock.protocol.segment.reader import Reader, Reading
from penstock.protocol.segment.receive_buffer import CHUNK_SIZE, ReceiveBuffer
from penstock.protocol.segment.versioned import HELLO
from penstock.protocol.segment.versioned_reader import VersionedReader


class Decoder:
    """Receive into `get_buffer`, then say how much with `received`; the methods fit an asyncio.BufferedProtocol.

    Data comes out as views of the receive buffers: nothing that can still be seen is ever overwritten. A view holds its
    whole chunk in memory, so what is to be kept for long wants copying.

    A ProtocolError is final: whatever is received afterwards raises it again, and the connection must be closed.
    """

    def __init__(
        self,
        role: Role,
        *,
        block_size_max: int = BLOCK_SIZE_MAX,
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        self._role = role
        self._block_size_max = block_size_max
        self._buffer = ReceiveBuffer(chunk_size)
        self._reader: Reader | None = None
        self._reading: Reading | None = None
        self._needed = 0
        self._begun = False
        self._failure: str | None = None

    @property
    def dialect(self) -> Dialect | None:
        """What the peer speaks; None until its first header has arrived."""
        return self._reader.dialect if self._reader else None

    @property
    def held_bytes(self) -> int:
        """Memory held for what has not come out yet."""
        return self._buffer.size + self._held_pieces

    @property
    def is_inside_message(self) -> bool:
        """Whether a message or a block has begun to arrive, and its end has not."""
        return self._begun or self._buffer.unread > 0 or self._held_pieces > 0

    @property
    def _held_pieces(self) -> int:
        return self._reader.held_bytes if self._reader else 0

    def get_buffer(self, sizehint: int = -1) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        """Where to receive next; never empty. What `received` gave last has been used up before."""
        self._check_usable()
        return self._buffer.room()

    def received(self, count: int) -> Iterator[Incoming]:
        """What the next `count` bytes, now at the start of `get_buffer`, complete, in order.

        ProtocolError comes after everything that was well before it.
        """
        self._check_usable()
        self._buffer.received(count)
        return iter(self._next, None)

    def feed(self, data: Buffer) -> Iterator[Incoming]:
        """The same for bytes that are in memory already: they are taken as the iterator goes on, and copied once."""
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

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise ProtocolError(self._failure)

    def _next(self) -> Incoming | None:
        """What comes next, or None as long as bytes are missing for it."""
        self._check_usable()
        try:
            return self._read()
        except ProtocolError as error:
            self._failure = str(error)
            raise

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
