"""`script/bench cluster`: what is counted and compared, and a short real run."""

import json
from collections import Counter
from pathlib import Path

import pytest

from bench.bucket_workers import shard_of
from bench.cluster import ClusterReport, Effort, cores_of, first_bottleneck, run, runs_of
from bench.cluster_growth import SHARDS_PER_WORKER, Registry, grow, measure_registry, reassign
from bench.cluster_ingest import COMPARED, PROGRAMS, SIDE_BY_SIDE, STORES, THREADS, name_of, sources
from bench.cluster_threads import RUNS
from bench.contender import Effort as LoadEffort
from bench.contender import Measurement
from bench.processes import Cpu
from penstock.cluster.lease_state import LEASE_TIMING
from penstock.ingest.partitions import LOOK_SECONDS
from penstock.store.bucket_files import OWNER_SECONDS

REGISTRY = Registry(200.0, 1e-6, 1e-7)


def test_an_idle_cluster_makes_one_put_for_each_process_and_one_get_for_each_host_every_two_seconds() -> None:
    size = grow(4, (1,))
    processes = 4 + 4 * SHARDS_PER_WORKER
    assert size.per_second("PUT") * LEASE_TIMING.renew == processes
    of_leader = processes + 1  # all records, and the assignment
    in_rounds = (of_leader + 3) / LEASE_TIMING.renew
    of_shards = 4 * SHARDS_PER_WORKER * (1 / OWNER_SECONDS + 1 / LOOK_SECONDS)  # ends of logs, and settings
    assert size.per_second("GET") == pytest.approx(in_rounds + of_shards)


def test_losing_the_leader_takes_one_lease_longer() -> None:
    lost, leader = reassign(10, 1, 0.1), reassign(10, 0, 0.1)
    assert LEASE_TIMING.expired < lost < leader < lost + LEASE_TIMING.expired + 2 * LEASE_TIMING.renew


def test_a_stream_in_the_registry_takes_a_few_hundred_bytes_and_some_microseconds() -> None:
    measured = measure_registry(20_000)
    assert 100 < measured.bytes < 400
    assert measured.looked_at_s > 0
    assert measured.restored_s > 0


def test_the_report_names_the_first_bottleneck() -> None:
    report = ClusterReport([grow(3, (1,))], REGISTRY, {})
    assert "The first bottleneck is" in first_bottleneck(report.sizes[0])
    assert json.loads(report.to_json())["sizes"][0]["workers"] == 3


def measured(events: int) -> Measurement:
    return Measurement(events, 1.0, 100, (1.0, 2.0), cpu=Cpu(0.5, 0.25))


def test_ingest_into_two_shards_is_compared_with_one() -> None:
    found = {name_of(store, shards): [measured(100 * shards)] for store in STORES for shards in (1, 2)}
    found |= {SIDE_BY_SIDE[how]: [measured(50 if how == THREADS else 100)] for how in SIDE_BY_SIDE}
    report = ClusterReport([grow(3, (1,))], REGISTRY, {}, found, {run: [0.5] for run in RUNS})
    assert report.ratios() == {
        **dict.fromkeys(map(runs_of, RUNS), 0.5),
        **dict.fromkeys(STORES, 2.0),
        **dict.fromkeys(map(cores_of, STORES), 0.5),
        THREADS: 0.5,
        cores_of(THREADS): 2.0,
    }
    assert len([*report.tables()]) == 3
    assert ClusterReport([], REGISTRY, {}).ratios() == {}


def test_programs_are_spread_evenly_over_two_shards() -> None:
    assert Counter(shard_of(name, 2) for name in sources()) == {0: PROGRAMS // 2, 1: PROGRAMS // 2}
    assert {shard_of(name, 1) for name in sources()} == {0}


@pytest.mark.long
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_shard_and_two_are_measured(tmp_path: Path) -> None:
    load = LoadEffort(1, warmup_s=0.1, measure_s=0.3, probe_s=0.1, read_s=0, total_s_max=1e9)
    found = run(Effort((3,), 20_000, load, (1, 0.1)), tmp_path)
    assert set(found.ratios()) == {*COMPARED, *map(cores_of, COMPARED), *map(runs_of, RUNS)}
    assert all(value > 0 for value in found.ratios().values())
    assert list(tmp_path.iterdir()) == []
