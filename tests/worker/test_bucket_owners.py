"""Two workers on one prefix of a bucket: one serves, and there is never a doubt which one."""

import os
import signal
from pathlib import Path

import pytest

from penstock.bucket.stores import open_bucket
from penstock.client.segments import SegmentClient
from penstock.cluster.records import WorkerRecord, read_record, worker_key
from tests.spark.sending import send
from tests.support.bucket_worker import BucketWorker
from tests.support.http import get
from tests.support.waiting import until
from tests.worker.bucket_owners import wake_after_take_over, worker_id

pytestmark = pytest.mark.process

LETTERS = [b"a", b"b", b"c"]


def stored(worker: BucketWorker) -> int:
    with SegmentClient(worker.address) as segments:
        return sum(bool(event.data) for number in (0, 1) for event in segments.events(f"connector/letters/{number}"))


def published(worker: BucketWorker, url: str) -> dict[str, str]:
    """The addresses under which others know it: they are in the bucket with the first renewal after its start."""
    found = read_record(open_bucket(url), worker_key(worker_id(worker)), WorkerRecord)
    return {} if found is None else found[0].addresses


def test_the_later_worker_waits_as_a_standby_and_takes_over_when_the_first_one_is_killed(
    tmp_path: Path, s3_url: str
) -> None:
    with BucketWorker(tmp_path / "first", s3_url) as first:
        send(f"127.0.0.1:{first.connector_port}", "letters", "one", LETTERS)
        until(lambda: published(first, s3_url))
        with BucketWorker.waiting(tmp_path / "second", s3_url) as second:
            until(lambda: f"waiting as a standby: worker {worker_id(first)}" in second.said, lambda: second.said)
            assert f"(127.0.0.1:{first.http_port}) has {s3_url}" in second.said
            assert not second.has_ports()
            first.kill()
            until(second.has_ports, lambda: second.said)
            second.read_ports()
            assert stored(second) == len(LETTERS)
            send(f"127.0.0.1:{second.connector_port}", "letters", "one", [*LETTERS, b"d"])
            assert stored(second) == len(LETTERS) + 1


def test_a_standby_ends_by_a_signal_and_the_owner_does_not_notice(tmp_path: Path, s3_url: str) -> None:
    with BucketWorker(tmp_path / "first", s3_url) as first:
        for number in (signal.SIGTERM, signal.SIGINT):
            with BucketWorker.waiting(tmp_path / number.name, s3_url) as second:
                until(lambda second=second: "waiting as a standby" in second.said)  # type: ignore[misc]
                os.kill(second.pid, number)
                assert second.ended() == 0, second.said
                assert "stopped before it has taken over anything" in second.said
                assert "Traceback" not in second.said
        send(f"127.0.0.1:{first.connector_port}", "letters", "one", LETTERS)


def test_a_standby_takes_over_at_once_when_the_owner_stops_in_order(tmp_path: Path, s3_url: str) -> None:
    with (
        BucketWorker(tmp_path / "first", s3_url) as first,
        BucketWorker.waiting(tmp_path / "second", s3_url) as second,
    ):
        until(lambda: "waiting as a standby" in second.said)
        first.stop()
        until(second.has_ports, lambda: second.said)


def test_take_over_wins_at_once_and_the_earlier_worker_stops_with_an_error_that_names_the_winner(
    tmp_path: Path, s3_url: str
) -> None:
    with BucketWorker(tmp_path / "first", s3_url) as first:
        send(f"127.0.0.1:{first.connector_port}", "letters", "one", LETTERS)
        with BucketWorker(tmp_path / "second", s3_url, "--take-over") as second:
            assert "waiting as a standby" not in second.said
            assert first.ended() == 1
            assert f"error: worker {worker_id(second)} has taken over" in first.said
            assert "hint: Use that worker. This one can be started again as its standby." in first.said
            assert stored(second) == len(LETTERS)


def test_a_second_worker_on_one_directory_is_refused_and_the_first_one_serves_on(tmp_path: Path, s3_url: str) -> None:
    with BucketWorker(tmp_path / "first", s3_url) as first:
        with BucketWorker.waiting(tmp_path / "second", s3_url, "--take-over", "--data", str(first.data)) as second:
            assert second.ended() == 1
            assert "is in use by process" in second.said
        assert get(first.http_port, "/status")["store"]["bucket"]["lease"] == "held"
        send(f"127.0.0.1:{first.connector_port}", "letters", "one", LETTERS)


def test_a_worker_that_slept_through_a_take_over_stores_decides_and_acknowledges_nothing(
    tmp_path: Path, s3_url: str
) -> None:
    """`script/test --campaign bucket` lets it sleep for a minute."""
    wake_after_take_over(tmp_path, s3_url)
