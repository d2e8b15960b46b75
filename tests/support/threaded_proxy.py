"""A proxy whose event loop has a thread of its own, so that tests can block."""

import asyncio
import threading
from abc import ABC, abstractmethod

from tests.support.waiting import SECONDS_MAX


class ThreadedProxy(ABC):
    """Listens on a loopback port until `stop`; each connection is one relay, which `stop` cancels. A subclass calls
    `start` when it is ready.
    """

    port = 0

    def start(self) -> None:
        self._relays: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self._ready.wait(SECONDS_MAX)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(SECONDS_MAX)

    @abstractmethod
    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From a client's connection to its end."""

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        for relay in tuple(self._relays):
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.create_task(self.relay(reader, writer))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)
