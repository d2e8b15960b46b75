"""A process that serves a shard, with a map in a file instead of a bucket: `DATA MAP SHARD`. Prints its ports."""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.access.file import Open, WithCluster
from penstock.coordinator.machine.state import Retention
from penstock.coordinator.settings import CoordinatorSettings
from penstock.coordinator.shards import ShardAddress
from penstock.ingest.settings import ProgramServerSettings
from penstock.segment_server.settings import ServerSettings
from penstock.worker.settings import WorkerSettings
from penstock.worker.worker import Worker

IN_FLIGHT = 1 << 30
"""The load generator counts messages by the credits that come back: none are withheld."""


@dataclass(frozen=True, slots=True)
class FileDirectory:
    """`{"places": {source: shard}, "addresses": {shard: [http, segment]}}`."""

    path: Path
    shard: int
    secret: str = "of this benchmark"  # noqa: S105  nobody else is there

    async def shard_of(self, source: str) -> int:
        shard: int = json.loads(self.path.read_text())["places"].get(source, self.shard)
        return shard

    async def partitions(self, source: str) -> list[int]:
        return [await self.shard_of(source)]

    async def find(self, shard: int) -> ShardAddress | None:
        found = json.loads(self.path.read_text())["addresses"].get(str(shard))
        return None if found is None else ShardAddress(*found)


def _print(ports: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()


def main(data: Path, path: Path, shard: int, report: Callable[[dict[str, int]], None] = _print) -> None:
    directory = FileDirectory(path, shard)
    settings = WorkerSettings(
        data=data,
        access=WithCluster(Open(), directory.secret),
        http_port=0,
        coordinator=CoordinatorSettings(retention=Retention("keep")),
        segment=ServerSettings(port=0),
        programs=ProgramServerSettings(port=0, in_flight_bytes_max=IN_FLIGHT),
    )
    worker = Worker(settings, directory=directory)
    asyncio.run(worker.run(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
