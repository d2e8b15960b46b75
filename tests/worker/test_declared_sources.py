"""The settings of sources with several partitions, in the bucket."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from penstock.bucket.objects import Bucket
from penstock.bucket.stores import open_bucket
from penstock.core.errors import Damaged, TakenOver, Unavailable, UnreadableFormat
from penstock.ingest.settings import Listener, settings_of
from penstock.protocol.api.deployment import ConnectorSpec
from penstock.protocol.event_time.field import EventTimeField
from penstock.worker.declared_sources import SOURCES, Declaration, Version, publish, published, read, withdraw

ORDERS = ConnectorSpec(
    name="orders",
    id="orders",
    instance="01",
    type="connector-protocol",
    config={"cookie_file": "secret"},
    partitions=4,
    segments=3,
    max_disorder_us=5,
    event_time=EventTimeField(field="ts", format="ms", codec="json"),
)


FIRST, LATER = Version(term=1, revision=7), Version(term=1, revision=8)
SUCCESSOR = Version(term=2, revision=7)


def declared(spec: ConnectorSpec, *, is_running: bool = True) -> Declaration:
    return Declaration(spec=spec, own_event_times=True, is_running=is_running)


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket(f"memory://{uuid4().hex}")


def test_other_shards_read_what_the_application_has_declared(bucket: Bucket) -> None:
    assert read(bucket, "orders", 7) is None
    publish(bucket, declared(ORDERS), FIRST)
    assert read(bucket, "orders", 7) == (settings_of(ORDERS, own_event_times=True, quota_bytes=7), None)
    changed = replace(ORDERS, quota_bytes=99, idle_timeout_seconds=2.0)
    for _ in range(2):
        publish(bucket, declared(changed), LATER)
    assert read(bucket, "orders", 7) == (settings_of(changed, own_event_times=True), None)
    withdraw(bucket, "orders", LATER)
    assert read(bucket, "orders", 7) is None
    assert published(bucket) == ["orders"]


def test_the_options_of_the_connector_are_not_published(bucket: Bucket) -> None:
    publish(bucket, declared(ORDERS), FIRST)
    assert b"secret" not in bucket.get(f"{SOURCES}orders").data


def test_what_cannot_be_read_is_refused(bucket: Bucket) -> None:
    bucket.create(f"{SOURCES}a", [b'{"format": 1}'])
    bucket.create(f"{SOURCES}b", [b'{"format": 2, "own_event_times": true, "spec": {}}'])
    with pytest.raises(Damaged, match="sources/a is not valid"):
        read(bucket, "a", None)
    with pytest.raises(UnreadableFormat):
        read(bucket, "b", None)


def test_a_connector_that_every_worker_runs_is_published_while_it_runs(bucket: Bucket) -> None:
    listening = replace(ORDERS, type="tcp-server", config={"port": 7}, listen="every-worker")
    publish(bucket, declared(listening), FIRST)
    found = read(bucket, "orders", None)
    assert found is not None
    assert found.listener == Listener(listening, has_out=True)
    publish(bucket, declared(listening, is_running=False), FIRST)
    found = read(bucket, "orders", None)
    assert found is not None
    assert found.listener is None


class InterruptedBucket:
    """Others act before each of its writes takes effect."""

    def __init__(self, bucket: Bucket, act: Callable[[], object]) -> None:
        self._bucket, self._act = bucket, act

    def replace(self, key: str, data: bytes, version: str) -> str:
        self._act()
        return self._bucket.replace(key, data, version)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)


@pytest.mark.parametrize("version", [FIRST, Version(term=1, revision=99)])
def test_an_owner_that_was_replaced_changes_nothing(bucket: Bucket, version: Version) -> None:
    changed = declared(replace(ORDERS, quota_bytes=99))
    publish(bucket, changed, SUCCESSOR)
    with pytest.raises(TakenOver, match=r"sources/orders was written for Version\(term=2"):
        publish(bucket, declared(ORDERS), version)
    with pytest.raises(TakenOver):
        withdraw(bucket, "orders", version)
    assert read(bucket, "orders", 7) == (settings_of(changed.spec, own_event_times=True, quota_bytes=7), None)
    withdraw(bucket, "orders", SUCCESSOR)
    with pytest.raises(TakenOver):
        publish(bucket, declared(ORDERS), version)
    assert read(bucket, "orders", 7) is None


def test_an_older_revision_does_not_replace_a_newer_one(bucket: Bucket) -> None:
    publish(bucket, declared(ORDERS), LATER)
    with pytest.raises(TakenOver):
        withdraw(bucket, "orders", FIRST)


@pytest.mark.parametrize("quota_bytes", [None, 99])
def test_an_owner_that_sleeps_while_it_writes_changes_nothing(bucket: Bucket, quota_bytes: int | None) -> None:
    """Also if its successor has declared what it had read: then only the term is another one."""
    publish(bucket, declared(ORDERS), FIRST)
    newest = declared(replace(ORDERS, quota_bytes=quota_bytes))
    asleep: Any = InterruptedBucket(bucket, lambda: publish(bucket, newest, SUCCESSOR))
    with pytest.raises(Unavailable):
        withdraw(asleep, "orders", LATER)
    with pytest.raises(TakenOver):
        withdraw(asleep, "orders", LATER)
    assert read(bucket, "orders", 7) == (settings_of(newest.spec, own_event_times=True, quota_bytes=7), None)


def test_records_of_earlier_releases_are_replaced(bucket: Bucket) -> None:
    bucket.create(f"{SOURCES}orders", [b'{"format": 1, "own_event_times": true, "spec": null}'])
    publish(bucket, declared(ORDERS), FIRST)
    assert read(bucket, "orders", 7) is not None
