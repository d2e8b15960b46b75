"""What the decoders of both protocols share: bytes go in as they arrive, whole messages come out."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

from penstock.core.errors import ProtocolError

T = TypeVar("T")


class MessageReader(ABC, Generic[T]):
    """Reads messages until the bytes are invalid.

    A ProtocolError comes after everything that was valid before it. It is final: from then on every call raises it
    again, and the connection must be closed.
    """

    def __init__(self) -> None:
        self._failure: str | None = None

    @abstractmethod
    def _read(self) -> T | None:
        """The next message, or None while it is incomplete."""

    def _each(self) -> Iterator[T]:
        """All complete messages, in order."""
        return iter(self._next, None)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise ProtocolError(self._failure)

    def _next(self) -> T | None:
        self._check_usable()
        try:
            return self._read()
        except ProtocolError as error:
            self._failure = str(error)
            self._discard()
            raise

    def _discard(self) -> None:
        """Called when the bytes are invalid: release what is buffered."""


class IncrementalDecoder(MessageReader[T]):
    """Receive into `get_buffer`, then pass the count to `received`; the methods fit an asyncio.BufferedProtocol."""

    @abstractmethod
    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Where to receive next; never empty. The caller must have consumed what `received` returned last."""

    @abstractmethod
    def received(self, count: int) -> Iterator[T]:
        """The messages completed by the next `count` bytes, which are at the start of `get_buffer`, in order."""
