"""A pipeline whose plain UDF raises for one event goes on when that event is buried, and loses no other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.application.driver import Follower
from penstock.client.coordinator import CoordinatorClient
from penstock.client.coordinator.client import ApplicationClient
from penstock.client.segments import SegmentClient
from penstock.core.errors import RequestError
from penstock.protocol.api.dead_letters import EventPlace
from penstock.protocol.stored import parse_event
from penstock.spark import Pipeline, pipeline
from penstock.spark.codecs.codec import Branch
from penstock.spark.run.attempt import RestartPolicy
from tests.spark.sending import outputs, send
from tests.support.running_runner import running
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.run.runner import Runner

pytestmark = pytest.mark.spark

SECONDS_MAX = 120
COUNT = 40
POISON = (7, 23)


@dataclass
class Bench:
    """A worker with numbers in two streams, a Spark session, and a folder for checkpoints."""

    worker: RunningWorker
    spark: SparkSession
    folder: Path

    def __post_init__(self) -> None:
        for stream, numbers in {"low": range(COUNT // 2), "high": range(COUNT // 2, COUNT)}.items():
            payloads = [b'{"n": %d}' % number for number in numbers]
            send(f"127.0.0.1:{self.worker.ports['connector']}", "numbers", stream, payloads, key=b"k")

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.worker.ports['http']}"

    def runner(
        self, given: Pipeline, *, available_now: bool = True, change: Callable[[], None] = lambda: None
    ) -> Runner:
        from penstock.spark.run.attempt import RunSettings
        from penstock.spark.run.runner import Runner

        settings = RunSettings(
            worker=self.http,
            checkpoints=str(self.folder / "checkpoints"),
            cores=2,
            restarts=RestartPolicy(restarts_max=3, pause_seconds_first=0.1),
            available_now=available_now,
        )
        return Runner(self.spark, [given], settings, change=change, until_stopped=not available_now)

    def run(self, given: Pipeline) -> None:
        """All that is stored now. Raises RequestError if an epoch fails twice."""
        self.runner(given).run(SECONDS_MAX)

    def places(self, *numbers: int) -> list[EventPlace]:
        """Where these are stored."""
        found = {}
        with SegmentClient(self.worker.address) as client:
            for segment in ("connector/numbers/0", "connector/numbers/1"):
                for stored in client.events(segment):
                    if (event := parse_event(stored.data)) is not None:
                        found[event.payload] = EventPlace(segment, stored.offset)
        return [found[b'{"n": %d}' % number] for number in numbers]

    def left(self, name: str, port: str = "out") -> list[bytes]:
        return sorted(event.payload for event in outputs(self.worker.address, name, port))


@pytest.fixture
def bench(worker: RunningWorker, spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(worker, spark, tmp_path)


def values(*without: int) -> list[bytes]:
    return sorted(b'{"n": %d}' % number for number in range(COUNT) if number not in without)


def checked(number: int) -> int:
    if number in POISON:
        raise ValueError(f"{number} is poison")
    return number


def with_checked(frame: DataFrame, number: str) -> DataFrame:
    from pyspark.sql.functions import expr, udf

    return frame.withColumn("checked", udf(lambda given: checked(given), "int")(expr(number))).where("checked >= 0")


@pipeline
def plain(numbers: DataFrame) -> DataFrame:
    return with_checked(numbers, "cast(get_json_object(cast(value as string), '$.n') as int)").select("value", "key")


def test_the_epoch_fails_until_its_poison_is_buried_and_then_everything_leaves_once(
    bench: Bench, client: CoordinatorClient
) -> None:
    """In a `penstock run` that goes on: what was given up is restarted."""
    said: list[str] = []
    with (
        ApplicationClient(bench.http) as application,
        closing(Follower(bench.http, application.application(), said.append)) as follower,
    ):
        follower.runner = runner = bench.runner(plain, available_now=False, change=follower.follow)

        def given_up() -> str:
            return str(runner.pipelines[0].given_up or "")

        with running(runner) as thread:
            thread.until(lambda: "is poison" in given_up())
            assert "at an event of epoch 0: connector/numbers/" in given_up()
            one, other = bench.places(*POISON)
            client.bury("plain", [one], "not a price")
            thread.until(lambda: "23 is poison" in given_up())
            assert bench.left("plain") == []
            client.bury("plain", [other])
            thread.until(lambda: bench.left("plain"))
        thread.check()
    assert said == ["events of plain were buried: it is restarted"] * 2
    assert bench.left("plain") == values(*POISON)
    dead = {one.payload: one for one in outputs(bench.worker.address, "plain", "err")}
    assert sorted(dead) == [b'{"n": 23}', b'{"n": 7}']
    first = dead[b'{"n": 7}']
    assert (first.key, first.event_id, first.metadata["stream"]) == (b"k", 8, "low")
    assert first.metadata["reason"] == "buried by an operator: not a price"
    assert EventPlace(first.metadata["segment"], first.metadata["offset"]) == one
    bench.run(plain)
    assert (bench.left("plain"), len(bench.left("plain", "err"))) == (values(*POISON), 2)


@pipeline(inputs={"left": "numbers", "right": "numbers"})
def several(left: DataFrame, right: DataFrame) -> DataFrame:
    one, other = (with_checked(frame, "n").selectExpr("cast(n as string) as value") for frame in (left, right))
    return one.union(other)


def test_an_event_that_several_inputs_read_leaves_once_with_codecs_too(bench: Bench, client: CoordinatorClient) -> None:
    branches = {"left": (Branch("json", "n INT"),), "right": (Branch("json", "n INT"),)}
    coded = replace(several, decoding=branches)
    with pytest.raises(RequestError, match="is poison"):
        bench.run(coded)
    client.bury("several", bench.places(*POISON))
    bench.run(coded)
    assert bench.left("several") == sorted(b"%d" % n for n in range(COUNT) if n not in POISON for _ in range(2))
    assert bench.left("several", "err") == [b'{"n": 23}', b'{"n": 7}']


def test_with_a_sink_of_spark_the_event_is_in_err_too(bench: Bench, client: CoordinatorClient) -> None:
    seen: list[bytes] = []

    def collect(rows: DataFrame, _: int) -> None:
        seen.extend(bytes(row.value) for row in rows.collect())

    @pipeline
    def elsewhere(numbers: DataFrame) -> object:
        number = "cast(get_json_object(cast(value as string), '$.n') as int)"
        return with_checked(numbers, number).writeStream.foreachBatch(collect)

    with pytest.raises(RequestError, match="is poison"):
        bench.run(elsewhere)
    client.bury("elsewhere", bench.places(*POISON))
    bench.run(elsewhere)
    assert sorted(seen) == values(*POISON)
    assert bench.left("elsewhere", "err") == [b'{"n": 23}', b'{"n": 7}']
