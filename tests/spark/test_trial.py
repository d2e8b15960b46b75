"""A pipeline's function is tried on some events of its epoch, and neither the worker nor the pipeline notices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock import dead_letters, windows
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.core.errors import PipelineError, RequestError
from penstock.protocol.api.dead_letters import EventPlace
from penstock.protocol.api.pipelines import BatchRanges, Range
from penstock.spark import Pipeline, pipeline
from penstock.spark.codecs.codec import Branch
from penstock.spark.run.bisection import failing
from penstock.spark.run.trial import EpochEvents, Trials
from tests.spark.sending import send
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

COUNT = 40
POISON = 23
NUMBERS = [b'{"n": %d}' % number for number in range(COUNT)]


@dataclass
class Bench:
    """A worker with an epoch of numbers that is planned and not committed."""

    worker: RunningWorker
    client: CoordinatorClient
    spark: SparkSession

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.worker.ports['http']}"

    def planned(self, given: Pipeline, **payloads: list[bytes]) -> EpochEvents:
        for source, values in payloads.items():
            send(f"127.0.0.1:{self.worker.ports['connector']}", source, "numbers", values)
        inputs = {name: InputSpec(sources) for name, sources in given.inputs.items()}
        run = self.client.start(given.name, inputs, ["out"])
        for name in inputs:
            start = self.client.initial(given.name, run.generation, name)
            self.client.cut(given.name, run.generation, name, start, wait_ms=5000)
        return EpochEvents.read(self.http, self.client.batch(given.name))

    def trials(self, given: Pipeline, events: EpochEvents) -> Trials:
        return Trials(self.spark, given, self.http, events)

    def traces(self) -> tuple[Any, ...]:
        """What a trial must leave as it is."""

        async def stored() -> list[tuple[str, int]]:
            return [(one.name, one.length) for one in self.worker.worker.sources.store.segments()]

        listed = self.worker.call(stored())
        known = [
            (one.name, one.incarnation, one.generation, one.planned, one.merged, one.proved, one.open_windows)
            for one in self.client.pipelines()
        ]
        return listed, known


@pytest.fixture
def bench(worker: RunningWorker, client: CoordinatorClient, spark: SparkSession) -> Bench:
    return Bench(worker, client, spark)


def check(number: int) -> int:
    if number == POISON:
        raise ValueError(f"{number} is poison")
    return number


def checked(frame: DataFrame, number: str) -> DataFrame:
    from pyspark.sql.functions import expr, udf

    return frame.withColumn("checked", udf(lambda given: check(given), "int")(expr(number)))


N = "cast(get_json_object(cast(value as string), '$.n') as int)"


@pipeline
def plain(numbers: DataFrame) -> DataFrame:
    return checked(numbers, N).select("checked")


@pytest.mark.spark
def test_the_event_that_fails_is_found_and_nothing_is_changed(bench: Bench) -> None:
    events = bench.planned(plain, numbers=NUMBERS)
    assert len(events) == COUNT
    before = bench.traces()
    trials = bench.trials(plain, events)
    (one,) = failing(COUNT, trials.fails)
    assert (one.start, one.end) == (POISON, POISON + 1)
    assert one.how.summary == "ValueError: 23 is poison"
    assert "in check" in one.how.text
    assert bench.traces() == before
    left = replace(events, left_out=[Range(events.place(POISON).segment, events.place(POISON).offset, 10**6)])
    assert bench.trials(plain, left).fails(POISON, POISON + 1) is None, "a buried event is not read"


@pipeline(inputs={"left": "numbers", "right": "others"})
def coded(left: DataFrame, right: DataFrame) -> dict[str, DataFrame]:
    """With codecs, dead letters of its own, and two inputs and outputs."""

    def parsed(row: dict[str, Any]) -> dict[str, Any]:
        return {"n": 100 // row["n"]}  # a dead letter for 0

    kept = dead_letters.apply(left, parsed, "n int", per="row")
    return {"kept": kept, "right": checked(right, "n").select("checked")}


@pytest.mark.spark
def test_dead_letters_of_the_pipeline_are_no_failures_and_every_input_is_searched(bench: Bench) -> None:
    branch = (Branch("json", "n INT"),)
    given = replace(coded, decoding={"left": branch, "right": branch})
    events = bench.planned(given, numbers=[*NUMBERS, b"no json"], others=NUMBERS)
    trials, at = bench.trials(given, events), COUNT + 1 + POISON
    assert trials.fails(0, at) is None
    failure = trials.fails(at, at + 1)
    assert failure is not None
    assert failure.summary == "ValueError: 23 is poison"


@pipeline
def windowed(numbers: DataFrame) -> DataFrame:
    """What fails comes after the windows: of every ten numbers, the highest."""
    rows = numbers.selectExpr(f"{N} as n", "event_time")
    highest = windows.aggregate(rows, windows.tumbling("10 seconds"), n=windows.max("n"))
    return checked(highest, "n").select("checked")


@pipeline
def fused(numbers: DataFrame) -> DataFrame:
    """Windows that the readers compute."""
    highest = windows.aggregate(numbers, windows.tumbling("10 seconds"), n=windows.max("n"))
    return checked(highest, "n").select("checked")


@pytest.mark.spark
@pytest.mark.parametrize("given", [windowed, replace(fused, decoding={"numbers": (Branch("json", "n INT"),)})])
def test_windows_close_at_the_end_of_a_trial(bench: Bench, given: Pipeline) -> None:
    events = bench.planned(given, numbers=NUMBERS[: POISON + 1])
    before = bench.traces()
    trials = bench.trials(given, events)
    assert trials.fails(0, POISON) is None
    failure = trials.fails(0, POISON + 1)
    assert failure is not None
    assert failure.summary == "ValueError: 23 is poison"
    assert bench.traces() == before


@pytest.mark.spark
def test_events_that_fail_only_together_are_a_run(bench: Bench) -> None:
    def unique(batches: Iterator[Any]) -> Iterator[Any]:
        seen = [value for batch in batches for value in batch.column("value").to_pylist()]
        if len(seen) > len(set(seen)):
            raise ValueError("a value occurs twice")
        yield from ()

    @pipeline
    def strict(numbers: DataFrame) -> DataFrame:
        return numbers.select("value").repartition(1).mapInArrow(unique, "value binary")

    events = bench.planned(strict, numbers=[*NUMBERS[:4], NUMBERS[2], NUMBERS[5]])
    runs = failing(len(events), bench.trials(strict, events).fails)
    assert [(one.start, one.end) for one in runs] == [(2, 5)]


@pytest.mark.spark
def test_a_writer_of_spark_is_not_called_and_rows_that_cannot_be_stored_fail(bench: Bench) -> None:
    def never(rows: DataFrame, epoch: int) -> None:
        raise AssertionError

    @pipeline
    def elsewhere(numbers: DataFrame) -> object:
        return checked(numbers, N).writeStream.foreachBatch(never)

    @pipeline
    def nothing(numbers: DataFrame) -> DataFrame:
        return numbers.selectExpr(f"if({N} = 5, null, value) as value")

    events = bench.planned(elsewhere, numbers=NUMBERS)
    trials = bench.trials(elsewhere, events)
    assert (trials.fails(0, POISON), trials.fails(POISON, COUNT) is None) == (None, False)
    failure = bench.trials(nothing, events).fails(0, 10)
    assert failure is not None
    assert "null" in failure.text
    assert bench.trials(nothing, events).fails(6, 10) is None


@pytest.mark.spark
def test_what_is_not_the_fault_of_an_event_is_raised(bench: Bench) -> None:
    @pipeline
    def broken(numbers: DataFrame) -> DataFrame:
        return numbers.select("no_such_column")

    events = bench.planned(broken, numbers=NUMBERS)
    with pytest.raises(RequestError, match="no_such_column"):
        bench.trials(broken, events).fails(0, COUNT)


def test_the_epoch_is_the_first_that_is_planned_and_not_committed(bench: Bench) -> None:
    events = bench.planned(plain, numbers=NUMBERS)
    batch = bench.client.batch("plain")
    assert (batch.epoch, batch.is_committed) == (0, False)
    ((name, ranges),) = batch.inputs.items()
    assert name == "numbers"
    assert [one.start for one in ranges] == [0]
    run = bench.client.start("plain", {"numbers": InputSpec(["numbers"])}, ["out"])
    assert bench.client.batch("plain") == batch, "also while no query has asked for it"
    start = bench.client.initial("plain", run.generation, "numbers")
    bench.client.cut("plain", run.generation, "numbers", start)
    bench.client.merge("plain", 0, [], generation=run.generation)
    assert bench.client.batch("plain").is_committed
    assert len(events) == COUNT
    with pytest.raises(PipelineError, match="not found"):
        bench.client.batch("nobody")


def test_events_are_numbered_by_segment_and_inputs_read_what_is_theirs() -> None:
    import numpy as np

    inputs = {"a": [Range("s", 10, 40), Range("t", 0, 20)], "b": [Range("s", 20, 40)]}
    offsets = [(Range("s", 10, 40), np.array([10, 20, 30])), (Range("t", 0, 20), np.array([0, 5]))]
    events = EpochEvents(BatchRanges(7, inputs), offsets)
    assert [events.place(number) for number in range(len(events))] == [
        EventPlace("s", 10),
        EventPlace("s", 20),
        EventPlace("s", 30),
        EventPlace("t", 0),
        EventPlace("t", 5),
    ]
    assert events.ranges(0, 5) == inputs
    assert events.ranges(0, 2) == {"a": [Range("s", 10, 30)], "b": [Range("s", 20, 30)]}
    assert events.ranges(2, 4) == {"a": [Range("s", 30, 40), Range("t", 0, 5)], "b": [Range("s", 30, 40)]}
    assert events.ranges(0, 5, [1, 4]) == {
        "a": [Range("s", 10, 20), Range("s", 30, 40), Range("t", 0, 5)],
        "b": [Range("s", 30, 40)],
    }
