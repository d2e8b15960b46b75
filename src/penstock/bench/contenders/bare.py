"""The bare loop's client: blocks out, counts of durable bytes in."""

import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from penstock.bench import events
from penstock.bench.contender import Contender
from penstock.bench.contenders.bare_server import COUNT, READ_REQUEST
from penstock.bench.drive import receive_exactly
from penstock.bench.process import Server, connect, ports_file, start_server


class BareLink:
    def __init__(self, sock: socket.socket, block: bytes) -> None:
        self.sock = sock
        self.events = len(block) // events.STORED_BYTES
        self._batch = (block,)
        self._acked = 0
        self._rest = b""

    def batch(self) -> tuple[bytes]:
        return self._batch

    def acked(self, data: bytes) -> int:
        """Counts are totals, so only the last whole one matters; bytes of a part of an event do
        not make an event.
        """
        data = self._rest + data
        whole = len(data) // COUNT.size * COUNT.size
        self._rest = data[whole:]
        if not whole:
            return 0
        (durable,) = COUNT.unpack_from(data, whole - COUNT.size)
        before, self._acked = self._acked, int(durable) // events.STORED_BYTES
        return self._acked - before


class BareReader:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.size: int = COUNT.unpack(sock.recv(COUNT.size, socket.MSG_WAITALL))[0]

    def read(self, offset: int, into: memoryview) -> int:
        count = min(len(into), self.size - offset)
        self.sock.sendall(READ_REQUEST.pack(offset, count))
        receive_exactly(self.sock, into[:count])
        return count


@dataclass(frozen=True, slots=True)
class BareTarget:
    port: int
    events: int

    def connect(self, index: int) -> BareLink:  # noqa: ARG002
        return BareLink(connect(self.port), events.block(self.events))

    def connect_reader(self) -> BareReader:
        return BareReader(connect(self.port))


class Bare(Contender):
    """Receive, write, fdatasync, and nothing else: as fast as this machine can be."""

    name = "bare"

    def __init__(self, block_bytes: int, window: int) -> None:
        self._events = events.events_in(block_bytes)
        self.window = window

    def start(self, directory: Path) -> Server:
        module = "penstock.bench.contenders.bare_server"
        command = [sys.executable, "-m", module, str(directory)]
        return start_server(command, directory, ports_file(directory / "ports.json"))

    def load(self, server: Server) -> BareTarget:
        return BareTarget(server.ports["append"], self._events)

    def probe(self, server: Server) -> BareTarget:
        return BareTarget(server.ports["append"], 1)

    def reading(self, server: Server) -> BareTarget:
        return BareTarget(server.ports["read"], 1)

    def stored(self, server: Server) -> int:
        return (server.directory / "bare.log").stat().st_size // events.STORED_BYTES
