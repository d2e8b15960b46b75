"""`script/bench bucket`: a journal in an object store, which is SeaweedFS on this machine: appends beside a bare loop
of PUTs; the time from the kill of a worker to the first acknowledgement of the next one; ingest and a pipeline beside
the same on a disk.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from bench.bucket_journal import SIZES, Appends, BareLoop, JournalLoop, Place
from bench.bucket_workers import BUCKET, DISK, Note, ingest, pipeline, starts, take_overs
from bench.contender import Effort as LoadEffort
from bench.contender import Measurement
from bench.harness import Report, base_directory, figures, interleave, percentile, progress, ratios, surroundings
from bench.pipeline_flow import Counted
from penstock.testing.seaweedfs import SeaweedFS

BARE, JOURNAL = "bare", "journal"

GOAL = 0.7
"""Of the bare loop's bytes per second."""

TAKE_OVER_SECONDS_MAX = 10.0
"""With the lease, which is six seconds."""

STARTS = "start with a full log: seconds"

START_SECONDS_MAX = 4.0
"""What the lease leaves of the time for a take-over."""

GROWTH_MAX = 1.5
"""A take-over with ten times as much in the journal: about the same."""


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    measure_s: float
    gigabytes: tuple[float, ...]
    """In the journal when a worker is killed."""
    take_overs: int
    """For each size."""
    log_groups: int
    """In a log that nobody has folded, when a worker starts."""
    ingest_rounds: int
    pipeline_rounds: int
    """0: Spark is not started."""
    pipeline_events: int


QUICK = Effort(
    3, 3.0, (0.1, 0.5), take_overs=2, log_groups=499, ingest_rounds=3, pipeline_rounds=1, pipeline_events=1_000_000
)
FULL = Effort(
    7, 10.0, (1.0, 10.0), take_overs=5, log_groups=499, ingest_rounds=10, pipeline_rounds=3, pipeline_events=5_000_000
)

WARMUP_S = 0.3


def run(
    effort: Effort,
    directory: Path | None = None,
    console: Console | None = None,
    sizes: Mapping[str, int] = SIZES,
    *,
    beside_disk: bool = False,
    shards: int = 0,
) -> BucketReport:
    """`beside_disk`: only what is compared with a disk. `shards`: only take-overs, of a worker that has so many."""
    if beside_disk:
        effort, sizes = replace(effort, gigabytes=(), log_groups=0), {}
    if shards:
        effort, sizes = replace(effort, log_groups=0, ingest_rounds=0, pipeline_rounds=0), {}
    steps = 2 * len(sizes) * effort.rounds + len(effort.gigabytes) * (effort.take_overs + 1)
    steps += effort.take_overs if effort.log_groups else 0
    steps += 2 * effort.ingest_rounds + (2 * (effort.pipeline_rounds + 1) if effort.pipeline_rounds else 0)
    with ExitStack() as stack:
        base = stack.enter_context(base_directory(directory))
        store = stack.enter_context(SeaweedFS(base / "store"))
        stack.enter_context(patch.dict(os.environ, store.environment()))
        note = stack.enter_context(progress(console, steps))
        place = Place(store, base, WARMUP_S, effort.measure_s)
        loops: list[BareLoop | JournalLoop] = []
        for label, size in sizes.items():
            loops += [BareLoop(f"{BARE} {label}", place, size), JournalLoop(f"{JOURNAL} {label}", place, size)]
        return BucketReport(
            labels=[*sizes],
            appends=interleave(loops, effort.rounds, lambda loop: loop.measure(), note),
            take_overs=take_overs(store, base, effort.gigabytes, effort.take_overs, note, shards),
            starts=starts(store, base, effort.log_groups, effort.take_overs, note) if effort.log_groups else [],
            ingest=ingest(store, base, _load(effort), note) if effort.ingest_rounds else {},
            pipeline=_pipeline(store, base, effort, note) if effort.pipeline_rounds else {},
            settings={"seconds": effort.measure_s, "shards": shards} | surroundings(base),
        )


def _pipeline(store: SeaweedFS, base: Path, effort: Effort, note: Note) -> Mapping[str, list[Counted]]:
    return pipeline(store, base, effort.pipeline_events, effort.pipeline_rounds, note)


def _load(effort: Effort) -> LoadEffort:
    return LoadEffort(
        effort.ingest_rounds, warmup_s=1.0, measure_s=effort.measure_s, probe_s=0.5, read_s=0, total_s_max=1e9
    )


@dataclass(frozen=True, slots=True)
class BucketReport(Report):
    labels: list[str]
    """Of the sizes of groups."""
    appends: Mapping[str, list[Appends]]
    take_overs: Mapping[str, list[float]]
    """Seconds, by the size of the journal."""
    ingest: Mapping[str, list[Measurement]]
    pipeline: Mapping[str, list[Counted]]
    settings: Mapping[str, object]
    starts: list[float] = field(default_factory=list)
    """Seconds, with a log that nobody has folded."""
    benchmark = "bucket"

    @property
    def goals(self) -> Mapping[str, float]:  # type: ignore[override]
        limits = dict.fromkeys((_seconds(size) for size in self.take_overs), TAKE_OVER_SECONDS_MAX)
        limits[STARTS] = START_SECONDS_MAX
        return dict.fromkeys(self.labels, GOAL) | limits | dict.fromkeys(self._growth(), GROWTH_MAX)

    @property
    def at_most(self) -> Collection[str]:  # type: ignore[override]
        return [*(_seconds(size) for size in self.take_overs), *self._growth(), STARTS]

    def round_ratios(self) -> dict[str, list[float]]:
        found = {label: self._ratios(label) for label in self.labels}
        found |= {_seconds(size): seconds for size, seconds in self.take_overs.items()}
        found |= self._growth()
        if self.starts:
            found[STARTS] = self.starts
        if self.ingest:
            rates = {name: [one.events_per_s for one in rounds] for name, rounds in self.ingest.items()}
            found["ingest"] = ratios(rates[BUCKET], rates[DISK])
        if self.pipeline:
            rates = {name: [one.events_per_s for one in rounds] for name, rounds in self.pipeline.items()}
            found["pipeline"] = ratios(rates[BUCKET], rates[DISK])
        return found

    def _ratios(self, label: str) -> list[float]:
        ours, bare = ([one.mb_per_s for one in self.appends[f"{name} {label}"]] for name in (JOURNAL, BARE))
        return ratios(ours, bare)

    def _growth(self) -> dict[str, list[float]]:
        """The take-over of the largest journal ÷ that of the smallest."""
        if len(self.take_overs) < 2:
            return {}
        (small, *_, large) = self.take_overs
        return {f"take-over {large} ÷ {small}": ratios(self.take_overs[large], self.take_overs[small])}

    def rounds(self) -> int:
        return max([*map(len, self.appends.values()), *map(len, self.ingest.values())], default=0)

    def details(self) -> dict[str, object]:
        return {
            "appends": {name: _summary(rounds) for name, rounds in self.appends.items()},
            "take_over_s": {size: [round(one, 2) for one in seconds] for size, seconds in self.take_overs.items()},
            "start_s": [round(one, 2) for one in self.starts],
            "ingest_events_per_s": _rates(self.ingest),
            "ingest_mb_per_s": {name: round(median(r.mb_per_s for r in got), 1) for name, got in self.ingest.items()},
            "pipeline_events_per_s": _rates(self.pipeline),
        }

    def tables(self) -> Iterable[Table]:
        if self.appends:
            yield self._append_table()
        yield self._worker_table()

    def _append_table(self) -> Table:
        columns = ("MB/s", "÷ bare", "goal", "p50 ms", "p99 ms", "PUT/GB", "GET/GB", "other/GB", "written ÷")
        table = figures("script/bench bucket: appends, one after the other", "group", *columns)
        for name, rounds in self.appends.items():
            facts, label = _summary(rounds), name.removeprefix(f"{JOURNAL} ")
            is_ours = label in self.labels
            compared = [self.ratio_cell(label), self.goal_cell(label)] if is_ours else ["", ""]
            requests = [f"{facts[kind]:,.0f}" for kind in ("put_per_gb", "get_per_gb", "other_per_gb")]
            requests = [*requests, f"{facts['written_per_byte']:.1f}"] if is_ours else []
            table.add_row(
                name, f"{facts['mb_per_s']:,.1f}", *compared, f"{facts['p50']:.1f}", f"{facts['p99']:.1f}", *requests
            )
        return table

    def _worker_table(self) -> Table:
        table = figures("Workers", "", "value", "goal")
        for name in self.round_ratios():
            if name not in self.labels:
                table.add_row(_MEANINGS.get(name, name), self.ratio_cell(name), self.goal_cell(name))
        return table

    def notes(self) -> Iterable[str]:
        for title, found in (("Ingest", self.ingest), ("Pipeline", self.pipeline)):
            if found:
                rates = ", ".join(f"{name} {rate:,}" for name, rate in _rates(found).items())
                yield f"{title}, in events/s: {rates}."
        yield "Requests are those of the journal alone: a worker renews its lease besides."
        yield "written ÷: bytes that are written to the store for each byte that is appended."


_MEANINGS = {"ingest": "ingest: bucket ÷ disk", "pipeline": "pipeline: bucket ÷ disk"}


def _seconds(size: str) -> str:
    return f"take-over {size}: seconds"


def _rates(found: Mapping[str, list[Measurement]] | Mapping[str, list[Counted]]) -> dict[str, int]:
    return {name: round(median(one.events_per_s for one in rounds)) for name, rounds in found.items()}


def _summary(rounds: list[Appends]) -> dict[str, float]:
    latencies = [one for each in rounds for one in each.latencies_ms]
    return {
        "mb_per_s": round(median(one.mb_per_s for one in rounds), 2),
        "p50": round(percentile(latencies, 50), 2),
        "p99": round(percentile(latencies, 99), 2),
        "put_per_gb": median(one.per_gb("put") for one in rounds),
        "get_per_gb": median(one.per_gb("get") for one in rounds),
        "other_per_gb": median(one.per_gb("delete") + one.per_gb("list") for one in rounds),
        "written_per_byte": round(median(one.written_per_byte for one in rounds), 2),
    }
