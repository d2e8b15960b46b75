"""What the readers of both dialects share: a reader turns a stream of bytes into messages and appends.

A `Reading` is a generator for one of them: it yields how many bytes it needs next, is sent a view of just these, and
returns what they meant (None: nothing that concerns anyone). A number is yielded only after its limit has been
checked, for so much memory will be allocated.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import ClassVar, TypeAlias

from penstock.protocol.segment.append import Incoming
from penstock.protocol.segment.dialect import Dialect, Role
from penstock.protocol.segment.frame import HEADER_SIZE, unpack_header

Reading: TypeAlias = Generator[int, memoryview, Incoming | None]


class Reader(ABC):
    dialect: ClassVar[Dialect]

    def __init__(self, role: Role, block_size_max: int) -> None:
        self._role = role
        self._block_size_max = block_size_max

    @property
    def held_bytes(self) -> int:
        """Bytes that were received and copied, and wait for more."""
        return 0

    @abstractmethod
    def read(self) -> Reading:
        """The next message or append. ProtocolError when the stream cannot go on like this."""

    def _header(self) -> Generator[int, memoryview, tuple[int, int]]:
        """Type and length of the next message, which is one for our side."""
        kind, length = unpack_header((yield HEADER_SIZE))
        self.dialect.check_receiver(kind, self._role)
        return kind, length
