"""Events are looked up by their position, many at a time, in the requested order."""

import pyarrow as pa
import pytest

from penstock.core.errors import Damaged, DataLoss
from penstock.spark.python_worker import link
from penstock.spark.source.originals import originals
from tests.protocol.stored.events import stored
from tests.spark.stored_data import store_events, truncate
from tests.support.running_worker import RunningWorker

FIRST, SECOND = "connector/sales/0", "connector/sales/1"


def found(worker: RunningWorker, *places: tuple[str, int]) -> pa.Table:
    http = f"127.0.0.1:{worker.ports['http']}"
    segments, offsets = zip(*places, strict=True)
    table = pa.table({"segment": pa.array(segments), "offset": pa.array(offsets)})
    return originals(http, lambda there: link(there, None, None, None), table)


def store(worker: RunningWorker, segment: str, sizes: list[int]) -> list[int]:
    """Store events with payloads of these sizes. Returns where each starts."""
    events = [stored(3, number, number * 10, b"k%d" % number, bytes(size)) for number, size in enumerate(sizes)]
    store_events(worker, segment, events)
    offsets = [0]
    for event in events:
        offsets.append(offsets[-1] + len(event))
    return offsets[:-1]


def test_events_are_returned_in_the_order_and_number_requested(worker: RunningWorker) -> None:
    near = store(worker, FIRST, [10] * 100)
    far = store(worker, SECOND, [10, 200_000, 10, 200_000, 10])
    asked = [
        (SECOND, far[4]),
        (FIRST, near[7]),
        (SECOND, far[0]),
        (FIRST, near[7]),
        (FIRST, near[99]),
        (SECOND, far[3]),
    ]
    table = found(worker, *asked)
    assert table.column("message_id").to_pylist() == [4, 7, 0, 7, 99, 3]
    assert table.column("offset").to_pylist() == [offset for _, offset in asked]
    assert table.column("key").to_pylist() == [b"k4", b"k7", b"k0", b"k7", b"k99", b"k3"]
    assert [len(value) for value in table.column("value").to_pylist()] == [10, 10, 10, 10, 10, 200_000]
    assert set(table.column("source").to_pylist()) == {"sales"}


def test_a_position_where_no_event_starts_is_an_error(worker: RunningWorker) -> None:
    near = store(worker, FIRST, [10, 10, 10])
    with pytest.raises(Damaged, match="no events at some of the offsets"):
        found(worker, (FIRST, near[0]), (FIRST, near[1] + 1), (FIRST, near[2]))


def test_an_event_that_retention_has_removed_is_an_error(worker: RunningWorker) -> None:
    near = store(worker, FIRST, [10, 10, 10])
    truncate(worker, FIRST, near[2])
    with pytest.raises(DataLoss):
        found(worker, (FIRST, near[0]))
