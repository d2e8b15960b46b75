"""Files and sockets for `script/bench connectors`, beside what a program does with plain files and plain asyncio.

in tcp-server, unix-server   lines, each an event with its number      asyncio's streams, `split`, into a PlainLog
in udp-server                datagrams, each with its sender           asyncio's datagrams, into a PlainLog with senders
in file, directory           lines, each with its place in the file    `for line in file`, into a PlainLog with places
in exec                      lines of a program's output               `for line in process.stdout`, into a PlainLog
out tcp-client, unix-client  stored events, a line each                asyncio's `write` and `drain`, from a log
out udp-client               stored events, a datagram each            asyncio's `sendto`, from a log
out file                     stored events, a line each, fsynced       `file.write` and fsync, from a log
out exec                     stored events, a line each                `process.stdin.write`, from a log

A program that reads from a log remembers, durably, how far it has come. Peers are other processes, and only the CPU
time of this one counts: with a connector that includes the store.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench.formats import Case
from bench.plain_log import PlainLog, read_log, remember
from bench.processes import free_port
from bench.web import BODY, epochs_of, framed, listening, process, send_epochs, stored
from penstock.protocol.api.deployment import InterceptorSpec
from penstock.testing.frame import Frame, Setup

LINE = BODY + b"\n"
LINES = Setup(ack="durable", interceptors_in=[InterceptorSpec(type="split")])
MESSAGES = Setup(ack="durable")
READ_BYTES = 64 << 10
LINES_PER_EVENT = 50
"""A line takes about a microsecond: so many for each event of the other benchmarks, so that a round takes a second."""
DATAGRAMS_PER_EVENT = 10
DATAGRAMS_AT_ONCE = 50
"""A slow receiver loses datagrams: the peer pauses after so many, and sends until it is killed."""
LINES_AT_ONCE = 1000
"""What a plain program stores or sends at once."""

Address = tuple[str, int] | str
"""Of a server: a host and a port, or the path of a Unix socket."""


class Work(NamedTuple):
    """How much, and where a plain program keeps its events."""

    events: int
    folder: Path

    @property
    def received(self) -> Path:
        return self.folder / "received.log"

    @property
    def to_send(self) -> Path:
        """A log with these events."""
        return self.folder / f"send-{self.events}.log"

    def make(self) -> None:
        """Before anything is measured."""
        epochs_of(self.events)
        with PlainLog(self.to_send) as log:
            for start in range(0, self.events, LINES_AT_ONCE):
                log.append([BODY] * min(LINES_AT_ONCE, self.events - start))

    @property
    def position(self) -> Path:
        return self.folder / "position"


def file_and_socket_cases(events: int, folder: Path) -> Iterator[Case]:
    lines, datagrams = Work(events * LINES_PER_EVENT, folder), Work(events * DATAGRAMS_PER_EVENT, folder)
    lines.make()
    datagrams.make()
    yield from _sources(lines, datagrams)
    yield from _sinks(lines, datagrams)
    yield from _files(lines)


def _sources(lines: Work, datagrams: Work) -> Iterator[Case]:
    port, path = free_port(), lines.folder / "in.sock"
    tcp: Address = ("127.0.0.1", port)
    for name, config, address, setup, send, plain, work in (
        ("tcp-server", {"port": port}, tcp, LINES, send_lines, _bare_server, lines),
        ("unix-server", {"path": str(path)}, str(path), LINES, send_lines, _bare_server, lines),
        ("udp-server", {"port": port}, tcp, MESSAGES, send_datagrams, _bare_datagrams, datagrams),
    ):
        peer = (send, address, work.events)
        ours = partial(_receive, name, config, setup, work.events, peer)
        yield Case(f"in {name}", len(LINE) * work.events, ours, _running(partial(plain, address, work, peer)))


def _sinks(lines: Work, datagrams: Work) -> Iterator[Case]:
    port, path = free_port(), lines.folder / "out.sock"
    tcp: Address = ("127.0.0.1", port)
    form: dict[str, Any] = {"format": "lines"}
    for name, config, address, serve, plain, work in (
        ("tcp-client", form | {"port": port}, tcp, serve_discarding, _bare_sender, lines),
        ("unix-client", form | {"path": str(path)}, str(path), serve_discarding, _bare_sender, lines),
        ("udp-client", {"port": port}, tcp, discard_datagrams, _bare_datagram_sender, datagrams),
    ):
        ours = partial(_beside, serve, address, partial(_send, name, config, work.events))
        bare = partial(_beside, serve, address, _running(partial(plain, address, work)))
        yield Case(f"out {name}", len(LINE) * work.events, ours, bare)


def _files(work: Work) -> Iterator[Case]:
    events, folder = work.events, work.folder
    source, size = folder / "files", len(LINE) * events
    source.mkdir()
    (source / "in").write_bytes(LINE * events)
    once: dict[str, Any] = {"finished": "renamed", "once": True}
    for name, config, plain in (
        ("file", {"mode": "read", "path": str(source / "in")}, _read),
        ("directory", {"path": str(source)} | once, _read),
        ("exec", {"command": ["cat", str(source / "in")]}, _read_program),
    ):
        yield Case(
            f"in {name}", size, partial(_receive, name, config, LINES, events), partial(plain, source / "in", work)
        )
    numbers = count()
    for mode in ("append", "write"):

        def write(mode: str = mode) -> None:
            _send("file", {"mode": mode, "path": str(folder / f"{mode}-{next(numbers)}")}, events)

        yield Case(f"out file, {mode}", size, write, partial(_write, work))
    discard = {"command": ["sh", "-c", "cat > /dev/null"], "format": "lines"}
    yield Case("out exec", size, partial(_send, "exec", discard, events), partial(_write_program, work))


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
    framed(name, config, partial(send_epochs, events=events))


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


async def _bare_server(address: Address, work: Work, peer: Any) -> None:
    is_over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rest = b""
        while data := await reader.read(READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if lines:
                log.append(lines)
        writer.close()
        is_over.set()

    with PlainLog(work.received) as log:
        if isinstance(address, str):
            server: asyncio.Server = await asyncio.start_unix_server(serve, address)
        else:
            server = await asyncio.start_server(serve, *address)
        async with server:
            with process(*peer):
                await is_over.wait()
    assert log.events == work.events


async def _bare_datagrams(address: Address, work: Work, peer: Any) -> None:
    loop, is_over, received = asyncio.get_running_loop(), asyncio.Event(), list[tuple[bytes, Any]]()

    def keep() -> None:
        log.append([data for data, _ in received], keys=[f"{host}:{port}".encode() for _, (host, port) in received])
        received.clear()
        if log.events >= work.events:
            is_over.set()

    class Receiver(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            if is_over.is_set():
                return
            if not received:
                loop.call_soon(keep)
            received.append((data, addr))

    with PlainLog(work.received) as log:
        transport, _ = await loop.create_datagram_endpoint(Receiver, local_addr=address)
        with process(*peer):
            await is_over.wait()
        transport.close()


async def _bare_sender(address: Address, work: Work) -> None:
    if isinstance(address, str):
        _, writer = await asyncio.open_unix_connection(address)
    else:
        _, writer = await asyncio.open_connection(*address)
    sent = 0
    for values in read_log(work.to_send):
        for value in values:
            writer.write(value + b"\n")
        await writer.drain()
        sent += len(values)
    writer.close()
    await writer.wait_closed()
    remember(work.position, sent)


async def _bare_datagram_sender(address: Address, work: Work) -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=address)
    sent = 0
    for values in read_log(work.to_send):
        for value in values:
            transport.sendto(value)
        sent += len(values)
        await asyncio.sleep(0)
    transport.close()
    remember(work.position, sent)


def _read(path: Path, work: Work) -> None:
    with path.open("rb") as file, PlainLog(work.received) as log:
        _keep_lines(file, log)


def _read_program(path: Path, work: Work) -> None:
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as program, PlainLog(work.received) as log:
        assert program.stdout is not None
        _keep_lines(program.stdout, log)


def _keep_lines(file: Any, log: PlainLog) -> None:
    """Each with the place after it, where a program that was killed goes on."""
    lines, places, at = list[bytes](), list[int](), 0
    for line in file:
        at += len(line)
        lines.append(line.removesuffix(b"\n"))
        places.append(at)
        if len(lines) == LINES_AT_ONCE:
            log.append(lines, places)
            lines, places = [], []
    if lines:
        log.append(lines, places)


def _write(work: Work) -> None:
    sent = 0
    with (work.folder / "plain").open("ab") as file:
        for values in read_log(work.to_send):
            for value in values:
                file.write(value + b"\n")
            sent += len(values)
        file.flush()
        os.fsync(file.fileno())
    remember(work.position, sent)


def _write_program(work: Work) -> None:
    sent = 0
    with subprocess.Popen(["sh", "-c", "cat > /dev/null"], stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        for values in read_log(work.to_send):
            for value in values:
                program.stdin.write(value + b"\n")
            sent += len(values)
    remember(work.position, sent)


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
