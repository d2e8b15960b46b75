"""`script/bench cluster --simulate`: what is counted."""

import json

from bench.cluster import ClusterReport, first_bottleneck
from bench.cluster_growth import SHARDS_PER_WORKER, grow, reassign, registry_bytes_per_stream
from penstock.cluster.lease_state import LEASE_TIMING


def test_an_idle_cluster_makes_one_put_for_each_process_and_one_get_for_each_host_every_two_seconds() -> None:
    size = grow(4, (1,))
    processes = 4 + 4 * SHARDS_PER_WORKER
    assert size.per_second("PUT") * LEASE_TIMING.renew == processes
    of_leader = processes + 1  # all records, and the assignment
    assert size.per_second("GET") * LEASE_TIMING.renew == of_leader + 3


def test_losing_the_leader_takes_one_lease_longer() -> None:
    lost, leader = reassign(10, 1, 0.1), reassign(10, 0, 0.1)
    assert LEASE_TIMING.expired < lost < leader < lost + LEASE_TIMING.expired + 2 * LEASE_TIMING.renew


def test_a_stream_in_the_registry_takes_a_few_hundred_bytes() -> None:
    assert 100 < registry_bytes_per_stream(20_000) < 400


def test_the_report_names_the_first_bottleneck() -> None:
    report = ClusterReport([grow(3, (1,))], 200.0, {})
    assert "The first bottleneck is" in first_bottleneck(report.sizes[0])
    assert json.loads(report.to_json())["sizes"][0]["workers"] == 3
