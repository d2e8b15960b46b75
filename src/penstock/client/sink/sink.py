"""The blocking sink: for programs without an event loop."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

from penstock.client.sink.base import RECEIVE_BYTES, OnReady, SinkBase
from penstock.client.sink.participant import perform
from penstock.client.sink.server import Entrance, Loop, Server
from penstock.client.sockets import Waker
from penstock.core.address import Address


class Sink(SinkBase):
    """Receives a pipeline's output, each epoch exactly once: a worker connects to `address` and delivers.

        sink = Sink("127.0.0.1:7200", DataFile("out.txt"), state="out.state", encode=lines)
        sink.run()

    The target is a `Participant`, or storage for bytes (`Data`), to which the messages are written as `encode` encodes
    them. `state` is a separate directory for the log of votes and decisions: it belongs to the target's data, and to
    the first instance that connects. Program and instance are checked if they are set. A cookie, and `ssl`, a server's
    context with or without client certificates, keep unauthenticated peers out.

    `on_commit(transaction)` is called when a transaction is committed and applied. One worker has the session at a
    time; when it reconnects, its old session ends. A transaction of more than `uncommitted_bytes_max` bytes, and a
    frame of more than `frame_size_max`, are refused with an ERROR.

    The target and `on_commit` are called in the thread that called `run`. No threads are started.
    """

    _waker: Waker | None = None

    def run(self, on_ready: OnReady | None = None) -> None:
        """Recover, listen, serve until `stop`. `on_ready` receives the address when workers may connect. Ctrl-C closes
        all and propagates as KeyboardInterrupt; exceptions of the target are reported to the worker and raised.
        """
        with self._running() as desk, closing(Waker()) as waker:
            self._waker = waker
            try:
                perform(desk.transactions.recover())
                with listen(self._address) as listener:
                    loop = Loop(desk, Entrance(listener, self._ssl, self._handshake_seconds), waker)
                    if on_ready is not None:
                        on_ready(address_of(listener))
                    loop.run(lambda: self._is_stopped)
            finally:
                self._waker = None

    def _wake(self) -> None:
        waker = self._waker
        if waker is not None:
            waker.wake()


def listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return str(Address(host, port))


# The asyncio sink.


class AsyncSink(SinkBase):
    """As `Sink`, for one event loop; the participant's methods may be coroutine functions.

    Plain methods, and the log, are called in a separate thread, always the same one, so that the loop continues while
    they wait for a disk. There is one call at a time, whatever connects meanwhile. `on_commit` is called in the loop.
    """

    _can_await = True
    _loop: asyncio.AbstractEventLoop | None = None

    async def run(self, on_ready: OnReady | None = None) -> None:
        """As `Sink.run`. When cancelled, it lets a plain call end, closes all, and propagates the cancellation."""
        with self._running() as desk, ThreadPoolExecutor(1, "sink") as executor:
            server = Server(desk, executor, self._handshake_seconds)
            self._changed = server.changed
            self._loop = asyncio.get_running_loop()
            try:
                await server.perform(desk.transactions.recover())
                await self._serve(server, on_ready)
            finally:
                self._loop = None

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop was just closed
                loop.call_soon_threadsafe(self._changed.set)

    async def _serve(self, server: Server, on_ready: OnReady | None) -> None:
        listener = listen(self._address)
        listening = await asyncio.start_server(
            server.welcome,
            sock=listener,
            limit=RECEIVE_BYTES,
            ssl=self._ssl,
            ssl_handshake_timeout=None if self._ssl is None else self._handshake_seconds,
        )
        try:
            if on_ready is not None:
                on_ready(address_of(listener))
            while not self._is_stopped and server.failure is None:
                await self._changed.wait()
                self._changed.clear()
        finally:
            listening.close()
            await server.close()
        if server.failure is not None:
            raise server.failure
