"""The asyncio sink."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from penstock.client.sink.asyncio_server import Server
from penstock.client.sink.base import RECEIVE_BYTES, OnReady, SinkBase
from penstock.client.sink.blocking_sink import address_of, listen


class AsyncSink(SinkBase):
    """As `Sink`, for one event loop; the participant's methods may be coroutine functions.

    Plain ones, and the log, are called in a thread of their own, always the same one, so that the loop goes on while
    they wait for a disk. There is one call at a time, whatever connects meanwhile. `on_commit` is called in the loop.
    """

    _can_await = True
    _loop: asyncio.AbstractEventLoop | None = None

    async def run(self, on_ready: OnReady | None = None) -> None:
        """As `Sink.run`. When it is cancelled it lets a plain call end, closes all, and goes on as cancelled."""
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
            with suppress(RuntimeError):  # the loop was closed in this moment
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
