"""Redis Streams with `appendfsync always`, driven with pipelines of XADD."""

import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from bench import events
from bench.contender import Contender
from bench.harness import BenchmarkFailed
from bench.processes import Server, connect, listening, start_server
from tests.support.ports import free_port

PIPELINE_COMMANDS = 100
LINES_IN_REPLY = 2
"""The reply to XADD is the entry's id as a bulk string: its length, and the id."""


def command(*parts: bytes) -> bytes:
    head = b"*%d\r\n" % len(parts)
    return head + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


class RedisLink:
    def __init__(self, sock: socket.socket, stream: bytes, count: int) -> None:
        self.sock = sock
        self.events = count
        adds = [command(b"XADD", stream, b"*", b"e", data) for data in events.payloads(count)]
        self._batch = (b"".join(adds),)
        self._lines = 0
        self._line_start = True

    def batch(self) -> tuple[bytes]:
        return self._batch

    def acked(self, data: bytes) -> int:
        """Replies hold no payload, so that counting line ends counts them; an error starts a
        line with a minus.
        """
        if b"\n-" in data or (self._line_start and data.startswith(b"-")):
            raise BenchmarkFailed(f"Redis refused an event: {data[:200]!r}")
        self._line_start = data.endswith(b"\n")
        self._lines += data.count(b"\n")
        replies, self._lines = divmod(self._lines, LINES_IN_REPLY)
        return replies


@dataclass(frozen=True, slots=True)
class RedisTarget:
    port: int
    events: int

    def connect(self, index: int) -> RedisLink:
        return RedisLink(connect(self.port), stream_name(index), self.events)


def stream_name(index: int) -> bytes:
    return b"bench:%d" % index


class Redis(Contender):
    """An fsync before each acknowledgement; no snapshots, and no rewrite of the log under load,
    which would only slow it down. One stream per connection or one for all: no difference.
    """

    name = "redis"
    install = "apt-get install redis-server"

    window = 4
    """Measured from 1 to 8: more than two makes no difference."""

    def __init__(self, connections: int) -> None:
        self._connections = connections

    def installed(self) -> bool:
        return shutil.which("redis-server") is not None

    def start(self, directory: Path) -> Server:
        port = free_port()
        options = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(directory),
            "appendonly": "yes",
            "appendfsync": "always",
            "auto-aof-rewrite-percentage": "0",
            "save": "",
        }
        arguments = [part for key, value in options.items() for part in (f"--{key}", value)]
        return start_server(["redis-server", *arguments], directory, listening(port))

    def load(self, server: Server) -> RedisTarget:
        return RedisTarget(server.ports["main"], PIPELINE_COMMANDS)

    def probe(self, server: Server) -> RedisTarget:
        return RedisTarget(server.ports["main"], 1)

    def stored(self, server: Server) -> int:
        with connect(server.ports["main"]) as sock, sock.makefile("rb") as replies:
            for index in range(self._connections):
                sock.sendall(command(b"XLEN", stream_name(index)))
            return sum(int(replies.readline()[1:]) for _ in range(self._connections))
