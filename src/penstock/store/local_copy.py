"""The bytes of a file in a bucket, on the local disk and in memory."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from crc32c import crc32c

from penstock.core.types import Buffer
from penstock.store.files import File
from penstock.store.spares import OUT_OF_SPACE
from penstock.store.written_sums import WrittenSums


class _Held(NamedTuple):
    start: int
    data: Buffer

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class _Span(NamedTuple):
    start: int
    end: int


class LocalCopy:
    """Writes may be put off, to be made by another thread, or held in memory, and given up when the bucket has them:
    they are read as if they had been made already. Any thread may call any method.

    The file is never synced, and its disk may return other bytes than were written: their checksums are in memory.
    """

    def __init__(self, file: File, make_room: Callable[[], bool], fetch: Callable[[int, int], bytes]) -> None:
        """`make_room` is called when the disk is full; it returns False if that did not help. `fetch` reads what was
        given up (offset, length) from the bucket.
        """
        self._file = file
        self._make_room = make_room
        self._fetch = fetch
        self._lock = Lock()
        self._put_off: list[tuple[int, Buffer]] = []
        self._held: deque[_Held] = deque()
        self._held_bytes = 0
        self._given_up: list[_Span] = []
        self._sums = WrittenSums()

    @property
    def has_put_off(self) -> bool:
        return bool(self._put_off)

    @property
    def is_complete(self) -> bool:
        """Whether the file has all bytes."""
        return not (self._put_off or self._held or self._given_up)

    # Writing.

    def put_off(self, offset: int, data: Buffer) -> None:
        with self._lock:
            self._put_off.append((offset, data))
            self._sums.add(offset, data)

    def hold(self, offset: int, data: Buffer) -> None:
        """Keep these bytes in memory alone. They come after everything that was written before."""
        with self._lock:
            self._held.append(_Held(offset, data))
            self._held_bytes += len(data)
            self._sums.add(offset, data)

    def give_up(self, durable: int, bytes_max: int) -> None:
        """Hold no more than this; only what the bucket has is given up, which is everything before `durable`."""
        with self._lock:
            while self._held_bytes > bytes_max and self._held[0].end <= durable:
                start, data = self._held.popleft()
                self._held_bytes -= len(data)
                self._given_up.append(_Span(start, start + len(data)))

    def complete(self) -> None:
        """Make the writes that were put off. Raises OSError; they are tried again next time."""
        with self._lock:
            self._complete()

    def _complete(self) -> None:
        while self._put_off:
            self._write(*self._put_off[0])
            del self._put_off[0]

    def write(self, offset: int, data: Buffer) -> None:
        """Raises OSError: then the caller may try it again. Raises what `fetch` raises if it replaces bytes that were
        given up.
        """
        with self._lock:
            self._complete()
            self._bring_back(offset, offset + len(data))
            self._sums.forget(offset, offset + len(data))
            self._write(offset, data)
            self._sums.add(offset, data)

    def _bring_back(self, start: int, end: int) -> None:
        """The file gets the bytes around a write that replaces some of what it lacks."""
        for held in [one for one in self._held if _overlap(one, start, end)]:
            self._write(*held)
            self._held.remove(held)
            self._held_bytes -= len(held.data)
        for span in [one for one in self._given_up if _overlap(one, start, end)]:
            self._write(span.start, self._fetch(span.start, span.end - span.start))
            self._given_up.remove(span)

    def _write(self, offset: int, data: Buffer) -> None:
        while True:
            try:
                return self._file.write(offset, [data])
            except OSError as error:
                if error.errno not in OUT_OF_SPACE or not self._make_room():
                    raise

    def truncate(self, size: int) -> None:
        with self._lock:
            self._complete()
            self._held = deque(_Held(one.start, one.data[: size - one.start]) for one in self._held if one.start < size)
            self._held_bytes = sum(len(one.data) for one in self._held)
            self._given_up = [_Span(one.start, min(one.end, size)) for one in self._given_up if one.start < size]
            self._sums.truncate(size)
            self._file.truncate(size)

    # Reading.

    def is_here(self, offset: int, length: int) -> bool:
        """Whether `read` needs not fetch these bytes. Does not wait for a call that does."""
        return not any(_overlap(one, offset, offset + length) for one in [*self._given_up])

    def read(self, offset: int, length: int) -> bytes:
        """May be shorter, if the rest is zeros. Raises what `fetch` raises."""
        with self._lock:
            self._complete()
            elsewhere = [*self._elsewhere(offset, offset + length)]
            is_elsewhere = len(elsewhere) == 1 and elsewhere[0].start <= offset and offset + length <= elsewhere[0].end
            data = b"" if is_elsewhere else self._file.read(offset, length)
        # Not while the lock is held: it takes a while, and the owner's lock, under which the file may be cut off.
        if is_elsewhere:
            return self._part(elsewhere[0], offset, offset + length)
        if not elsewhere:
            return data
        whole = bytearray(data.ljust(length, b"\0"))
        for one in elsewhere:
            start, end = max(one.start, offset), min(one.end, offset + length)
            whole[start - offset : end - offset] = self._part(one, start, end)
        return bytes(whole)

    def read_verified(self, start: int, end: int) -> bytes | None:
        """Bytes as they were written; None if the disk returns others, or fails. Raises what `fetch` raises."""
        with self._lock:
            sums = self._sums.overlapping(start, end)
        found = bytearray(end - start)
        for each in sums:
            try:
                data = self.read(each.start, each.end - each.start).ljust(each.end - each.start, b"\0")
            except OSError:
                return None
            if crc32c(data) != each.checksum:
                return None
            first, last = max(each.start, start), min(each.end, end)
            found[first - start : last - start] = memoryview(data)[first - each.start : last - each.start]
        return bytes(found)

    def is_intact(self, start: int) -> bool:
        """Whether the disk returns the bytes from `start` on as they were written. Raises what `fetch` raises."""
        with self._lock:
            end = self._sums.end
        return end <= start or self.read_verified(start, end) is not None

    def mend(self, content: Buffer) -> bool:
        """Write what the disk has lost again, from the content of the whole file. Returns whether it had lost
        something.
        """
        with self._lock:
            sums = self._sums.overlapping(0, len(content))
        wrong = [each for each in sums if self.read_verified(each.start, each.end) is None]
        view = memoryview(content)
        for each in wrong:
            data = view[each.start : each.end]
            with self._lock:
                if each not in self._sums or each.checksum not in (None, crc32c(data)):
                    continue  # it was written again in the meantime
                with suppress(OSError):
                    self._bring_back(each.start, each.end)
                    self._write(each.start, data)
                    self._sums.add(each.start, data)
        return bool(wrong)

    def _elsewhere(self, start: int, end: int) -> Iterator[_Held | _Span]:
        """What the file lacks of this range."""
        return (one for several in (self._given_up, self._held) for one in several if _overlap(one, start, end))

    def _part(self, one: _Held | _Span, start: int, end: int) -> bytes:
        if isinstance(one, _Span):
            return self._fetch(start, end - start)
        return bytes(one.data[start - one.start : end - one.start])


def _overlap(one: _Held | _Span, start: int, end: int) -> bool:
    return one.start < end and start < one.end
