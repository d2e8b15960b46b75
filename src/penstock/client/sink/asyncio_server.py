"""The connections of the asyncio sink, and whose turn it is."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from penstock.client.sink.asyncio_connection import AsyncConnection
from penstock.client.sink.base import CONNECTIONS_MAX, logger, reason_of
from penstock.client.sink.effects import Effect, Steps
from penstock.client.sink.session import Desk, SinkSession
from penstock.client.source.sockets import prepare

T = TypeVar("T")


class Server:
    """One call at a time, whatever connects meanwhile. The first one that raises is the last one."""

    def __init__(self, desk: Desk, executor: ThreadPoolExecutor, handshake_seconds: float) -> None:
        self.failure: Exception | None = None
        """What the author's code or the log raised."""
        self.changed = asyncio.Event()
        """Set when there is one, and its worker was told; and by whoever else has something to say."""
        self._desk = desk
        self._executor = executor
        self._handshake_seconds = handshake_seconds
        self._turn = asyncio.Lock()
        self._connections: dict[AsyncConnection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Someone has connected."""
        peer = str(writer.get_extra_info("peername"))
        with suppress(OSError):  # it is gone already, as the first read will show
            prepare(writer.get_extra_info("socket"))
        if len(self._connections) >= CONNECTIONS_MAX:
            waiting = next(connection for connection in self._connections if not connection.session.is_greeted)
            logger.warning("%s: closed, there are %d connections already", waiting.session.peer, CONNECTIONS_MAX)
            self._forget(waiting)
        connection = AsyncConnection(reader, writer, SinkSession(self._desk, peer))
        connection.session.on_replaced = connection.abort
        self._connections[connection] = None
        task = asyncio.create_task(self._talk(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def perform(self, steps: Steps[T]) -> T:
        """As `effects.perform`, and the loop goes on meanwhile."""
        async with self._turn:
            if self.failure is not None:
                raise self.failure
            try:
                return await self._perform(steps)
            except Exception as error:
                self.failure = error
                raise

    async def close(self) -> None:
        """Nothing is discarded: the next start does that."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._connections):  # those whose task had not begun
            self._forget(connection)
        await asyncio.sleep(0)  # transports close in the next turn of the loop

    async def _perform(self, steps: Steps[T]) -> T:
        try:
            effect = next(steps)
            while True:
                try:
                    result = await self._call(effect)
                except Exception as error:
                    effect = steps.throw(error)
                else:
                    effect = steps.send(result)
        except StopIteration as end:
            value: T = end.value
            return value

    async def _call(self, effect: Effect) -> Any:
        if iscoroutinefunction(effect.call):
            return await effect.call(*effect.args)
        return await asyncio.get_running_loop().run_in_executor(self._executor, effect.call, *effect.args)

    async def _talk(self, connection: AsyncConnection) -> None:
        session = connection.session
        try:
            await self._exchange(connection)
            await self.perform(session.ended())
        except Exception as error:
            session.fail(reason_of(error))
            await connection.farewell()
            self.changed.set()
        finally:
            self._forget(connection)

    def _forget(self, connection: AsyncConnection) -> None:
        connection.abort()
        self._connections.pop(connection, None)

    async def _exchange(self, connection: AsyncConnection) -> None:
        session = connection.session
        deadline: float | None = asyncio.get_running_loop().time() + self._handshake_seconds
        while data := await connection.receive(deadline):
            await self.perform(session.receive(data))
            await connection.send()
            if session.is_over:
                break
            if session.is_greeted:
                deadline = None
        if data is None:
            session.fail(f"no HELLO within {self._handshake_seconds:g} s")
        if session.is_over:
            await connection.farewell()
