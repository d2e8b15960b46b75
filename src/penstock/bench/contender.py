"""What a benchmark needs to know of each program that it compares."""

import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from penstock.bench.process import Server
from penstock.core.errors import PenstockError
from penstock.core.types import Buffer


class BenchmarkFailed(PenstockError):
    """A contender did not do what it must for its figures to mean anything."""

    hint = "Run it again: the figures of a run that failed mean nothing."


class Link(Protocol):
    """One connection of the load generator. It does the least that a driver can do: buffers are
    built beforehand, and no Python runs per event.
    """

    sock: socket.socket
    events: int
    """Events in one batch."""

    def batch(self) -> Sequence[Buffer]:
        """The next batch's bytes. Up to the contender's window are in flight at a time."""
        ...

    def acked(self, data: bytes) -> int:
        """The number of events that these bytes from the server acknowledge."""
        ...


class Reader(Protocol):
    """One connection that reads back what was written, a request at a time."""

    sock: socket.socket
    size: int
    """Bytes there are to read."""

    def read(self, offset: int, into: memoryview) -> int:
        """Ask for `len(into)` bytes at `offset` (below `size`), and return how many came."""
        ...


class Target(Protocol):
    """How a generator process connects; a plain description that can be sent to it."""

    def connect(self, index: int) -> Link: ...


class ReadTarget(Protocol):
    """The same for reading."""

    def connect_reader(self) -> Reader: ...


class Contender(ABC):
    """One program under comparison. Its server is a process of its own, fresh in every round."""

    name: ClassVar[str]
    install: ClassVar[str] = ""
    """The command that installs it where it is missing."""

    window: int = 1
    """Batches in flight per connection: as many as the contender is fastest with."""

    def installed(self) -> bool:
        return True

    @abstractmethod
    def start(self, directory: Path) -> Server:
        """Start its server with all data below `directory`; it serves when this returns."""

    @abstractmethod
    def load(self, server: Server) -> Target:
        """Connections that append batches."""

    @abstractmethod
    def probe(self, server: Server) -> Target:
        """Connections that append one event at a time."""

    @abstractmethod
    def stored(self, server: Server) -> int:
        """How many events the server says that it holds."""

    def reading(self, server: Server) -> ReadTarget | None:  # noqa: ARG002
        """How to read back what `load` wrote through its first connection; None if not compared."""
        return None
