"""The settings of sources with several partitions, in the bucket."""

from dataclasses import replace
from uuid import uuid4

import pytest

from penstock.bucket.objects import Bucket
from penstock.bucket.stores import open_bucket
from penstock.core.errors import Damaged, UnreadableFormat
from penstock.ingest.settings import Listener, settings_of
from penstock.protocol.api.deployment import ConnectorSpec
from penstock.protocol.event_time.field import EventTimeField
from penstock.worker.declared_sources import SOURCES, Declaration, publish, published, read, withdraw

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


def declared(spec: ConnectorSpec, *, is_running: bool = True) -> Declaration:
    return Declaration(spec=spec, own_event_times=True, is_running=is_running)


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket(f"memory://{uuid4().hex}")


def test_other_shards_read_what_the_application_has_declared(bucket: Bucket) -> None:
    assert read(bucket, "orders", 7) is None
    publish(bucket, declared(ORDERS))
    assert read(bucket, "orders", 7) == (settings_of(ORDERS, own_event_times=True, quota_bytes=7), None)
    changed = replace(ORDERS, quota_bytes=99, idle_timeout_seconds=2.0)
    for _ in range(2):
        publish(bucket, declared(changed))
    assert read(bucket, "orders", 7) == (settings_of(changed, own_event_times=True), None)
    withdraw(bucket, "orders")
    assert read(bucket, "orders", 7) is None
    assert published(bucket) == ["orders"]


def test_the_options_of_the_connector_are_not_published(bucket: Bucket) -> None:
    publish(bucket, declared(ORDERS))
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
    publish(bucket, declared(listening))
    found = read(bucket, "orders", None)
    assert found is not None
    assert found.listener == Listener(listening, has_out=True)
    publish(bucket, declared(listening, is_running=False))
    found = read(bucket, "orders", None)
    assert found is not None
    assert found.listener is None
