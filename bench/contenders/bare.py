"""The bare loop, the physical limit: receive, write, fdatasync, acknowledge, and nothing else.

There is no framing: all bytes of all connections go to the end of one file in the order of their arrival, and the
server reports to a connection, in 8 bytes, how many of its own are durable. One turn of the loop takes all that has
arrived, so that one fdatasync serves all connections. The server is this module, run as a program:

    python -m bench.contenders.bare DIRECTORY
"""

import gc
import json
import os
import selectors
import socket
import struct
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from bench import events
from bench.contender import Contender
from bench.load import receive_exactly
from bench.processes import Server, connect, ports_file, start_server

TURN_BYTES_MAX = 2 << 20
"""What one turn may receive before it syncs. Measured from 1 to 8 MiB: less makes more syncs, more
makes the buffer fall out of the processor's cache."""

COUNT = struct.Struct(">q")
READ_REQUEST = struct.Struct(">qq")


class Peer:
    """One appending connection."""

    __slots__ = ("durable", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.durable = 0


class AppendLoop:
    """Serves any number of appending connections with one thread."""

    def __init__(self, listener: socket.socket, fd: int) -> None:
        self._listener = listener
        self._fd = fd
        self._buffer = memoryview(bytearray(TURN_BYTES_MAX))
        self._selector = selectors.EpollSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        while True:
            peers: list[Peer] = []
            for key, _ in self._selector.select():
                if key.data is None:
                    self._accept()
                else:
                    peers.append(key.data)
            self._turn(peers)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(sock, selectors.EVENT_READ, Peer(sock))

    def _turn(self, peers: list[Peer]) -> None:
        used = 0
        for waiting, peer in zip(range(len(peers), 0, -1), peers, strict=True):
            share = (TURN_BYTES_MAX - used) // waiting
            count = peer.sock.recv_into(self._buffer[used : used + share])
            if not count:
                self._selector.unregister(peer.sock)
            peer.durable += count
            used += count
        if used:
            os.write(self._fd, self._buffer[:used])
            os.fdatasync(self._fd)
            for peer in peers:
                peer.sock.send(COUNT.pack(peer.durable))


def read_loop(listener: socket.socket, fd: int) -> None:
    """Serve reads forever, one connection after the other: the file's size once, then the bytes
    of each (offset, length), straight from the page cache.
    """
    while True:
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with sock:
            sock.sendall(COUNT.pack(os.fstat(fd).st_size))
            while request := sock.recv(READ_REQUEST.size, socket.MSG_WAITALL):
                offset, length = READ_REQUEST.unpack(request)
                end = offset + length
                while offset < end:
                    offset += os.sendfile(sock.fileno(), fd, offset, end - offset)


def main(directory: Path) -> None:
    gc.disable()
    fd = os.open(directory / "bare.log", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND, 0o600)
    append = socket.create_server(("127.0.0.1", 0))
    read = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=read_loop, args=(read, fd), daemon=True).start()
    ports = {"append": append.getsockname()[1], "read": read.getsockname()[1]}
    (directory / "ports.json").write_text(json.dumps(ports))
    AppendLoop(append, fd).run()


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
        command = [sys.executable, "-m", "bench.contenders.bare", str(directory)]
        return start_server(command, directory, ports_file(directory / "ports.json"))

    def load(self, server: Server) -> BareTarget:
        return BareTarget(server.ports["append"], self._events)

    def probe(self, server: Server) -> BareTarget:
        return BareTarget(server.ports["append"], 1)

    def reading(self, server: Server) -> BareTarget:
        return BareTarget(server.ports["read"], 1)

    def stored(self, server: Server) -> int:
        return (server.directory / "bare.log").stat().st_size // events.STORED_BYTES


if __name__ == "__main__":
    main(Path(sys.argv[1]))
