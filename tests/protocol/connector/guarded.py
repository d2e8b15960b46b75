"""Memory between two pages that must not be touched: reading or writing one byte too far kills the process."""

import ctypes
import mmap

PAGES = 16
_NO_ACCESS = 0


class Guarded:
    """Room for `size` bytes, with a forbidden page directly before its start and directly behind its end."""

    def __init__(self) -> None:
        page = mmap.PAGESIZE
        self.size = PAGES * page
        self._memory = mmap.mmap(-1, self.size + 2 * page)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + page
        for address in (self._start - page, self._start + self.size):
            self._forbid(address, page)

    @staticmethod
    def _forbid(address: int, size: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), _NO_ACCESS):
            raise OSError(ctypes.get_errno(), "mprotect")

    def at_start(self, data: bytes) -> memoryview:
        """The bytes behind the first forbidden page."""
        return self._put(data, self._start)

    def at_end(self, data: bytes) -> memoryview:
        """The bytes before the second one."""
        return self._put(data, self._start + self.size - len(data))

    def _put(self, data: bytes, address: int) -> memoryview:
        view = memoryview((ctypes.c_ubyte * len(data)).from_address(address)).cast("B")
        view[:] = data
        return view
