"""What a connector may have stored that is not durable yet: the memory that its peers may occupy."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from penstock.core.types import Position
from penstock.store.journal import Durability

WINDOW_BYTES = 8 << 20
"""As a session of the connector protocol has it; one send may go beyond."""

_CHECK_SECONDS = 1.0


class Window:
    """Of one host, shared by its streams."""

    def __init__(self, durability: Durability, check: Callable[[], None], size: int = WINDOW_BYTES) -> None:
        """`check` raises StoreFailed where nothing will become durable any more."""
        self._durability = durability
        self._check = check
        self._size = size
        self.in_flight_bytes = 0
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_open(self) -> bool:
        return self.in_flight_bytes < self._size

    async def wait(self) -> None:
        """Return when it may be open. Raises StoreFailed."""
        while not self.is_open:
            self._check()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._open.wait()

    def sent(self, position: Position, size: int) -> None:
        """So many bytes are durable when the journal is, up to this position."""
        self.in_flight_bytes += size
        if not self.is_open:
            self._open.clear()
        self._durability.after(position, partial(self._settled, size))

    def _settled(self, size: int) -> None:
        self.in_flight_bytes -= size
        if self.is_open:
            self._open.set()
