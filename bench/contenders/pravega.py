"""Our worker, driven by Pravega's own Python client: each connection is a program that uses the client.

The client is what limits the rate. What the table shows of the server is how little of it the worker takes.
"""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import events
from bench.contender import Contender
from bench.contenders.penstock import Penstock, greet, segment_bytes
from bench.harness import BenchmarkFailed
from bench.processes import Server

BATCH_EVENTS = 1000
"""Written before each flush, and as many may be in flight. Without that, the client waits for each event."""

SCOPE = "bench"
STREAMS = ("load", "probe")
_END_SECONDS_MAX = 10.0


class _Program(socket.socket):
    """To a program that writes a batch for each byte, and returns a byte when it is durable. Ends with the socket."""

    process: subprocess.Popen[bytes]

    def close(self) -> None:
        super().close()
        try:
            self.process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class ProgramLink:
    def __init__(self, sock: socket.socket, count: int) -> None:
        self.sock = sock
        self.events = count

    def batch(self) -> tuple[bytes]:
        return (b".",)

    def acked(self, data: bytes) -> int:
        return len(data) * self.events


@dataclass(frozen=True, slots=True)
class ProgramTarget:
    port: int
    stream: str
    events: int
    token: str

    def connect(self, index: int) -> ProgramLink:  # noqa: ARG002  all write to the same stream
        ours, theirs = socket.socketpair()
        arguments = [str(self.port), self.token, self.stream, str(self.events)]
        program = _Program(fileno=ours.detach())
        with theirs:
            command = [sys.executable, "-m", "bench.contenders.pravega", *arguments]
            program.process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno())
        if program.recv(1) != b".":
            raise BenchmarkFailed("Pravega's client ended before it was connected")
        return ProgramLink(program, self.events)


class _Worker(Penstock):
    options = ("--controller-port", "0")


class PravegaClient(Contender):
    """One stream with a segment for each connection. Reading is not compared: the client adds nothing to it."""

    name = "pravega-client"
    install = "pip install pravega (it has wheels for Python 3.11 on Linux)"
    window = 2

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self._token = ""

    def installed(self) -> bool:
        return find_spec("pravega_client") is not None

    def start(self, directory: Path) -> Server:
        server = _Worker(events.STORED_BYTES, 1, self._connections).start(directory)
        self._token = (directory / "data" / "token").read_text().strip()
        command = [sys.executable, "-m", "bench.contenders.pravega", str(server.ports["controller"]), self._token]
        subprocess.run([*command, "create", str(self._connections)], check=True)
        return server

    def load(self, server: Server) -> ProgramTarget:
        return ProgramTarget(server.ports["controller"], "load", BATCH_EVENTS, self._token)

    def probe(self, server: Server) -> ProgramTarget:
        return ProgramTarget(server.ports["controller"], "probe", 1, self._token)

    def stored(self, server: Server) -> int:
        numbers = range(self._connections)
        names = [f"{SCOPE}/{stream}/{number}.#epoch.0" for stream in STREAMS for number in numbers]
        with greet(server.ports["segment"]) as sock:
            return sum(segment_bytes(sock, name, self._token) for name in names) // events.STORED_BYTES


# The program.


def _manager(port: str, token: str) -> Any:
    import pravega_client  # type: ignore[import-untyped]

    own = {"method": "Basic", "username": "bench", "password": token}
    os.environ.update({f"pravega_client_auth_{key}": value for key, value in own.items()})
    return pravega_client.StreamManager(f"tcp://127.0.0.1:{port}", True)


def create(manager: Any, segments: int) -> None:
    manager.create_scope(SCOPE)
    for stream in STREAMS:
        manager.create_stream(SCOPE, stream, segments)


def write(manager: Any, stream: str, count: int) -> None:
    """Until nobody asks any more."""
    writer = manager.create_writer(SCOPE, stream, BATCH_EVENTS)
    batch = events.payloads(count)
    os.write(1, b".")
    while asked := os.read(0, 1):
        for data in batch:
            writer.write_event_bytes(data)
        writer.flush()
        os.write(1, asked)


def main() -> None:
    port, token, what, count = sys.argv[1:]
    manager = _manager(port, token)
    if what == "create":
        create(manager, int(count))
    else:
        write(manager, what, int(count))
    os._exit(0)  # its threads are not worth waiting for


if __name__ == "__main__":
    main()
