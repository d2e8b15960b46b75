"""A bucket holds nothing that no one needs: what is given up is deleted, also if workers were killed meanwhile."""

from pathlib import Path

import pytest

from penstock.bucket.stores import open_bucket
from penstock.client.segments import SegmentClient
from penstock.cluster.records import WORKERS, WorkerRecord, read_record
from tests.support.bucket_worker import BucketWorker
from tests.support.waiting import until
from tests.worker.bucket_kills import check_bucket

pytestmark = [pytest.mark.process, pytest.mark.slow]

MIB = 1 << 20


def fill(worker: BucketWorker, name: str, mebibytes: int) -> None:
    """Several chapters: one has a mebibyte."""
    with SegmentClient(worker.address) as segments, segments.appender(name, create=True) as appender:
        for _ in range(mebibytes * 10):
            appender.append(bytes(MIB // 10))


def stored_bytes(url: str) -> int:
    return sum(each.size for each in open_bucket(url).list("shards/"))


def test_after_truncation_and_kills_the_list_of_objects_is_what_it_should_be(tmp_path: Path, s3_url: str) -> None:
    with BucketWorker(tmp_path, s3_url) as worker:
        fill(worker, "kept", 1)
        fill(worker, "given-up", 6)
        until(lambda: [*open_bucket(s3_url).list("shards/0/parts/")])
        worker.kill()
        worker.start("--take-over")
        with SegmentClient(worker.address) as segments:
            segments.truncate("given-up", segments.info("given-up").length)
        worker.kill()
        worker.start("--take-over")
        # Recovery needs the last chapters, which are not as large as what was given up.
        until(lambda: stored_bytes(s3_url) < 4 * MIB, lambda: [*open_bucket(s3_url).list("")])
        check_bucket(s3_url)
        with SegmentClient(worker.address) as segments:
            assert segments.read("kept", 0, 1000).data
            segments.delete("kept")
            segments.delete("given-up")
        check_bucket(s3_url)
        worker.stop()
        (left,) = open_bucket(s3_url).list(WORKERS)
        record = read_record(open_bucket(s3_url), left.key, WorkerRecord)
        assert record is not None
        assert record[0].has_ended, "nobody has to wait for a lease"
