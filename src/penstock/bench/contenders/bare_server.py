"""The bare loop, as the physical limit: receive, write, fdatasync, acknowledge; nothing else.

No framing: all bytes of all connections go to the end of one file in the order of their arrival,
and a connection is told, in 8 bytes, how many of its own are durable. One turn of the loop takes
all that has arrived, so that one fdatasync serves all connections.

    python -m penstock.bench.contenders.bare_server DIRECTORY
"""

import gc
import json
import os
import selectors
import socket
import struct
import sys
import threading
from pathlib import Path

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
    """Serve reads for ever, one connection after the other: the file's size once, then the bytes
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
