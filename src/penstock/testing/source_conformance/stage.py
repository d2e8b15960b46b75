"""The sockets of the suite: the worker that the client knows, another one, and an address at which nothing listens."""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias

from penstock.core.address import Address
from penstock.testing.source_conformance.connection import Close, Send
from penstock.testing.source_conformance.play import TIMEOUT_SECONDS, Play, Verdict
from penstock.testing.source_conformance.scenarios import FIRST, NOBODY, OTHER, Scenario

Client: TypeAlias = Callable[[str], Awaitable[object]]
"""Runs the program under test with the address of its worker, and returns when it has ended."""

BACKLOG = 16

END_SECONDS = 5.0
"""How long a program may keep running when its scenario is over."""

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER for a close that resets the connection."""


class Stage:
    """Listens while it is open; performs one scenario at a time.

    Without a `client` somebody else starts the program, once for each scenario.
    """

    def __init__(self, listen: Address, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._sockets = [_bound(listen), _bound(Address(listen.host, 0)), _bound(Address(listen.host, 0))]
        for listener in self._sockets[:NOBODY]:
            listener.listen(BACKLOG)
        self.address = Address(listen.host, self._sockets[FIRST].getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._sockets:
            one.close()

    async def perform(
        self, scenario: Scenario, client: Client | None = None, report: Callable[[str], None] = lambda _: None
    ) -> Verdict:
        """`report` is called with what the client has to do next, whenever that changes."""
        if client is not None:
            self._discard_waiting()
        performance = _Performance(scenario, self._sockets, self._timeout_seconds, report)
        return await performance.run(None if client is None else client(str(self.address)))

    def _discard_waiting(self) -> None:
        """Discard connections of the previous scenario's program, which has ended."""
        for listener in self._sockets[:NOBODY]:
            with suppress(BlockingIOError):
                while True:
                    listener.accept()[0].close()


def _bound(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((address.host, address.port))
    bound.setblocking(False)
    return bound


class _Performance:
    """One scenario on these sockets."""

    def __init__(
        self,
        scenario: Scenario,
        sockets: list[socket.socket],
        timeout_seconds: float,
        report: Callable[[str], None],
    ) -> None:
        self._play = Play(scenario, time.monotonic(), timeout_seconds)
        self._sockets = sockets
        self._report = report
        self._changed = asyncio.Event()
        self._transports: list[asyncio.Transport] = []
        self._open = 0

    async def run(self, program: Awaitable[object] | None) -> Verdict:
        accepting = [asyncio.ensure_future(self._accept(worker)) for worker in (FIRST, OTHER)]
        running = None if program is None else asyncio.ensure_future(program)
        try:
            await self._until_over(running)
            if running is not None:
                await self._end(running)
        finally:
            for task in (*accepting, *([] if running is None else [running])):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
            for transport in self._transports:
                transport.close()
        return self._play.verdict

    async def _until_over(self, running: "asyncio.Future[object] | None") -> None:
        if running is not None:
            running.add_done_callback(lambda _: self._changed.set())
        while not self._play.is_over:
            due = self._play.poll(time.monotonic())
            if running is not None and running.done() and not self._open:
                self._play.left(time.monotonic(), _ending(running))
            self.carry_out()
            self._report(self._play.awaits)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(due - time.monotonic(), 0.0)):
                    await self._changed.wait()
            self._changed.clear()
        self.carry_out()

    async def _end(self, running: "asyncio.Future[object]") -> None:
        """Give the program time to end by itself. What it raises does not count: the scenario has judged its frames."""
        with suppress(Exception):
            async with asyncio.timeout(END_SECONDS):
                await asyncio.shield(running)

    async def _accept(self, worker: int) -> None:
        loop = asyncio.get_running_loop()
        while not self._play.is_over:
            connected, _ = await loop.sock_accept(self._sockets[worker])
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            host = connected.getsockname()[0]  # an address at which this client reaches us
            addresses = [Address(host, one.getsockname()[1]) for one in self._sockets]
            number = self._play.connected(worker, addresses, time.monotonic())
            self._open += 1
            transport, _ = await loop.connect_accepted_socket(partial(_Wire, self, number), connected)
            self._transports.append(transport)
            self._happened()

    def received(self, number: int, data: bytes) -> None:
        self._play.received(number, data, time.monotonic())
        self._happened()

    def closed(self, number: int) -> None:
        self._open -= 1
        self._play.closed(number, time.monotonic())
        self._happened()

    def _happened(self) -> None:
        self.carry_out()
        self._changed.set()

    def carry_out(self) -> None:
        """Do what the play wants."""
        for effect in self._play.take():
            if effect.connection >= len(self._transports):
                continue  # it is being accepted
            transport = self._transports[effect.connection]
            match effect:
                case Send():
                    transport.write(effect.data)
                case Close(reset=True):
                    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    transport.abort()
                case Close():
                    with suppress(OSError):  # the client has gone
                        transport.write_eof()


def _ending(program: "asyncio.Future[object]") -> str:
    failure = None if program.cancelled() else program.exception()
    return f"the program ended: {failure}" if failure is not None else "the program ended"


class _Wire(asyncio.Protocol):
    """One connection. After we close our end, what still arrives is read and discarded until the client closes too."""

    def __init__(self, performance: _Performance, number: int) -> None:
        self._performance = performance
        self._number = number

    def data_received(self, data: bytes) -> None:
        self._performance.received(self._number, data)

    def connection_lost(self, _: Exception | None) -> None:
        self._performance.closed(self._number)
