"""A query reads sources of two shards, and an output of a pipeline in the other one, while that shard moves."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.client.coordinator import CoordinatorClient, InputSpec, Staged
from penstock.client.segments import SegmentClient
from tests.protocol.stored.events import stored
from tests.spark.sending import outputs, send
from tests.support.shard_process import ShardProcess, ShardProcesses
from tests.support.waiting import SECONDS_MAX, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(300)]

PLACES = {"a": 0, "b": 1, "up": 1}
PLACES |= {f"pipeline:copy/{port}": 0 for port in ("out", "err", "late", "replay.main")} | {"pipeline:up/out": 1}
COUNT = 400


def produce(shard: ShardProcess) -> list[bytes]:
    """An epoch of a pipeline in that shard."""
    values = [b"up %d" % number for number in range(COUNT)]
    with closing(CoordinatorClient(shard.http)) as coordinator, SegmentClient(shard.segment) as segments:
        generation = coordinator.start("up", {"main": InputSpec(["b"])}, ["out"]).generation
        name = f"staging/up/{generation}/0/0-0/out"
        with segments.appender(name, create=True) as appender:
            for number, value in enumerate(values, 1):
                appender.append(stored(1, number, number, b"", value)[8:])
        length = segments.info(name).length
        coordinator.merge("up", 0, [Staged("out", name, length)], generation=generation)
        coordinator.drop("up")  # or the acknowledgements of `b` would wait for it
    return values


def has_more(home: ShardProcess, count: int) -> bool:
    """Or everything: there are three sources."""
    return len(outputs(home.segment, "copy")) >= min(count + 1, 3 * COUNT)


def test_a_query_continues_while_the_shard_of_a_source_is_killed_and_moves(spark: SparkSession, tmp_path: Path) -> None:
    with ShardProcesses(tmp_path, PLACES) as (home, other):
        expected = produce(other)
        load = spark.readStream.format("penstock").option("maxBytesPerEpoch", "3000")
        load = load.options(worker=home.http, pipeline="copy", source="a,b,pipeline:up/out")
        writer = load.load().select("value").writeStream.format("penstock")
        writer = writer.options(worker=home.http, pipeline="copy")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            until(lambda: len(outputs(home.segment, "copy")) > 0)
            sending = []
            for shard, source in ((home, "a"), (other, "b")):
                values = [b"%s %d" % (source.encode(), number) for number in range(COUNT)]
                expected += values
                sending.append(threading.Thread(target=send, args=(shard.connector, source, "s", values)))
                sending[-1].start()
            for _ in range(2):
                until(partial(has_more, home, len(outputs(home.segment, "copy"))))
                other.kill()
                other.start()
            for one in sending:  # they return when the pipeline has completed what they sent
                one.join(SECONDS_MAX)
                assert not one.is_alive()
            assert query.exception() is None
            until(lambda: len(outputs(home.segment, "copy")) >= len(expected))
        finally:
            query.stop()
        found = [bytes(event.payload) for event in outputs(home.segment, "copy")]
    assert Counter(found) == Counter(expected)
