"""One contender's part of one round: a fresh server, a probe, the load, and what it has stored compared with what it
acknowledged. The same for every benchmark of appending.
"""

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.bench import events
from penstock.bench.contender import BenchmarkFailed, Contender
from penstock.bench.drive import Load
from penstock.bench.generator import Generators, ProbeJob, ReadJob
from penstock.bench.measurement import MEGABYTE, Cpu, Measurement
from penstock.bench.page_cache import recycled
from penstock.bench.process import Server, filesystem
from penstock.bench.rounds import workspace

READ_REQUEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Effort:
    """How long it takes. Many short rounds beat a few long ones: the median forgets more of them
    that were disturbed.
    """

    rounds: int
    warmup_s: float
    measure_s: float
    probe_s: float
    read_s: float
    """0: nothing is read back."""
    total_s_max: float
    """All rounds together; what is left out then is rounds."""


@dataclass(frozen=True, slots=True)
class Trials:
    """What stays the same from round to round."""

    connections: int
    effort: Effort
    base: Path
    generators: Generators

    def measure(self, contender: Contender) -> Measurement:
        """One contender's part of one round, with a fresh server."""
        with workspace(self.base) as directory, contender.start(directory) as server:
            return self._measure(contender, server)

    def _measure(self, contender: Contender, server: Server) -> Measurement:
        latencies_ms = self.generators.run(ProbeJob(contender.probe(server), self.effort.probe_s))
        load, cpu = self._load(contender, server)
        stored, acked = contender.stored(server), load.total + len(latencies_ms)
        if stored != acked:
            raise BenchmarkFailed(f"{contender.name} acknowledged {acked} events, has {stored}")
        return Measurement(
            events=load.events,
            seconds=load.seconds,
            event_bytes=events.EVENT_BYTES,
            latencies_ms=tuple(latencies_ms),
            read_mb_per_s=self._read(contender, server),
            peak_rss_bytes=server.peak_rss_bytes(),
            cpu=cpu,
        )

    def _load(self, contender: Contender, server: Server) -> tuple[Load, Cpu]:
        effort = self.effort
        self.generators.connect(contender.load(server), self.connections)
        with recycled(server.directory):
            began, before = time.monotonic(), server.cpu()
            load = self.generators.load(contender.window, effort.warmup_s, effort.measure_s)
        return load, server.cpu().since(before, time.monotonic() - began)

    def _read(self, contender: Contender, server: Server) -> float | None:
        target = contender.reading(server) if self.effort.read_s else None
        if target is None:
            return None
        job = ReadJob(target, READ_REQUEST_BYTES, self.effort.read_s)
        count, seconds = self.generators.run(job)
        return count / seconds / MEGABYTE

    def surroundings(self) -> dict[str, object]:
        """What a figure means nothing without."""
        return {
            "connections": self.connections,
            "seconds": self.effort.measure_s,
            "cores": os.cpu_count(),
            "filesystem": filesystem(self.base),
            "kernel": platform.release(),
            "python": platform.python_version(),
        }
