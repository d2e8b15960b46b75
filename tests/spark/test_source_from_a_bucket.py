"""Tasks read closed chapters from the bucket, not through the worker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.bucket.stores import open_bucket
from penstock.store.bucket_files import BucketFiles
from penstock.store.files import RealFiles
from penstock.store.settings import BucketSettings
from tests.protocol.stored.events import stored
from tests.spark.asking import get
from tests.spark.stored_data import store_events
from tests.support.running_worker import running_worker
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EVENTS = [stored(1, number, number, b"key", b"%d " % number * 200) for number in range(1, 6001)]
"""Several chapters."""
NO_CACHE = BucketSettings(cache_bytes=1, linger_seconds=0)
"""A closed chapter has no local file that tasks on this machine could open."""


def test_tasks_read_closed_chapters_from_the_bucket(spark: SparkSession, tmp_path: Path) -> None:
    bucket = open_bucket((tmp_path / "bucket").as_uri())
    files = BucketFiles(bucket, RealFiles(tmp_path / "cache"), settings=NO_CACHE)
    files.start()
    (tmp_path / "data").mkdir()
    with running_worker(tmp_path / "data", files=files) as worker:
        end = store_events(worker, "connector/sensors/0", EVENTS)
        journal = worker.worker._journal
        until(lambda: all(journal.remote_file(chapter) is not None for chapter in journal.chapters[:-1]))
        options = {"worker": f"127.0.0.1:{worker.ports['http']}", "source": "sensors"}
        rows = spark.read.format("penstock").options(**options).load().select("value").collect()
        assert sorted(bytes(row.value) for row in rows) == sorted(
            b"%d " % number * 200 for number in range(1, len(EVENTS) + 1)
        )
        status = get(worker, "/status")["segment_server"]
        assert status["located_remote_bytes"] > end // 2
        assert status["read_bytes"] < end // 2
