"""The bytes of a file in a bucket, on the local disk."""

from collections.abc import Callable
from threading import Lock

from penstock.core.types import Buffer
from penstock.store.files import File
from penstock.store.spares import OUT_OF_SPACE


class LocalCopy:
    """Writes may be put off, to be made by another thread: they are read as if they had been made already. Any thread
    may call any method.
    """

    def __init__(self, file: File, make_room: Callable[[], bool]) -> None:
        """`make_room` is called when the disk is full; it returns False if that did not help."""
        self._file = file
        self._make_room = make_room
        self._lock = Lock()
        self._put_off: list[tuple[int, Buffer]] = []

    @property
    def is_complete(self) -> bool:
        return not self._put_off

    def put_off(self, offset: int, data: Buffer) -> None:
        with self._lock:
            self._put_off.append((offset, data))

    def complete(self) -> None:
        """Make the writes that were put off. Raises OSError; they are tried again next time."""
        with self._lock:
            self._complete()

    def _complete(self) -> None:
        while self._put_off:
            self._write(*self._put_off[0])
            del self._put_off[0]

    def write(self, offset: int, data: Buffer) -> None:
        """Raises OSError: then the caller may try it again."""
        with self._lock:
            self._complete()
            self._write(offset, data)

    def _write(self, offset: int, data: Buffer) -> None:
        while True:
            try:
                return self._file.write(offset, [data])
            except OSError as error:
                if error.errno not in OUT_OF_SPACE or not self._make_room():
                    raise

    def read(self, offset: int, length: int) -> bytes:
        self.complete()
        return self._file.read(offset, length)

    def truncate(self, size: int) -> None:
        self.complete()
        self._file.truncate(size)
