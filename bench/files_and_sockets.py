"""Files and sockets for `script/bench connectors`, beside plain files and plain asyncio.

Peers are other processes, and only the CPU time of this one counts: with a connector that includes the store.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from bench.formats import Case
from bench.processes import free_port
from bench.web import BODY, framed, listening, process, stored
from penstock.protocol.api.deployment import InterceptorSpec
from penstock.testing.frame import Frame, Setup

LINE = BODY + b"\n"
LINES = Setup(ack="durable", interceptors_in=[InterceptorSpec(type="split")])
MESSAGES = Setup(ack="durable")
READ_BYTES = 64 << 10
DATAGRAMS_AT_ONCE = 50
"""A slow receiver loses datagrams: the peer pauses after so many, and sends until it is killed."""

Address = tuple[str, int] | str
"""Of a server: a host and a port, or the path of a Unix socket."""


def file_and_socket_cases(events: int, folder: Path) -> Iterator[Case]:
    yield from _sources(events, folder)
    yield from _sinks(events, folder)
    yield from _files(events, folder)


def _sources(events: int, folder: Path) -> Iterator[Case]:
    port, path = free_port(), folder / "in.sock"
    tcp: Address = ("127.0.0.1", port)
    for name, config, address, setup, send, plain in (
        ("tcp-server", {"port": port}, tcp, LINES, send_lines, _bare_server),
        ("unix-server", {"path": str(path)}, str(path), LINES, send_lines, _bare_server),
        ("udp-server", {"port": port}, tcp, MESSAGES, send_datagrams, _bare_datagrams),
    ):
        peer = (send, address, events)
        ours = partial(_receive, name, config, setup, events, peer)
        yield Case(f"in {name}", len(LINE) * events, ours, _running(partial(plain, address, events, peer)))


def _sinks(events: int, folder: Path) -> Iterator[Case]:
    port, path = free_port(), folder / "out.sock"
    tcp: Address = ("127.0.0.1", port)
    lines: dict[str, Any] = {"format": "lines"}
    for name, config, address, serve, plain in (
        ("tcp-client", lines | {"port": port}, tcp, serve_discarding, _bare_sender),
        ("unix-client", lines | {"path": str(path)}, str(path), serve_discarding, _bare_sender),
        ("udp-client", {"port": port}, tcp, discard_datagrams, _bare_datagram_sender),
    ):
        ours = partial(_beside, serve, address, partial(_send, name, config, events))
        bare = partial(_beside, serve, address, _running(partial(plain, address, events)))
        yield Case(f"out {name}", len(LINE) * events, ours, bare)


def _files(events: int, folder: Path) -> Iterator[Case]:
    source, size = folder / "files", len(LINE) * events
    source.mkdir()
    (source / "in").write_bytes(LINE * events)
    for name, config in (
        ("file", {"mode": "read", "path": str(source / "in")}),
        ("directory", {"path": str(source), "finished": "renamed", "once": True}),
    ):
        yield Case(f"in {name}", size, partial(_receive, name, config, LINES, events), partial(_read, source / "in"))
    for mode in ("append", "write"):
        config = {"mode": mode, "path": str(folder / mode)}
        yield Case(
            f"out file, {mode}", size, partial(_send, "file", config, events), partial(_write, folder / "plain", events)
        )


# Ours.


def _receive(name: str, config: dict[str, Any], setup: Setup, events: int, peer: Any = None) -> None:
    async def run(frame: Frame) -> None:
        if peer is None:
            await stored(frame, events)
            return
        with process(*peer):
            await stored(frame, events)

    framed(name, config, run, setup)


def _send(name: str, config: dict[str, Any], events: int) -> None:
    async def run(frame: Frame) -> None:
        last = frame.give(None, [BODY] * events)
        await frame.until(lambda: frame.has_left(last), "the last value", 120.0)

    framed(name, config, run)


def _beside(serve: Callable[..., None], address: Address, work: Callable[[], object]) -> None:
    with process(serve, address):
        if serve is serve_discarding:
            asyncio.run(listening(address))
        work()


# Plain.


def _running(work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    async def run() -> None:
        await work()

    return lambda: uvloop.run(run())


async def _bare_server(address: Address, events: int, peer: Any) -> None:
    is_over, found = asyncio.Event(), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal found
        rest = b""
        while data := await reader.read(READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            found += len(lines)
        writer.close()
        is_over.set()

    if isinstance(address, str):
        server: asyncio.Server = await asyncio.start_unix_server(serve, address)
    else:
        server = await asyncio.start_server(serve, *address)
    async with server:
        with process(*peer):
            await is_over.wait()
    assert found == events


async def _bare_datagrams(address: Address, events: int, peer: Any) -> None:
    is_over, received = asyncio.Event(), list[bytes]()

    class Receiver(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: Any) -> None:  # noqa: ARG002
            received.append(data)
            if len(received) == events:
                is_over.set()

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Receiver, local_addr=address)
    with process(*peer):
        await is_over.wait()
    transport.close()


async def _bare_sender(address: Address, events: int) -> None:
    if isinstance(address, str):
        _, writer = await asyncio.open_unix_connection(address)
    else:
        _, writer = await asyncio.open_connection(*address)
    for _ in range(events):
        writer.write(LINE)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def _bare_datagram_sender(address: Address, events: int) -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=address)
    for _ in range(events):
        transport.sendto(BODY)
    transport.close()


def _read(path: Path) -> int:
    with path.open("rb") as file:
        return len([line.rstrip(b"\n") for line in file])


def _write(path: Path, events: int) -> None:
    with path.open("ab") as file:
        for _ in range(events):
            file.write(LINE)


# Peers, in processes of their own.


def _connected(address: Address) -> socket.socket:
    while True:
        sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        try:
            sock.connect(address)
        except OSError:
            sock.close()
            time.sleep(0.01)
        else:
            return sock


def send_lines(address: Address, events: int) -> None:
    with _connected(address) as sock:
        sock.sendall(LINE * events)


def send_datagrams(address: Address, _: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        while True:
            for _ in range(DATAGRAMS_AT_ONCE):
                with suppress(ConnectionRefusedError):  # nobody listens yet
                    sock.send(BODY)
            time.sleep(0.001)


def serve_discarding(address: Address) -> None:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    if isinstance(address, str):
        Path(address).unlink(missing_ok=True)
    with socket.create_server(address, family=family) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                while connection.recv(READ_BYTES):
                    """Only the sender is measured."""


def discard_datagrams(address: Address) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        while True:
            sock.recv(READ_BYTES)
