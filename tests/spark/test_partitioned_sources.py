"""A query reads a source with two partitions in two shards, whose processes are killed."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.sending import outputs
from tests.support.waiting import until
from tests.worker.hosts import hosts
from tests.worker.test_partitions import SOURCE, Home, OneStream, kill_shard, shards_of, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(600)]


def test_a_query_gets_each_event_of_a_source_with_partitions_once(spark: SparkSession, tmp_path: Path) -> None:
    options = ("--partitions", f"{SOURCE}=2", "--retention", "keep")
    with hosts(tmp_path, 2, options=options) as made, ExitStack() as stack:
        home, worker = Home(made), f"127.0.0.1:{made.all[0].http_port}"
        rows = spark.readStream.format("penstock").options(worker=worker, pipeline="copy", source=SOURCE).load()
        writer = rows.select("value").writeStream.format("penstock").options(worker=worker, pipeline="copy")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        stack.callback(query.stop)

        def problem() -> str:
            return f"{query.exception()}\n{made.said()}"

        programs: list[OneStream] = []
        while not programs or not all(stored(made)):  # programs get partitions in turn
            assert len(programs) < 10
            programs.append(stack.enter_context(closing(OneStream(made.seeds, len(programs)))))
            programs[-1].start()
        for killed in (1, 0):
            kill_shard(made, shards_of(made)[killed])
            for one in programs:
                one.wait_for_acks()
        expected = [one.payload(number) for one in programs for number in range(one.finish()[one.stream_id] + 1)]
        until(lambda: len(outputs(home.segment, "copy")) >= len(expected), problem)
        assert query.exception() is None
        found = [bytes(event.payload) for event in outputs(home.segment, "copy")]
    assert sorted(found) == sorted(expected)
    for one in programs:
        own = [payload for payload in found if payload.endswith(one.payload(0)[1:])]
        assert own == [one.payload(number) for number in range(len(own))], "in the order of the stream"
