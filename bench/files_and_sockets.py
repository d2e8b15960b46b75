"""Files and sockets for `script/bench connectors`, beside what a program does with plain files and plain asyncio.

in tcp-server, unix-server   lines, each an event with its number      asyncio's streams, `split`, into a PlainLog
in tcp-client, unix-client   the same, from a server                   the same
in udp-server, udp-client    datagrams, each with its sender           asyncio's datagrams, into a PlainLog with senders
in syslog                    messages of RFC 5424 over TCP, as above   asyncio's streams, `split`, into a PlainLog
in file, directory           lines, each with its place in the file    `for line in file`, into a PlainLog with places
in exec                      lines of a program's output               `for line in process.stdout`, into a PlainLog
out tcp-client, unix-client  stored events, a line each                asyncio's `write` and `drain`, from a log
out tcp-server, unix-server  stored events, to all connections         asyncio's `write` and `drain`, from a log
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
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench.formats import Case
from bench.plain_log import PlainLog, read_log, remember
from bench.socket_peers import (
    BODY,
    LINE,
    MESSAGE,
    READ_BYTES,
    Address,
    answer_datagrams,
    discard_datagrams,
    receive_all,
    send_datagrams,
    send_lines,
    send_messages,
    serve_discarding,
    serve_lines,
)
from bench.web import SECONDS_MAX, epochs_of, framed, listening, process, send_epochs, stored
from penstock.protocol.api.deployment import InterceptorSpec
from penstock.testing.frame import Frame, Setup
from tests.support.ports import free_port

LINES = Setup(ack="durable", interceptors_in=[InterceptorSpec(type="split")])
MESSAGES = Setup(ack="durable")
LINES_PER_EVENT = 50
"""A line takes about a microsecond: so many for each event of the other benchmarks, so that a round takes a second."""
DATAGRAMS_PER_EVENT = 10
LINES_AT_ONCE = 1000
"""What a plain program stores or sends at once."""


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
    syslog = {"port": port, "transport": "tcp"}
    ours: Callable[[], None]
    for name, config, address, setup, send, plain, work in (
        ("tcp-server", {"port": port}, tcp, LINES, send_lines, _bare_server, lines),
        ("unix-server", {"path": str(path)}, str(path), LINES, send_lines, _bare_server, lines),
        ("udp-server", {"port": port}, tcp, MESSAGES, send_datagrams, _bare_datagrams, datagrams),
        ("syslog", syslog, tcp, MESSAGES, send_messages, _bare_server, datagrams),
    ):
        peer = (send, address, work.events)
        ours = partial(_receive, name, config, setup, work.events, peer)
        size = len(MESSAGE if send is send_messages else LINE) * work.events
        bare = _running(partial(plain, address, work, peer))
        yield Case(f"in {name}", size, ours, bare, events=work.events)
    given: dict[str, Any]
    for name, given, address in (("tcp-client", {"port": port}, tcp), ("unix-client", {"path": str(path)}, str(path))):
        receive = partial(_receive, name, given, LINES, lines.events)
        ours = partial(_beside, serve_lines, address, receive, lines.events)
        bare = partial(_beside, serve_lines, address, _running(partial(_bare_client, address, lines)), lines.events)
        yield Case(f"in {name}", len(LINE) * lines.events, ours, bare, events=lines.events)
    ask = partial(_ask, {"port": port}, datagrams.events)
    asked = _running(partial(_bare_answers, tcp, datagrams))
    yield Case(
        "in udp-client",
        len(LINE) * datagrams.events,
        partial(_beside, answer_datagrams, tcp, ask),
        partial(_beside, answer_datagrams, tcp, asked),
        events=datagrams.events,
    )


def _sinks(lines: Work, datagrams: Work) -> Iterator[Case]:
    port, path = free_port(), lines.folder / "out.sock"
    tcp: Address = ("127.0.0.1", port)
    form: dict[str, Any] = {"format": "lines"}
    bare: Callable[[], None]
    for name, config, address, serve, plain, work in (
        ("tcp-client", form | {"port": port}, tcp, serve_discarding, _bare_sender, lines),
        ("unix-client", form | {"path": str(path)}, str(path), serve_discarding, _bare_sender, lines),
        ("udp-client", {"port": port}, tcp, discard_datagrams, _bare_datagram_sender, datagrams),
    ):
        ours = partial(_beside, serve, address, partial(_send, name, config, work.events))
        bare = partial(_beside, serve, address, _running(partial(plain, address, work)))
        yield Case(f"out {name}", len(LINE) * work.events, ours, bare, events=work.events)
    to_all = {"broadcast": True}
    for name, config, address in (
        ("tcp-server", to_all | {"port": port}, tcp),
        ("unix-server", to_all | {"path": str(path)}, str(path)),
    ):
        ours = partial(_serve, name, config, lines.events, (receive_all, address))
        bare = _running(partial(_bare_broadcast, address, lines, (receive_all, address)))
        yield Case(f"out {name}", len(BODY) * lines.events, ours, bare, events=lines.events)


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
        ours = partial(_receive, name, config, LINES, events)
        yield Case(f"in {name}", size, ours, partial(plain, source / "in", work), events=events)
    numbers = count()
    for mode in ("append", "write"):

        def write(mode: str = mode) -> None:
            _send("file", {"mode": mode, "path": str(folder / f"{mode}-{next(numbers)}")}, events)

        yield Case(f"out file, {mode}", size, write, partial(_write, work), events=events)
    discard = {"command": ["sh", "-c", "cat > /dev/null"], "format": "lines"}
    ours = partial(_send, "exec", discard, events)
    yield Case("out exec", size, ours, partial(_write_program, work), events=events)


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


def _serve(name: str, config: dict[str, Any], events: int, peer: Any) -> None:
    """To one connection."""

    async def run(frame: Frame) -> None:
        with process(*peer):
            await frame.until(lambda: frame.instance.host.status().streams > 0, "the connection", SECONDS_MAX)
            await send_epochs(frame, events)

    framed(name, config, run)


def _ask(config: dict[str, Any], events: int) -> None:
    """A server answers to the address of a datagram."""

    async def run(frame: Frame) -> None:
        frame.give_epoch(epochs_of(1)[0])
        await stored(frame, events)

    framed("udp-client", config, run, MESSAGES)


def _beside(serve: Callable[..., None], address: Address, work: Callable[[], object], *given: Any) -> None:
    with process(serve, address, *given):
        if serve in (serve_discarding, serve_lines):
            asyncio.run(listening(address))
        elif serve is answer_datagrams:
            _until_bound(address)
        work()


def _until_bound(address: Address) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        while True:
            try:
                sock.send(b"")
                time.sleep(0.01)
                sock.send(b"")  # fails if nobody has received the one before
            except ConnectionRefusedError:
                continue
            return


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


async def _bare_client(address: Address, work: Work) -> None:
    if isinstance(address, str):
        reader, writer = await asyncio.open_unix_connection(address)
    else:
        reader, writer = await asyncio.open_connection(*address)
    rest = b""
    with PlainLog(work.received) as log:
        while log.events < work.events:
            *lines, rest = (rest + await reader.read(READ_BYTES)).split(b"\n")
            if lines:
                log.append(lines)
    writer.close()


async def _bare_datagrams(address: Address, work: Work, peer: Any) -> None:
    await _keep_datagrams(work, lambda: process(*peer), local_addr=address)


async def _bare_answers(address: Address, work: Work) -> None:
    await _keep_datagrams(work, nullcontext, remote_addr=address)


async def _keep_datagrams(work: Work, beside: Callable[[], AbstractContextManager[Any]], **where: Any) -> None:
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
        transport, _ = await loop.create_datagram_endpoint(Receiver, **where)
        if "remote_addr" in where:
            transport.sendto(BODY)
        with beside():
            await is_over.wait()
        transport.close()


async def _bare_broadcast(address: Address, work: Work, peer: Any) -> None:
    connected = asyncio.get_running_loop().create_future()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set_result(writer)

    if isinstance(address, str):
        server: asyncio.Server = await asyncio.start_unix_server(serve, address)
    else:
        server = await asyncio.start_server(serve, *address)
    sent = 0
    async with server:
        with process(*peer):
            writer = await connected
            for values in read_log(work.to_send):
                for value in values:
                    writer.write(value)
                await writer.drain()
                sent += len(values)
            writer.close()
            await writer.wait_closed()
    remember(work.position, sent)


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
    """Each with the place after it, where a program that was killed continues."""
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
