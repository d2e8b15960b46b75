"""A connection of the asyncio sink."""

import asyncio
from contextlib import suppress

from penstock.client.sink.base import LAST_WORDS_SECONDS, RECEIVE_BYTES, UNSENT_BYTES_MAX
from penstock.client.sink.session import SinkSession


class AsyncConnection:
    """The bytes of one session. A peer that is gone is no error: it sends nothing more."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: SinkSession) -> None:
        self._reader = reader
        self._writer = writer
        self.session = session
        writer.transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    async def receive(self, deadline: float | None) -> bytes | None:
        """Nothing: it is closed. None: nothing has come at the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._reader.read(RECEIVE_BYTES)
        except TimeoutError as error:
            return None if error.errno is None else b""
        except OSError:
            return b""

    async def send(self) -> None:
        """What the session has to say."""
        with suppress(OSError):
            self._writer.writelines(self.session.take())
            await self._writer.drain()

    async def farewell(self) -> None:
        """Let the ERROR arrive: what still comes is read, and discarded, until the peer closes."""
        with suppress(OSError):  # a TimeoutError is one
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self.send()
                if not self._writer.can_write_eof():  # TLS, which lingers by itself
                    self._writer.close()
                    await self._writer.wait_closed()
                    return
                self._writer.write_eof()
                while await self._reader.read(RECEIVE_BYTES):
                    pass

    def abort(self) -> None:
        """At once; nothing more comes. The session may be in the middle of a call, and is told when that has ended."""
        self._writer.transport.abort()
