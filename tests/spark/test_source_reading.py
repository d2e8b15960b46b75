"""What a task reads: all events of its ranges, in order, or an error that names what is missing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.coordinator import Range
from penstock.client.segments import SegmentClient
from penstock.core.address import Address
from penstock.core.errors import Damaged, DataLoss, RequestError
from penstock.spark.sink.staging import Link
from penstock.spark.source import arrow
from penstock.spark.source.arrow import SegmentBatches, read_events, read_partition
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.partitions import SegmentRanges, placed
from tests.protocol.stored.events import raw, stored
from tests.spark.asking import get
from tests.spark.stored_data import store_events, truncate
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.tls import CA, server_context

SEGMENT = "connector/a/0"
STORED = [stored(n % 5, n, n, b"%d" % n, b"value %d" % n * (n % 50)) for n in range(9000)]
DATA = b"".join(STORED)


@pytest.fixture
def link(worker: RunningWorker) -> Iterator[Link]:
    link = Link(lambda: Address.parse(worker.address))
    yield link
    link.drop()


def values(link: Link, segment: str, start: int, end: int, *, fail_on_data_loss: bool = True) -> list[bytes]:
    batches = SegmentBatches(segment, ("value",), lambda _: pytest.fail("no names are wanted"))
    piece = Range(segment, start, end)
    return [
        value
        for events in read_events(link, piece, batches, fail_on_data_loss=fail_on_data_loss)
        for value in batches.batch(events).column(0).to_pylist()
    ]


def test_all_events_of_a_range_are_read_in_order(worker: RunningWorker, link: Link) -> None:
    store_events(worker, SEGMENT, STORED)
    assert len(DATA) > 2 << 20
    assert values(link, SEGMENT, 0, len(DATA)) == [b"value %d" % n * (n % 50) for n in range(9000)]
    second = len(STORED[0])
    assert values(link, SEGMENT, second, second + len(STORED[1])) == [b"value 1"]
    assert values(link, SEGMENT, second, second) == []


def test_events_without_data_have_no_rows(worker: RunningWorker, link: Link) -> None:
    store_events(worker, SEGMENT, [bytes(8), bytes(8)])
    assert values(link, SEGMENT, 0, 16) == []


def test_an_event_larger_than_one_read_is_assembled(worker: RunningWorker, link: Link) -> None:
    large = [b"a" * 3_000_000, b"b", b"c" * 5_000_000]
    events = [stored(payload=value) for value in large]
    store_events(worker, SEGMENT, events)
    assert values(link, SEGMENT, 0, sum(map(len, events))) == large


KIB = [stored(payload=bytes(1024 - len(stored())))] * (12 << 10)
"""12 MiB of events of 1 KiB."""


@pytest.mark.parametrize(
    ("piece_kib", "decoded_kib", "copied_kib"),
    [(1024, [4096] * 3, 12 << 10), (1500, [3000] * 4 + [288], 12_000), (3900, [3900] * 3 + [588], 0)],
)
def test_short_pieces_are_decoded_together_and_those_of_nearly_a_batch_where_they_are(
    link: Link, monkeypatch: pytest.MonkeyPatch, piece_kib: int, decoded_kib: list[int], copied_kib: int
) -> None:
    whole, size = memoryview(b"".join(KIB)), piece_kib << 10
    copied: list[int] = []

    def read_range(*_: object, **__: object) -> Iterator[tuple[int, memoryview]]:
        yield from ((at, whole[at : at + size]) for at in range(0, len(whole), size))

    class Waiting(arrow._Waiting):
        def add(self, data: memoryview) -> None:
            copied.append(len(data))
            super().add(data)

    monkeypatch.setattr(arrow, "read_range", read_range)
    monkeypatch.setattr(arrow, "_Waiting", Waiting)
    batches = SegmentBatches(SEGMENT, ("value",), lambda _: pytest.fail("no names are wanted"))
    found = read_events(link, Range(SEGMENT, 0, len(whole)), batches, fail_on_data_loss=True)
    assert [len(events) for events in found] == decoded_kib
    assert sum(copied) == copied_kib << 10


def test_raw_segments_are_read_as_events(worker: RunningWorker, link: Link) -> None:
    with SegmentClient(worker.address) as client, client.appender("numbers", create=True) as appender:
        appender.append_many([b"one", b"", b"three"])
    assert values(link, "numbers", 0, 32) == [b"one", b"", b"three"]


def test_a_range_that_ends_inside_an_event_is_refused(worker: RunningWorker, link: Link) -> None:
    store_events(worker, SEGMENT, STORED[:2])
    size = len(STORED[0])
    with pytest.raises(Damaged, match=f"range that ends at {size + 5} ends inside the event at {size}"):
        values(link, SEGMENT, 0, size + 5)


def test_bytes_that_are_not_an_event_are_refused_with_their_offset(worker: RunningWorker, link: Link) -> None:
    store_events(worker, SEGMENT, [STORED[0], raw(b"somebody else's")])
    with pytest.raises(Damaged, match=f"no stored event starts at offset {len(STORED[0])}: 15 bytes are too few"):
        values(link, SEGMENT, 0, len(STORED[0]) + 23)


def test_bytes_removed_by_retention_are_an_error_unless_the_load_allows_it(worker: RunningWorker, link: Link) -> None:
    store_events(worker, SEGMENT, STORED)
    gone = sum(map(len, STORED[:100]))
    truncate(worker, SEGMENT, gone)
    with pytest.raises(DataLoss, match=f"the bytes from 0 to {gone} were removed before they were read"):
        values(link, SEGMENT, 0, len(DATA))
    kept = values(link, SEGMENT, 0, len(DATA), fail_on_data_loss=False)
    assert kept == [b"value %d" % n * (n % 50) for n in range(100, 9000)]
    assert values(link, SEGMENT, 0, gone - 1, fail_on_data_loss=False) == []


def test_a_segment_that_was_removed_has_lost_all_its_bytes(worker: RunningWorker, link: Link) -> None:
    with pytest.raises(DataLoss, match="the bytes from 5 to 9 were removed before they were read"):
        values(link, SEGMENT, 5, 9)
    assert values(link, SEGMENT, 5, 9, fail_on_data_loss=False) == []


@pytest.mark.parametrize(("option", "by_socket"), [("true", 0), ("false", len(DATA))])
def test_a_task_on_the_workers_machine_reads_its_files_unless_the_load_says_otherwise(
    worker: RunningWorker, option: str, by_socket: int
) -> None:
    store_events(worker, SEGMENT, STORED)
    options = SourceOptions.parse({"source": "a", "worker": worker.http, "shortCircuit": option})
    partition = SegmentRanges(placed(options, [Range(SEGMENT, 0, len(DATA))]))
    rows = [row for batch in read_partition(options, ("value",), partition) for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == [b"value %d" % n * (n % 50) for n in range(9000)]
    assert get(worker, "/status")["segment_server"]["read_bytes"] == by_socket


def test_a_task_reads_over_tls_and_knows_the_names_of_streams(tmp_path: Path) -> None:
    with running_worker(tmp_path / "data", ssl=server_context()) as worker:
        events = [stored(stream, n, n, b"", b"%d" % n) for n in range(100) for stream in (1, 2)]
        end = store_events(worker, SEGMENT, events)
        authority = tmp_path / "ca.pem"
        CA.cert_pem.write_to_path(str(authority))
        http = f"127.0.0.1:{worker.ports['http']}"
        options = SourceOptions.parse({"source": "a", "worker": http, "tlsCa": str(authority)})
        partition = SegmentRanges(placed(options, [Range(SEGMENT, 0, end)]))
        rows = [row for batch in read_partition(options, ("stream", "value"), partition) for row in batch.to_pylist()]
        assert [row["value"] for row in rows] == [b"%d" % n for n in range(100) for _ in (1, 2)]
        assert {row["stream"] for row in rows} == {None}  # no program has ever connected as this source


def test_a_plain_connection_to_a_tls_worker_is_reported(tmp_path: Path) -> None:
    with running_worker(tmp_path / "data", ssl=server_context()) as worker:
        http = f"127.0.0.1:{worker.ports['http']}"
        options = SourceOptions.parse({"source": "a", "worker": http})
        with pytest.raises(RequestError, match="accepts only TLS") as caught:
            next(read_partition(options, ("value",), SegmentRanges(placed(options, [Range(SEGMENT, 0, 1)]))))
        assert "tlsCa" in caught.value.__notes__[0]
