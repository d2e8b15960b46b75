"""A pipeline whose output goes to sinks in memory, on a coordinator that can be killed."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from penstock.coordinator.machine.state import Sink
from penstock.delivery import service
from penstock.delivery.service import Delivery
from penstock.protocol.api.pipelines import Staged
from penstock.protocol.stored.bulk import encode
from tests.coordinator.scene import Scene
from tests.delivery.fake_epoch import column
from tests.delivery.memory_sink import Disk, MemoryNonVotingSink, MemorySink, Script

PIPELINE = "p"


def values(epoch: int, count: int = 3) -> list[bytes]:
    return [b"%d of epoch %d" % (number, epoch) for number in range(count)]


class Stage:
    """`disks` and `taken` are what the sinks have; `scripts` define how they fail."""

    def __init__(self) -> None:
        self.scene = Scene()
        self.disks: dict[str, Disk] = {}
        self.taken: dict[str, list[tuple[str, list[bytes]]]] = {}
        self.scripts: dict[str, Script] = {}
        self.merged = 0
        self.delivery: Delivery | None = None
        self.may_act: Callable[[], bool] = lambda: True

    async def open(self) -> None:
        await self.scene.open()
        self.delivery = Delivery(self.scene.coordinator.deliveries, may_act=lambda: self.may_act())
        self.delivery.start()

    async def close(self) -> None:
        if self.delivery is not None:
            await self.delivery.stop()
        await self.scene.close()

    async def crash(self) -> None:
        """Kill the worker, without notifying the sinks. What is durable remains."""
        assert self.delivery is not None
        assert self.delivery._watching is not None
        tasks = [*self.delivery._tasks.values(), self.delivery._watching]
        for task in tasks:
            task.cancel()
        for task in tasks:
            await task.stop()
        await self.scene.close()
        await self.open()

    def make(self, _: str, name: str, sink: Sink, wake: Callable[[], None] | None = None) -> Any:
        def script(step: str) -> None:
            if name in self.scripts:
                self.scripts[name](step)

        if sink.votes:
            return MemorySink(self.disks.setdefault(name, Disk()), script)
        return MemoryNonVotingSink(self.taken.setdefault(name, []), script)

    async def bind(self, *, voting: str = "", following: str = "", port: str = "out") -> None:
        sinks = {name: (port, f"memory:{name}", True) for name in voting.split()}
        sinks |= {name: (port, f"memory:{name}", False) for name in following.split()}
        await self.scene.coordinator.deliveries.bind(PIPELINE, sinks)

    async def put_out(self, outputs: Mapping[str, list[bytes]] | None = None) -> None:
        """Output the next epoch."""
        staged = []
        for port, rows in ({"out": values(self.merged)} if outputs is None else outputs).items():
            segment = f"staging/{PIPELINE}/-/{self.merged}/0-0/{port}"
            staged.append(Staged(port, segment, await self.scene.append(segment, bytes(encode(column(rows)).data))))
        await self.scene.coordinator.merger.merge(PIPELINE, None, self.merged, staged)
        self.merged += 1

    async def delivered(self) -> None:
        """Return when every sink has everything, and nothing is in doubt."""
        assert self.delivery is not None
        await self.scene.until(self.is_delivered)

    def is_delivered(self) -> bool:
        assert self.delivery is not None
        in_doubt = any(disk.in_doubt for disk in self.disks.values())
        return not self.delivery.epochs(PIPELINE) and not in_doubt

    async def shows(self, state: str) -> None:
        """Return when the first waiting epoch has this state."""
        delivery = self.delivery
        assert delivery is not None
        await self.scene.until(lambda: [one.state for one in delivery.epochs(PIPELINE)][:1] == [state])


@asynccontextmanager
async def staged(monkeypatch: Any) -> AsyncIterator[Stage]:
    stage = Stage()
    monkeypatch.setattr(service.Delivery, "_make", staticmethod(stage.make))
    await stage.open()
    try:
        yield stage
    finally:
        await stage.close()
