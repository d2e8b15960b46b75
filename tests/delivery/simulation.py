"""Sinks that fail at any step, votes of no, a worker that dies, parked epochs: chosen by a seed."""

import asyncio
from random import Random
from unittest.mock import patch

from penstock.connectors.sink_api import SinkLost
from penstock.core.errors import PenstockError
from penstock.core.retry import RetryPolicy
from penstock.delivery import backoff, service
from tests.delivery.memory_sink import Refuse
from tests.delivery.stage import PIPELINE, Stage, values

EPOCHS = 12


class Simulation:
    """`run` raises AssertionError if a sink repeats, lacks or reorders anything, or the system is stuck."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._stage = Stage()
        self._trouble = self._random.uniform(0.0, 0.25)
        self._expected = {name: [] for name in "abc"}  # type: dict[str, list[bytes]]

    @property
    def stage(self) -> Stage:
        return self._stage

    def _script(self, step: str) -> None:
        if self._random.random() < self._trouble:
            raise Refuse if step == "vote" and self._random.random() < 0.5 else SinkLost(f"lost {step}")

    async def run(self) -> None:
        stage = self._stage
        stage.scripts = dict.fromkeys("abc", self._script)
        await stage.open()
        try:
            await stage.bind(voting="a b", following="c")
            for epoch in range(EPOCHS):
                rows = values(epoch, self._random.randint(0, 4))
                await stage.put_out({"out": rows} if rows else {})
                for name in "abc":
                    self._expected[name] += rows
                await self._something()
                self._check()
            self._trouble = 0.0
            await stage.delivered()
            self._check(whole=True)
        finally:
            await stage.close()

    async def _something(self) -> None:
        chance = self._random.random()
        if chance < 0.2:
            await self._stage.crash()
        elif chance < 0.3:
            await self._park()
        await asyncio.sleep(self._random.choice([0.0, 0.001, 0.01]))

    async def _park(self) -> None:
        """Park what is refused now; the sink is no longer expected to have it."""
        stage = self._stage
        assert stage.delivery is not None
        waiting = stage.delivery.epochs(PIPELINE)
        if not waiting:
            return
        sink = self._random.choice("ab")
        before = stage.scene.coordinator.deliveries.state.pipelines[PIPELINE].sinks[sink].at
        try:
            await stage.delivery.park(PIPELINE, waiting[0].epoch, sink)
        except PenstockError:
            return
        after = stage.scene.coordinator.deliveries.state.pipelines[PIPELINE].sinks[sink].at
        self._forget(sink, waiting[0].epoch, after - before)

    def _forget(self, sink: str, epoch: int, size: int) -> None:
        assert size > 0
        parked = b" of epoch %d" % epoch
        self._expected[sink] = [value for value in self._expected[sink] if not value.endswith(parked)]

    def _check(self, *, whole: bool = False) -> None:
        for name in "ab":
            disk = self._stage.disks.get(name)
            found = [] if disk is None else disk.values
            assert found == self._expected[name][: len(found)], f"{name}: {found}"
            assert not whole or found == self._expected[name]
        taken: dict[str, list[bytes]] = dict(self._stage.taken.get("c", []))
        found = [value for rows in taken.values() for value in rows]
        assert found == self._expected["c"][: len(found)]
        assert not whole or found == self._expected["c"]


def simulate(seed: int) -> None:
    """Without the pauses between retries."""
    simulation = Simulation(seed)
    with (
        patch.object(service.Delivery, "_make", staticmethod(simulation.stage.make)),
        patch.object(backoff, "RETRIES", RetryPolicy(0.001, 0.004)),
    ):
        asyncio.run(simulation.run())
