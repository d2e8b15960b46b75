"""One host with one shard and with two: the same programs send the same messages, and the shards' journals are in an
object store on this machine (SeaweedFS) or in a folder (`file://`). And two shards on the disk: in one process, each in
a thread, and in two.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

from bench.bucket_workers import SERVED_SECONDS_MAX, Note, served_ports, shard_of
from bench.contender import Effort as LoadEffort
from bench.contender import Measurement, Trials
from bench.contenders import shards
from bench.contenders.ingest import Ingest, IngestLink, IngestTarget
from bench.harness import interleave
from bench.load import Generators
from bench.processes import Server, ports_file, start_server
from penstock.testing.seaweedfs import SeaweedFS

SHARDS = (1, 2)
PROGRAMS = 8
"""Each is a source of its own. With two shards, half of them are in each: what places would give many sources."""
STREAMS = 2
"""Of each program."""
GENERATORS = 2
"""One process that sends as fast as one shard stores would be the bottleneck of two."""

STORES = ("seaweedfs", "file")
THREADS, PROCESSES = "threads", "processes"


def sources() -> list[str]:
    """Of the programs: each has a different shard than the one before it, if there are two."""
    names = [f"load-{number}" for number in range(10 * PROGRAMS)]
    first, second = ([name for name in names if shard_of(name, 2) == shard] for shard in range(2))
    return [name for pair in zip(first, second, strict=False) for name in pair][:PROGRAMS]


@dataclass(frozen=True, slots=True)
class ProgramTarget:
    """Where each program sends: to the process of its source's shard, as programs do once they were sent there. One
    that comes to another process is refused, and the benchmark fails.
    """

    ports: tuple[int, ...]
    """By shard."""
    sources: tuple[str, ...]
    one_by_one: bool = False

    def connect(self, index: int) -> IngestLink:
        source = self.sources[index]
        port = self.ports[shard_of(source, len(self.ports))]
        return IngestTarget(port, source, STREAMS, 1, one_by_one=self.one_by_one).connect(0)


class OnHost(Ingest):
    """Every round has a cluster of its own."""

    start_seconds_max = SERVED_SECONDS_MAX

    def __init__(self, shards: int, store: SeaweedFS | None) -> None:
        super().__init__(PROGRAMS, STREAMS)
        self.name = name_of(STORES[0 if store else 1], shards)  # type: ignore[misc]
        self._shards = shards
        self._store = store

    def start(self, directory: Path) -> Server:
        url = self._store.url(uuid4().hex) if self._store else (directory / "bucket").as_uri()
        self.options = ("--shards", str(self._shards), "--store", url)  # type: ignore[misc]
        server = super().start(directory)
        try:
            self._ports = served_ports(server, self._shards)
        except BaseException:
            server.stop()
            raise
        return server

    def load(self, server: Server) -> ProgramTarget:  # type: ignore[override]  # noqa: ARG002
        return ProgramTarget(self._ports, tuple(sources()))

    def probe(self, server: Server) -> ProgramTarget:  # type: ignore[override]  # noqa: ARG002
        return ProgramTarget(self._ports, ("probe",), one_by_one=True)


class OnDisk(Ingest):
    """Two shards without a host."""

    def __init__(self, how: str) -> None:
        super().__init__(PROGRAMS, STREAMS)
        self.name = SIDE_BY_SIDE[how]  # type: ignore[misc]
        self._how = how

    def start(self, directory: Path) -> Server:
        files = [ports_file(directory / f"{number}.json") for number in range(2)]
        (directory / "token").write_text("not needed here")
        os.environ["PENSTOCK_TOKEN_FILE"] = str(directory / "token")

        def find() -> Mapping[str, int] | None:
            found = [one() for one in files]
            return None if None in found else {}

        command = [sys.executable, "-m", shards.__name__, self._how, str(directory), "2"]
        server = start_server(command, directory, find, SERVED_SECONDS_MAX)
        self._ports = [one() or {} for one in files]
        return server

    def load(self, server: Server) -> ProgramTarget:  # type: ignore[override]  # noqa: ARG002
        return ProgramTarget(tuple(one["connector"] for one in self._ports), tuple(sources()))

    def probe(self, server: Server) -> ProgramTarget:  # type: ignore[override]
        return replace(self.load(server), sources=("probe",), one_by_one=True)

    def stored(self, server: Server) -> int:
        each = (replace(server, ports=ports) for ports in self._ports)
        return sum(super(OnDisk, self).stored(one) for one in each)


SIDE_BY_SIDE = {PROCESSES: "disk, 2 shards, 2 processes", THREADS: "disk, 2 shards, 2 threads"}


def name_of(store: str, shards: int) -> str:
    return f"{store}, {shards} shard{'s' if shards > 1 else ''}"


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


COMPARED = {
    **{store: (name_of(store, 2), name_of(store, 1)) for store in STORES},
    THREADS: (SIDE_BY_SIDE[THREADS], SIDE_BY_SIDE[PROCESSES]),
}
"""By ratio: which contender is divided by which."""


def ingest(base: Path, effort: LoadEffort, note: Note) -> Mapping[str, list[Measurement]]:
    """By the contenders' names."""
    with ExitStack() as stack:
        store = stack.enter_context(SeaweedFS(base / "store"))
        stack.enter_context(patch.dict(os.environ, store.environment()))
        generators = stack.enter_context(Generators(GENERATORS))
        contenders: list[Ingest] = [OnHost(count, one) for one in (store, None) for count in SHARDS]
        contenders += map(OnDisk, SIDE_BY_SIDE)
        deadline = time.monotonic() + effort.total_s_max
        return interleave(contenders, effort.rounds, Trials(PROGRAMS, effort, base, generators).measure, note, deadline)
