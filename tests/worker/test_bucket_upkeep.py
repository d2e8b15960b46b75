"""A bucket holds nothing that no one needs: what is given up is deleted, also if workers were killed meanwhile."""

from pathlib import Path
from threading import Thread

import pytest

from penstock.bucket.checkpoints import Manifest, named
from penstock.bucket.stores import open_bucket
from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments import SegmentClient
from penstock.cluster.records import WORKERS, WorkerRecord, read_record
from tests.delivery.merging import Merging
from tests.spark.sending import send
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


def test_what_a_pipeline_has_completed_goes_and_with_the_pipeline_its_output_and_its_checkpoints(
    tmp_path: Path, s3_url: str
) -> None:
    bucket = open_bucket(s3_url)

    def checkpoints() -> list[str]:
        return [each.key for each in bucket.list("shards/0/checkpoints/")]

    with BucketWorker(tmp_path, s3_url) as worker:
        with (
            SegmentClient(worker.address) as segments,
            CoordinatorClient(f"127.0.0.1:{worker.http_port}") as client,
        ):
            merging = Merging(client, segments, "orders", source="letters")

            def mirror(epoch: int) -> str:
                data = f"the state after epoch {epoch}".encode()
                key = named("orders", merging.generation, epoch, "data", data)
                manifest = Manifest(
                    pipeline="orders", generation=merging.generation, epoch=epoch, objects=(key,), files=()
                ).encode()
                bucket.create(key, [data])
                name = named("orders", merging.generation, epoch, "manifest", manifest)
                bucket.create(name, [manifest])
                return name

            for number in range(1, 8):
                payloads, connector = [bytes(MIB // 10)] * 10 * number, f"127.0.0.1:{worker.connector_port}"
                sending = Thread(target=send, args=(connector, "letters", "one", payloads))
                sending.start()
                while sending.is_alive():
                    merging.epoch([bytes(MIB // 4)], mirror=mirror)
                    sending.join(1.0)
            merging.ask_on()  # the last epoch stays until there is another one
            until(lambda: segments.info("connector/letters/0").start > 5 * MIB)
            assert len(checkpoints()) >= 2
            client.drop("orders", outputs=True)
        worker.kill()  # the next one begins with what is left of checkpoints
        worker.start("--take-over")
        until(lambda: not checkpoints(), checkpoints)
        until(lambda: stored_bytes(s3_url) < 4 * MIB, lambda: [*bucket.list("")])
        check_bucket(s3_url)


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
