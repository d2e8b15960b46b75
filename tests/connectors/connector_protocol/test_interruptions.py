"""Whatever is cancelled, refused, aborted or cut, a sink has every epoch once and in order."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.connectors.connector_protocol.options import ConnectorProtocolOptions
from penstock.connectors.connector_protocol.sink import ConnectorSink
from penstock.connectors.sink_api import SinkLost, Vote
from penstock.core.address import Address
from tests.client.sink.recorder import Recorder
from tests.client.sink.running_sink import KINDS, serve_with
from tests.delivery.fake_epoch import FakeEpoch
from tests.support.cutting_proxy import CuttingProxy

EPOCHS = 25
CUTS_MAX = 1_000_000
BYTES_MAX = 1_000
"""Bytes of a connection before it is cut: a handshake and some epochs of a test."""


class Engine:
    """Delivers epochs as delivery does: a decision is stored before it is sent, and no attempt's number is reused."""

    def __init__(self, sink: ConnectorSink, seed: int) -> None:
        self._sink = sink
        self._random = random.Random(seed)
        self._is_open = False
        self._attempt = 0
        self._decided = b""
        self._start = 0
        self.epochs = [
            [b"%d/%d" % (number, row) * self._random.randrange(9) for row in range(1 + self._random.randrange(8))]
            for number in range(EPOCHS)
        ]
        self.done = 0

    async def run(self) -> None:
        while self.done < EPOCHS:
            try:
                if not self._is_open:
                    await self._sink.open(self._decided)
                    self._is_open = True
                await self._deliver()
            except SinkLost:
                await self._sink.close()
                self._is_open = False

    async def _deliver(self) -> None:
        self._attempt += 1
        epoch = FakeEpoch(self.epochs[self.done], start=self._start, number=self.done, attempt=self._attempt)
        vote = await self._prepare(epoch)
        if vote is None or not vote.yes or self._random.random() < 0.1:
            await self._sink.abort(epoch.transaction_id)
            return
        self._decided, self._start = epoch.transaction_id, epoch.end
        self.done += 1
        await self._sink.commit(epoch.transaction)

    async def _prepare(self, epoch: FakeEpoch) -> Vote | None:
        """None if it was cancelled, as after a vote of no by another sink."""
        preparing = asyncio.create_task(self._sink.prepare(epoch))
        if self._random.random() < 0.2:
            for _ in range(self._random.randrange(8)):
                await asyncio.sleep(0)
            preparing.cancel()
        with suppress(asyncio.CancelledError):
            return await preparing
        return None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
async def test_every_epoch_is_committed_once_and_in_order(kind: str, seed: int, tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.votes = [random.Random(seed).random() < 0.8 for _ in range(EPOCHS)]
    with serve_with(kind, tmp_path / "state")(recorder) as address:
        target = Address.parse(address)
        cutting = CuttingProxy(target.port, cuts=CUTS_MAX, bytes_max=BYTES_MAX, seed=seed)
        async with asyncio.timeout(60), cutting.run() as proxy:
            engine = await _run(proxy, seed)
            assert CUTS_MAX - proxy.cuts_left > 3
    assert recorder.payloads == [value for epoch in engine.epochs for value in epoch]


async def _run(proxy: CuttingProxy, seed: int) -> Engine:
    """Deliver all epochs, and open one more session without interruption, in which the last decision arrives."""
    sink = ConnectorSink(ConnectorProtocolOptions(host="127.0.0.1", port=proxy.port), "p/out")
    engine = Engine(sink, seed)
    await engine.run()
    proxy.is_cutting = False
    await sink.open(engine._decided)
    await sink.end()
    await sink.close()
    return engine
