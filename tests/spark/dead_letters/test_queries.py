"""Whatever is done with a frame: an event that cannot be processed goes to `err` once, with its original bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

import penstock
from penstock import dead_letters
from penstock.coordinator.side_outputs import EpochSides
from penstock.protocol.api.side_outputs import MissingPart
from penstock.spark import Pipeline, pipeline
from penstock.spark.codecs.codec import Branch
from penstock.spark.source.partitions import PARTITION_BYTES_MIN
from tests.protocol.stored.events import stored
from tests.spark.sending import outputs, send
from tests.spark.stored_data import store_events
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.spark

PAYLOADS = [b'{"n": 1}', b"poison", b'{"n": 0}', b'{"n": "x"}', b'{"n": 4}']
"""The second and the fourth are not what the schema says; 12 is not divisible by what the third says."""


def run(spark: SparkSession, worker: RunningWorker, folder: Path, *pipelines: Pipeline) -> None:
    """Run on everything that is stored now."""
    from penstock.spark.run.attempt import RestartPolicy, RunSettings
    from penstock.spark.run.runner import Runner

    http = f"127.0.0.1:{worker.ports['http']}"
    settings = RunSettings(worker=http, checkpoints=str(folder / "checkpoints"), cores=2, available_now=True)
    Runner(spark, pipelines, replace(settings, restarts=RestartPolicy(restarts_max=0))).run(200)


@pipeline(outputs=["shares", "united", "joined", "some"])
def everything(roofs: DataFrame) -> dict[str, DataFrame]:
    """One frame, used in several ways: Spark computes it several times, with different numbers of partitions."""

    def share(row: dict[str, Any]) -> dict[str, Any]:
        return {"share": 12 // row["n"]}

    decoded = dead_letters.decode_json(roofs, "n int").drop("value")
    exploded = decoded.selectExpr("n", "segment", "offset", "explode(sequence(1, 6)) as k").repartition(4, "k")
    few = decoded.select("n", "message_id")
    return {
        "shares": dead_letters.apply(exploded, share, "share int", per="row"),
        "united": few.union(few.repartition(3)),
        "joined": few.join(few.withColumnRenamed("n", "m"), "message_id"),
        "some": few.where("n > 1").dropDuplicates(["n"]),
    }


def limited(roofs: DataFrame) -> DataStreamWriter:
    """With Spark's own sink, which reads only one row: possibly not all that was decoded."""

    def look(batch: DataFrame, _: int) -> None:
        batch.take(1)

    return roofs.select("n").writeStream.foreachBatch(look)


def repeated(roofs: DataFrame) -> DataStreamWriter:
    """With Spark's own sink, which computes the batch several times, once not to its end."""

    def look(batch: DataFrame, _: int) -> None:
        batch.take(1)
        batch.count()
        batch.union(batch.repartition(3)).count()

    shares = dead_letters.apply(roofs, lambda row: {"share": 12 // row["n"]}, "share int", per="row")
    return shares.writeStream.foreachBatch(look)


def doubled(roofs: DataFrame) -> dict[str, DataFrame]:
    """A decoded input, joined with itself and limited: not every reader has to reach its end."""
    few = roofs.select("n", "message_id")
    return {"joined": few.join(few.withColumnRenamed("n", "m"), "message_id"), "first": few.limit(1)}


def both(left: DataFrame, right: DataFrame) -> DataFrame:
    """Two codecs on one source: each has its own dead letters."""
    return left.select("n").unionByName(right.selectExpr("n + 1 as n"))


def functions(roofs: DataFrame) -> dict[str, DataFrame]:
    """Functions in Python on a decoded input: per row, per column, per batch, and per group after a shuffle."""
    from pyspark.sql.functions import udf
    from pyspark.sql.pandas.functions import pandas_udf

    def more(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield batch.assign(n=batch["n"] + 2)

    def total(group: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"n": [int(group["n"].sum())]})

    def plus_one(column: pd.Series) -> pd.Series:
        return column + 1

    few = roofs.select("n")
    return {
        "rows": few.select(udf(lambda n: n * 2, "int")("n").alias("n")),
        "columns": few.select(pandas_udf(plus_one, "int")("n").alias("n")),  # type: ignore[call-overload]
        "batches": few.mapInPandas(more, "n int"),
        "groups": few.groupBy(few["n"] % 2).applyInPandas(total, "n int"),
    }


def in_batches(roofs: DataFrame) -> DataStreamWriter:
    """The same, on the batches of a sink of Spark's own, which computes each several times."""

    def look(batch: DataFrame, _: int) -> None:
        def total(group: pd.DataFrame) -> pd.DataFrame:
            return group.head(1)

        assert batch.groupBy("n").applyInPandas(total, batch.schema).count() == 3
        assert len(batch.toPandas()) == 3

    return roofs.select("n").writeStream.foreachBatch(look)


def share_of(row: dict[str, Any]) -> dict[str, Any]:
    return {"share": 12 // row["n"]}


def coalesced(roofs: DataFrame) -> DataFrame:
    """One task calls the function for several partitions of the frame."""
    frame = roofs.select("n", "segment", "offset").repartition(3)
    return dead_letters.apply(frame, share_of, "share int", per="row").coalesce(1)


def coalesced_batches(roofs: DataFrame) -> DataStreamWriter:
    """With Spark's own sink: in one task for several partitions, and for both sides of a join of all with all."""

    def look(batch: DataFrame, _: int) -> None:
        assert batch.coalesce(1).count() == 3
        assert batch.crossJoin(batch.hint("shuffle_replicate_nl")).count() == 9

    frame = roofs.select("n", "segment", "offset").repartition(3)
    return dead_letters.apply(frame, share_of, "share int", per="row").writeStream.foreachBatch(look)


def ignored(attic: DataFrame) -> DataStreamWriter:
    """With Spark's own sink, which reads nothing at all."""
    return attic.select("n").writeStream.foreachBatch(lambda batch, _: None)


def one_taken(attic: DataFrame) -> DataStreamWriter:
    """With Spark's own sink, which reads the beginning of one of two partitions."""

    def look(batch: DataFrame, _: int) -> None:
        assert batch.rdd.getNumPartitions() == 2
        assert len(batch.take(1)) == 1

    return attic.select("n", "more").writeStream.foreachBatch(look)


def one_kept(attic: DataFrame) -> DataFrame:
    """With our sink, which reads the beginning of each partition."""
    return attic.select("n", "more").limit(1)


DECODING = {"roofs": (Branch("json", "n int"),)}
PLAIN = (limited, repeated, doubled, functions, in_batches, coalesced, coalesced_batches)
LIMITED, REPEATED, DOUBLED, FUNCTIONS, IN_BATCHES, COALESCED, COALESCED_BATCHES = (
    replace(pipeline(one), decoding=DECODING) for one in PLAIN
)
BOTH = replace(
    pipeline(inputs={"left": "roofs", "right": "roofs"})(both),
    decoding={"left": (Branch("json", "n int"),), "right": (Branch("json", "n int not null"),)},
)


def test_an_event_that_cannot_be_processed_goes_to_err_once_whatever_is_done_with_the_frame(
    spark: SparkSession, worker: RunningWorker, tmp_path: Path
) -> None:
    connector = f"127.0.0.1:{worker.ports['connector']}"
    send(connector, "roofs", "roof", PAYLOADS, key=b"k")
    run(spark, worker, tmp_path, everything, LIMITED, REPEATED, DOUBLED, BOTH)

    def left(name: str, port: str = "err") -> list[tuple[int, bytes]]:
        return [(event.event_id, event.payload) for event in outputs(worker.address, name, port)]

    bad = [(2, PAYLOADS[1]), (4, PAYLOADS[3])]
    assert left("everything") == [*bad, (3, PAYLOADS[2])]
    assert len(left("everything", "shares")) == 6 * 2
    assert len(left("everything", "united")) == 3 * 2
    assert len(left("everything", "joined")) == 3
    assert len(left("everything", "some")) == 1
    assert left("limited") == bad
    assert left("repeated") == [*bad, (3, PAYLOADS[2])]
    assert left("doubled") == bad
    assert (len(left("doubled", "joined")), len(left("doubled", "first"))) == (3, 1)
    assert left("both") == [*bad, *bad]
    assert len(left("both", "out")) == 3 * 2
    event = outputs(worker.address, "limited", "err")[0]
    assert event.metadata["reason"] == "`value` is not valid JSON"
    assert (event.key, event.metadata["source"], event.metadata["stream"]) == (b"k", "roofs", "roof")


def test_functions_in_python_over_a_frame_with_dead_letters_get_the_other_rows(
    spark: SparkSession, worker: RunningWorker, tmp_path: Path
) -> None:
    send(f"127.0.0.1:{worker.ports['connector']}", "roofs", "roof", PAYLOADS)
    run(spark, worker, tmp_path, FUNCTIONS, IN_BATCHES)

    def numbers(port: str) -> list[int]:
        return sorted(json.loads(event.payload)["n"] for event in outputs(worker.address, "functions", port))

    assert {port: numbers(port) for port in ("rows", "columns", "batches", "groups")} == {
        "rows": [0, 2, 8],
        "columns": [1, 2, 5],
        "batches": [2, 3, 6],
        "groups": [1, 4],
    }
    for name in ("functions", "in_batches"):
        left = [(event.event_id, event.payload) for event in outputs(worker.address, name, "err")]
        assert left == [(2, PAYLOADS[1]), (4, PAYLOADS[3])], name


def test_a_task_may_call_a_function_for_several_partitions_of_the_frame(
    spark: SparkSession, worker: RunningWorker, tmp_path: Path
) -> None:
    """Each call has its own dead letters, and some have none."""
    payloads = [b'{"n": 0, "at": %d}' % number if number % 3 else b'{"n": 4}' for number in range(9)]
    send(f"127.0.0.1:{worker.ports['connector']}", "roofs", "roof", payloads)
    run(spark, worker, tmp_path, COALESCED, COALESCED_BATCHES)
    bad = [payload for payload in payloads if b"at" in payload]
    for name in ("coalesced", "coalesced_batches"):
        assert sorted(event.payload for event in outputs(worker.address, name, "err")) == bad, name
    assert len(outputs(worker.address, "coalesced")) == 3


ATTIC = {"attic": (Branch("json", "n int, more string"),)}
IGNORED, ONE_TAKEN, ONE_KEPT = (replace(pipeline(one), decoding=ATTIC) for one in (ignored, one_taken, one_kept))


def test_what_no_task_has_read_to_its_end_is_decoded_before_the_commit(
    spark: SparkSession, worker: RunningWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing: dict[str, int] = {}
    find = EpochSides.missing

    def found(self: EpochSides, epoch: int, prefix: str) -> list[MissingPart]:
        parts = find(self, epoch, prefix)
        name = prefix.split("/")[1]
        missing[name] = max(missing.get(name, 0), len(parts))
        return parts

    monkeypatch.setattr(EpochSides, "missing", found)
    padding = [b'{"n": 1, "more": "%s"}' % (b"x" * 800_000)] * (PARTITION_BYTES_MIN // 800_000 + 1)
    for number in range(2):  # each is enough for a partition, and more than a reader has in memory at once
        payloads = [*PAYLOADS[:2], *padding, *PAYLOADS[2:]]
        events = [stored(7, event, 1, payload=payload) for event, payload in enumerate(payloads, 1)]
        for event in events:
            store_events(worker, f"connector/attic/{number}", [event])
    run(spark, worker, tmp_path, IGNORED, ONE_TAKEN, ONE_KEPT)
    assert missing == {"ignored": 2, "one_taken": 2, "one_kept": 2}
    for name in missing:
        left = sorted(event.payload for event in outputs(worker.address, name, "err"))
        assert left == sorted(2 * [PAYLOADS[1], PAYLOADS[3]]), name
    assert len(outputs(worker.address, "one_kept")) == 1


def mended(row: dict[str, Any]) -> dict[str, Any]:
    return {"share": 12 // (row["n"] or 1)}


class Stopped(Exception):
    """Raised where a driver could be killed."""


def undecided(folder: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that rejects a row the first time, and accepts it from then on."""
    rejected = folder / "rejected"

    def share(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 4 and not rejected.exists():
            rejected.touch()
            raise LookupError("not this time")
        return share_of(row)

    return share


@pytest.mark.parametrize("persists", [True, False])
def test_a_batch_that_is_persisted_is_decided_once_and_otherwise_each_time_it_is_computed(
    spark: SparkSession, worker: RunningWorker, tmp_path: Path, *, persists: bool
) -> None:
    """What any of the computations has rejected is in `err`: an event may be in the output too, but is never lost."""
    store_events(worker, "connector/attic/0", [stored(7, n, 1, payload=one) for n, one in enumerate(PAYLOADS, 1)])
    shares: list[int] = []

    def look(batch: DataFrame, _: int) -> None:
        rows = batch.persist() if persists else batch
        rows.count()
        shares.extend(row["share"] for row in rows.collect())
        rows.unpersist()

    def counted(attic: DataFrame) -> DataStreamWriter:
        decided = dead_letters.apply(attic, undecided(tmp_path), "share int", per="row")
        return decided.writeStream.foreachBatch(look)

    run(spark, worker, tmp_path, replace(pipeline(counted), decoding={"attic": (Branch("json", "n int"),)}))
    err = sorted(event.payload for event in outputs(worker.address, "counted", "err"))
    assert err == sorted(PAYLOADS[1:])
    assert sorted(shares) == ([12] if persists else [3, 12])


def test_rows_that_a_column_sends_to_several_ports_are_decided_once(
    spark: SparkSession, worker: RunningWorker, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F  # noqa: N812  as PySpark's own documentation writes it

    store_events(worker, "connector/attic/0", [stored(7, n, 1, payload=one) for n, one in enumerate(PAYLOADS, 1)])

    @pipeline(outputs=["one", "other"])
    def twice(attic: DataFrame) -> DataFrame:
        decided = dead_letters.apply(attic, undecided(tmp_path), "share int", per="row")
        return decided.withColumn("port", F.explode(F.array(F.lit("one"), F.lit("other"))))

    run(spark, worker, tmp_path, replace(twice, decoding={"attic": (Branch("json", "n int"),)}))
    for port in ("one", "other"):
        assert [json.loads(event.payload) for event in outputs(worker.address, "twice", port)] == [{"share": 12}]
    assert sorted(event.payload for event in outputs(worker.address, "twice", "err")) == sorted(PAYLOADS[1:])


class Own:
    """A query in the user's own session, with Spark's own sink, that stops at different points."""

    def __init__(self, spark: SparkSession, worker: RunningWorker, folder: Path) -> None:
        self.spark = spark
        self.worker = worker
        self.folder = folder
        self.shares: list[int] = []

    def run(self, function: Any, *, stops: bool = False, **trigger: Any) -> Exception | None:
        http = {"worker": f"127.0.0.1:{self.worker.ports['http']}", "source": "attic"}
        load = self.spark.readStream.format("penstock").options(**http, pipeline="own", codec="json", schema="n int")
        with penstock.session(self.spark, pipeline="own", **http):
            shares = dead_letters.apply(load.load(), function, "share int", per="row")

        def take_over(batch: DataFrame, _: int) -> None:
            rows = batch.collect()
            if stops:
                raise Stopped
            self.shares += [row["share"] for row in rows]

        writer = shares.writeStream.foreachBatch(take_over).trigger(**trigger)
        query = writer.option("checkpointLocation", str(self.folder / "own")).start()
        try:
            assert query.awaitTermination(200)
        except Exception as error:
            return error
        return None

    def left(self) -> list[bytes]:
        return [event.payload for event in outputs(self.worker.address, "own", "err")]


def test_with_sparks_own_sink_an_event_goes_to_err_once_wherever_its_driver_has_ended(
    spark: SparkSession, worker: RunningWorker, tmp_path: Path
) -> None:
    def store(*payloads: bytes) -> None:
        store_events(worker, "connector/attic/0", [stored(7, 1, 1, payload=payload) for payload in payloads])

    store(*PAYLOADS)
    own = Own(spark, worker, tmp_path)
    assert "Stopped" in str(own.run(share_of, stops=True, availableNow=True)), "after the registrations"
    assert own.left() == []
    assert own.run(mended, availableNow=True) is None
    bad = [PAYLOADS[1], PAYLOADS[3]]
    assert (own.left(), sorted(own.shares)) == (bad, [3, 12, 12]), "the function was changed before Spark's commit"

    store(b"more poison", b'{"n": 0}', b'{"n": 6}')
    assert own.run(share_of, once=True) is None
    assert own.left() == bad, "Spark has committed the batch, and the worker does not know it yet"
    assert own.run(share_of, availableNow=True) is None
    assert (own.left(), sorted(own.shares)) == ([*bad, b"more poison", b'{"n": 0}'], [2, 3, 12, 12])
