"""Where received bytes lie while they are parsed, and afterwards, when views of them have been handed out."""

CHUNK_SIZE = 2**20
"""Large enough that a socket's whole backlog fits and that few blocks straddle two chunks. A connection holds one."""

ROOM_FRACTION = 16
"""Between two messages, a chunk with less than this fraction free is given up: receiving in driblets costs more."""


class ReceiveBuffer:
    """Bytes in by `room` and `received`, out by `take`, which gives views and copies nothing.

    A byte that any view can still see is never written again: a chunk is written from its start to its end, and goes
    back to its start only when no view of it is left. When a message does not fit into the rest of the chunk, the
    part that has arrived is copied, once, to a chunk that holds all of it.
    """

    __slots__ = ("_chunk", "_chunk_size", "_end", "_needed", "_readable", "_start", "_writable")

    def __init__(self, chunk_size: int = CHUNK_SIZE) -> None:
        self._chunk_size = chunk_size
        self._needed = 1
        self._start = self._end = 0
        self._use(bytearray(chunk_size))

    @property
    def size(self) -> int:
        """Bytes of memory that this buffer holds now, views that others keep of older chunks not included."""
        return len(self._chunk)

    @property
    def unread(self) -> int:
        """Bytes that have arrived and have not been taken."""
        return self._end - self._start

    def room(self) -> memoryview:
        """Where to receive next; never empty. Everything that `take` can give has been taken before."""
        unread = self.unread
        assert unread < self._needed
        free = len(self._chunk) - self._end
        if unread + free < self._needed or (unread == 0 and free * ROOM_FRACTION < self._chunk_size):
            self._move()
        return self._writable[self._end :]

    def received(self, count: int) -> None:
        """So many bytes have been written to the start of `room`."""
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
        """As `peek`, and the bytes are read. The caller has checked `count`: so much will be allocated if need be."""
        view = self.peek(count)
        if view is not None:
            self._start += count
        return view

    def _move(self) -> None:
        """Go on at the start of a chunk that has room for what is needed, the unread bytes first in it."""
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
