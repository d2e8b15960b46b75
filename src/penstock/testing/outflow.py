"""Epochs that a test gives to a hosted sink, as delivery does: in order, each until it is taken."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgpack

from penstock.connectors.api import StreamRef
from penstock.delivery.block import Block
from penstock.delivery.sink import PLAIN, SinkLost, Transaction
from penstock.hosting.sink.hosted_sinks import HostedSinks
from penstock.hosting.sink.rows import Row, encode_rows
from penstock.protocol.stored.bulk import Wanted, decode
from penstock.protocol.stored.layout import NO_TIME
from penstock.protocol.stored.names import Kind

_AGAIN_SECONDS = 0.1
"""Between two tries, if nothing wakes it."""


@dataclass(frozen=True, slots=True)
class GivenEpoch:
    """An Epoch."""

    number: int
    pipeline: str
    data: bytes

    @property
    def name(self) -> str:
        return f"{self.pipeline}:1:{self.number}"

    @property
    def transaction_id(self) -> bytes:
        return self.name.encode()

    @property
    def start(self) -> int:
        return 0

    @property
    def transaction(self) -> Transaction:
        return Transaction(self.transaction_id, self.number, 0, len(self.data))

    async def journalled(self) -> None: ...

    async def blocks(self, wanted: Wanted = PLAIN) -> AsyncIterator[Block]:
        yield Block(decode(self.data, 0, Kind.STORED, wanted), 0)


class GivenEpochs:
    """Of one pipeline, for one connector."""

    def __init__(self, sinks: HostedSinks, pipeline: str, connector: str) -> None:
        self._pipeline = pipeline
        self._woken = asyncio.Event()
        self._outflow = sinks.make(pipeline, connector, connector, self._woken.set)
        self._waiting: asyncio.Queue[GivenEpoch] = asyncio.Queue()
        self._ids: dict[StreamRef | None, int] = {}
        self._count = 0
        self.done = 0
        """The number of the last epoch that is settled, and all before it."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._outflow.close()

    def add(self, stream: StreamRef | None, values: Sequence[bytes], ids: Sequence[int] | None) -> int:
        if ids is None:
            first = self._ids.get(stream, 0) + 1
            ids = range(first, first + len(values))
        self._ids[stream] = ids[-1]
        self._count += 1
        stream_id = 0 if stream is None else stream.stream_id
        metadata = b"" if stream is None else msgpack.packb({"source": stream.connector})
        rows = [
            Row(number, stream_id, event_id, NO_TIME, b"", metadata, value)
            for number, (event_id, value) in enumerate(zip(ids, values, strict=True))
        ]
        self._waiting.put_nowait(GivenEpoch(self._count, self._pipeline, encode_rows(rows)))
        return self._count

    async def _run(self) -> None:
        while True:
            epoch = await self._waiting.get()
            while not await self._taken(epoch):
                self._woken.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), _AGAIN_SECONDS)
            self.done = epoch.number

    async def _taken(self, epoch: GivenEpoch) -> bool:
        try:
            settling = await self._outflow.deliver(epoch)
            if settling is not None:
                settled = asyncio.Event()
                settling.when_done(settled.set)
                await settled.wait()
                settling.result()
        except SinkLost:
            return False
        return True
