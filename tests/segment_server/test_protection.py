"""What belongs to the worker's other parts can be read over the segment port, and not changed."""

from collections.abc import Callable

import pytest

from penstock.client.segments import SegmentClient
from penstock.core.errors import Damaged, RequestError
from penstock.store.store import SegmentStore
from tests.support.running_worker import RunningWorker

OWNED = ("connector/s/0", "connector/s/streams", "coordinator/ledger", "coordinator/streams/p", "pipeline/p/out")

CHANGES: dict[str, Callable[[SegmentClient, str], object]] = {
    "create": lambda client, name: client.create(f"{name}-new"),
    "append": lambda client, name: client.appender(name).append(b"1"),
    "seal": lambda client, name: client.seal(name),
    "truncate": lambda client, name: client.truncate(name, 1),
    "delete": lambda client, name: client.delete(name),
    "merge into it": lambda client, name: client.merge(name, "mine"),
    "merge it away": lambda client, name: client.merge("mine", name),
    "attribute": lambda client, name: client.set_attribute(name, bytes(16), 1),
}


@pytest.fixture
def store(worker: RunningWorker) -> SegmentStore:
    return worker._worker._store


def in_loop(worker: RunningWorker, work: Callable[[], object]) -> None:
    """The store belongs to the worker's thread."""
    worker._loop.call_soon_threadsafe(work)


def test_a_change_is_refused_and_reports_why(worker: RunningWorker, store: SegmentStore) -> None:
    with SegmentClient(worker.address, retry_seconds=0) as client:
        client.create("mine")
        for name in OWNED:
            in_loop(worker, lambda name=name: (store.create(name), store.append(name, [b"kept"])))  # type: ignore[misc]
            for change in CHANGES.values():
                with pytest.raises(RequestError, match="cannot be changed over this port") as caught:
                    change(client, name)
                assert caught.type is RequestError
            assert bytes(client.read(name, 0, 10).data) == b"kept"


def test_tasks_make_fill_and_delete_what_they_stage_and_no_more(worker: RunningWorker) -> None:
    name = "staging/p/1/0/0-0/out"
    with SegmentClient(worker.address, retry_seconds=0) as client:
        client.create("mine")
        with client.appender(name, create=True) as appender:
            appender.append(b"1")
        for change in ("seal", "truncate", "merge into it", "merge it away", "attribute"):
            with pytest.raises(RequestError, match="is staged"):
                CHANGES[change](client, name)
        client.delete(name)


def test_a_quota_does_not_bind_what_is_staged(worker: RunningWorker, store: SegmentStore) -> None:
    with SegmentClient(worker.address, retry_seconds=0) as client:
        client.create("staging/p/1/0/0-0/out")
        client.create("mine")
    assert store.info("staging/p/1/0/0-0/out").attributes
    assert not store.info("mine").attributes


def test_a_damaged_segment_may_be_truncated_by_an_operator_and_that_is_logged(
    worker: RunningWorker, store: SegmentStore, caplog: pytest.LogCaptureFixture
) -> None:
    in_loop(worker, lambda: (store.create("connector/s/0"), store.append("connector/s/0", [b"12"])))
    in_loop(worker, lambda: store.note_damage("connector/s/0", Damaged("a bit has flipped")))
    caplog.set_level("INFO", "penstock.audit")
    with SegmentClient(worker.address, retry_seconds=0) as client:
        client.create("mine")
        client.delete("mine")
        client.truncate("connector/s/0", 1)
        with pytest.raises(RequestError, match="cannot be changed"):
            client.seal("connector/s/0")
        client.delete("connector/s/0")
    assert [record.getMessage() for record in caplog.records if record.name == "penstock.audit"] == [
        '"everyone" on the segment port: truncate before 1 "connector/s/0": done',
        '"everyone" on the segment port: delete "connector/s/0": done',
    ]
