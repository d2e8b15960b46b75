"""What a host shows of all shards together, and to whom."""

from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from penstock.access.principals import Principal, Role
from penstock.bucket.counted_bucket import CountedBucket
from penstock.client.coordinator.connection import Connection
from penstock.cluster.places import Thing
from penstock.cluster.records import WorkerRecord
from penstock.core.errors import LimitExceeded, Unavailable
from penstock.protocol.api.cluster import ClusterStatus, Place
from penstock.protocol.api.pipelines import Announce
from penstock.protocol.api.status import ApplicationStatus, BucketStatus, ShardStatus, WorkerStatus
from penstock.testing.faulty_bucket import FaultyBucket
from penstock.worker import cluster_status, host_routes
from penstock.worker.cluster import loopback_problems
from penstock.worker.cluster_status import combined, merged_metrics, with_requests
from penstock.worker.host_routes import _HostRoutes
from penstock.worker.routes import PRINCIPAL
from penstock.worker.visibility import visible

SHOP = Principal("shop", Role.READ, ("shop-",))


def bucket(gets: int, rate: float) -> BucketStatus:
    empty = combined([], BucketStatus)
    return BucketStatus(
        **{name: getattr(empty, name) for name in BucketStatus.__struct_fields__}
        | {"requests": {"get": gets}, "requests_per_second": rate}
    )


def test_counts_and_rates_of_the_shards_are_added() -> None:
    whole = combined([bucket(3, 0.5), bucket(4, 1.5)], BucketStatus)
    assert (whole.requests, whole.requests_per_second) == ({"get": 7}, 2.0)


def test_requests_of_the_host_itself_are_counted() -> None:
    own = CountedBucket(FaultyBucket())
    own.create("cluster/workers/host", [b"0123"])
    whole = with_requests(bucket(3, 0.5), own.counts())
    assert whole is not None
    assert (whole.requests, whole.bytes_written) == ({"get": 3, "put": 1}, 4)
    assert whole.requests_per_month == pytest.approx(whole.requests_per_second * 30 * 24 * 3600)
    assert with_requests(None, own.counts()) is None


def test_the_application_is_that_of_the_shard_which_has_one() -> None:
    def status(revision: int, name: str, state: str) -> WorkerStatus:
        found = ApplicationStatus(revision=revision, name=name, state=state, waits_for=[])
        empty = combined([], WorkerStatus)
        return WorkerStatus(
            **{name: getattr(empty, name) for name in WorkerStatus.__struct_fields__} | {"application": found}
        )

    found = cluster_status._application([status(0, "", "running"), status(3, "shop", "drained")])
    assert found is not None
    assert (found.revision, found.name, found.state) == (3, "shop", "drained")
    assert cluster_status._application([]) is None


def test_a_principal_with_prefixes_sees_nothing_of_the_shards() -> None:
    shard = ShardStatus(
        shard=0,
        worker="w",
        host="h",
        addresses={"http": "machine:1"},
        is_served=True,
        sources=["bank"],
        pipelines=["payroll"],
        problems=["bank is damaged"],
    )
    empty = combined([], WorkerStatus)
    status = WorkerStatus(
        **{name: getattr(empty, name) for name in WorkerStatus.__struct_fields__} | {"shards": [shard]}
    )
    assert visible(status, Principal("everything", Role.READ)).shards == [shard]
    assert visible(status, SHOP).shards == []


class Shards:
    """Two, each with segments of two tenants."""

    def __init__(self, *names: list[str]) -> None:
        self._names = names

    async def ask(self, _cluster: object, _token: str, path: str, *, is_tls: bool) -> list[dict[str, Any]]:
        after = path.partition("after=")[2].partition("&")[0]
        later = [[name for name in names if name > after] for names in self._names]
        return [{"segments": [{"name": name} for name in names[:2]], "more": len(names) > 2} for names in later]


class HostOfShards:
    class directory:  # noqa: N801
        secret = "secret"

        @staticmethod
        async def likely(thing: Thing) -> int:
            return "abcd".find(thing.name) % 2

    class settings:  # noqa: N801
        http_ssl = None

    async def cluster(self) -> ClusterStatus:
        shards = [Place(shard=number, owner="o", term=1) for number in range(2)]
        return ClusterStatus(url="", worker="", workers=[], shards=shards)


async def test_pages_of_segments_have_no_name_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards(["bank-1", "bank-3", "shop-1"], ["bank-2", "shop-2", "zoo"])
    monkeypatch.setattr(host_routes, "ask_shards", shards.ask)
    monkeypatch.setattr(host_routes, "_PAGE", 2)
    routes = _HostRoutes(HostOfShards())  # type: ignore[arg-type]

    async def pages(principal: Principal) -> list[dict[str, Any]]:
        found, after, has_more = [], "", True
        while has_more:
            scope = {"type": "http", "query_string": f"after={after}".encode(), PRINCIPAL: principal}
            found.append(await routes.segments(Request(scope)))
            after, has_more = found[-1]["after"], found[-1]["more"]
        return found

    for principal, names in (
        (SHOP, ["shop-1", "shop-2"]),
        (Principal("all", Role.READ), ["bank-1", "bank-2", "bank-3", "shop-1", "shop-2", "zoo"]),
    ):
        found = await pages(principal)
        assert [one["name"] for page in found for one in page["segments"]] == names
        assert {page["after"] for page in found} <= {"", *names}


def test_a_worker_that_other_machines_cannot_reach_is_a_problem() -> None:
    def host(name: str, address: str, machine: str) -> WorkerRecord:
        return WorkerRecord(worker=name, revision=1, addresses={"http": address}, wants=1, machine=machine)

    local, public = host("a", "127.0.0.1:7102", "one"), host("b", "node-b:7102", "two")
    (problem,) = loopback_problems([local, public])
    assert "worker a can be reached on its own machine only (127.0.0.1:7102)" in problem
    assert "--advertise HOST" in problem
    assert loopback_problems([local, host("c", "[::1]:7102", "one")]) == []
    assert loopback_problems([public]) == []


def test_the_metrics_of_shards_get_a_label_and_stand_with_those_of_the_host() -> None:
    registry = CollectorRegistry()
    Counter("penstock_seen", "What was seen.", ["kind"], registry=registry).labels("host").inc(3)
    shard = CollectorRegistry()
    Counter("penstock_seen", "What was seen.", ["kind"], registry=shard).labels("shard").inc(4)
    Histogram("penstock_took_seconds", "How long.", buckets=(1.0,), registry=shard).observe(0.5)
    text = merged_metrics([*registry.collect()], {7: generate_latest(shard).decode()}).decode()
    assert text.count("# TYPE penstock_seen_total counter") == 1
    assert 'penstock_seen_total{kind="host"} 3.0' in text
    assert 'penstock_seen_total{kind="shard",shard="7"} 4.0' in text
    assert 'penstock_took_seconds_bucket{le="1.0",shard="7"} 1.0' in text
    assert [*text_string_to_metric_families(text)]


async def test_pipelines_that_start_are_announced_to_their_own_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[int, list[str]] = {}

    async def post(path: str, requests: Sequence[tuple[Place, Announce]], *_: object, **__: object) -> None:
        assert path == "/starting"
        sent.update({place.shard: sorted(body.pipelines) for place, body in requests})

    monkeypatch.setattr(host_routes, "post_to_shards", post)
    routes = _HostRoutes(HostOfShards())  # type: ignore[arg-type]
    await routes.announce("", Announce(pipelines={name: ["s"] for name in "abcd"}))
    assert sent == {0: ["a", "c"], 1: ["b", "d"]}


async def test_a_refusal_of_a_shard_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(self: Connection, method: str, path: str, body: bytes | None, wait_seconds: float = 0.0) -> bytes:
        raise LimitExceeded("too many pipelines")

    monkeypatch.setattr(Connection, "ask", ask)
    place = Place(shard=1, owner="w", term=1, addresses={"http": "127.0.0.1:1"})
    with pytest.raises(LimitExceeded, match="too many pipelines"):
        await cluster_status.post_to_shards("/starting", [(place, Announce(pipelines={}))], "", is_tls=False)
    nowhere = Place(shard=2, owner="", term=1)
    with pytest.raises(Unavailable, match="shard 2: no worker serves it now"):
        await cluster_status.post_to_shards("/starting", [(nowhere, Announce(pipelines={}))], "", is_tls=False)
