"""Real processes that serve shards, with a map in a file instead of a bucket. They can be killed, and move.

python -m tests.support.shard_process DATA MAP SHARD HOST CONNECTOR_PORT

With a file DATA/token, that is the token of its owner; without one, everybody may do everything.
"""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX

ROOT = Path(__file__).parents[2]


@dataclass
class FileDirectory:
    """A ShardDirectory: `{"places": {source: shard}, "addresses": {shard: [http, segment]}}`."""

    path: Path
    shard: int
    secret: str = "the secret of the cluster"

    def _read(self) -> Any:
        return json.loads(self.path.read_text())

    async def shard_of(self, source: str) -> int:
        shard: int = self._read()["places"][source]
        return shard

    async def partitions(self, source: str) -> list[int]:
        return [await self.shard_of(source)]

    async def find(self, shard: int) -> Any:
        from penstock.coordinator.shards import ShardAddress

        found = self._read()["addresses"].get(str(shard))
        return None if found is None else ShardAddress(*found)


class ShardProcess:
    """The connector port stays the same, so that programs find it; the others change with each start, as they do when
    a shard moves to another machine.
    """

    def __init__(self, folder: Path, shard: int, host: str = "127.0.0.1", token: str = "") -> None:
        self.shard = shard
        self.host = host
        self._map = folder / "map.json"
        self._data = folder / f"shard-{shard}"
        self._data.mkdir()
        if token:
            (self._data / "token").write_text(token)
        self.connector_port = free_port()
        self.http = self.segment = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def connector(self) -> str:
        return f"{self.host}:{self.connector_port}"

    def start(self) -> Self:
        """Returns when it listens, and is in the map."""
        ready = self._data / "ready.json"
        ready.unlink(missing_ok=True)
        arguments = [str(self._data), str(self._map), str(self.shard), self.host, str(self.connector_port)]
        self._process = subprocess.Popen([sys.executable, "-m", "tests.support.shard_process", *arguments], cwd=ROOT)
        deadline = time.monotonic() + SECONDS_MAX
        while not ready.exists():
            assert self._process.poll() is None, "the shard's process has ended"
            assert time.monotonic() < deadline, "the shard's process does not start"
            time.sleep(0.01)
        ports = json.loads(ready.read_text())
        self.http, self.segment = (f"{self.host}:{ports[name]}" for name in ("http", "segment"))
        known = json.loads(self._map.read_text())
        known["addresses"][str(self.shard)] = [self.http, self.segment]
        _write(self._map, known)
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class ShardProcesses:
    """One process for each shard that a source is placed in."""

    def __init__(
        self, folder: Path, places: dict[str, int], hosts: Mapping[int, str] = MappingProxyType({}), token: str = ""
    ) -> None:
        """`hosts`: where each shard listens, if not at 127.0.0.1."""
        _write(folder / "map.json", {"places": places, "addresses": {}})
        self.shards = [
            ShardProcess(folder, shard, hosts.get(shard, "127.0.0.1"), token) for shard in sorted({*places.values()})
        ]

    def __enter__(self) -> list[ShardProcess]:
        for one in self.shards:
            one.start()
        return self.shards

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self.shards:
            one.kill()


def _write(path: Path, value: Any) -> None:
    path.with_suffix(".new").write_text(json.dumps(value))
    path.with_suffix(".new").replace(path)


async def _serve(data: Path, directory: FileDirectory, host: str, connector_port: int) -> None:
    from penstock.access.file import AccessFile, Open, WithCluster
    from penstock.coordinator.settings import CoordinatorSettings
    from penstock.core.sizes import MIB
    from penstock.ingest.settings import ProgramServerSettings
    from penstock.segment_server.settings import ServerSettings
    from penstock.store.settings import StoreSettings
    from penstock.worker.settings import WorkerSettings
    from penstock.worker.worker import Worker

    settings = WorkerSettings(
        data=data,
        access=WithCluster(AccessFile(data) if (data / "token").exists() else Open(), directory.secret),
        http_host=host,
        http_port=0,
        store=StoreSettings(chapter_bytes=MIB, reserve_bytes=2 * MIB),
        coordinator=CoordinatorSettings(truncate_seconds=0.5),
        segment=ServerSettings(host=host, port=0),
        programs=ProgramServerSettings(host=host, port=connector_port),
    )
    worker = Worker(settings, directory=directory)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run(lambda ports: _write(data / "ready.json", ports))


if __name__ == "__main__":
    data, path, shard, host, port = sys.argv[1:]
    asyncio.run(_serve(Path(data), FileDirectory(Path(path), int(shard)), host, int(port)))
