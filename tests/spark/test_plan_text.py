"""What Spark prints of a plan, read: inputs, operators with state, and what their state depends on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from cProfile import Profile
from typing import TYPE_CHECKING, Any

import pytest

from penstock import watermarked, windows
from penstock.core.errors import RequestError
from penstock.spark import Pipeline, pipeline
from penstock.spark.run.plan_text import AGGREGATES, following_writers, parse_plan
from penstock.spark.run.state_plan import StatefulOperator, StatePlan, differences

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRINTED = """== Parsed Logical Plan ==
'Aggregate ['stream], ['stream, 'count(1) AS n#9]
+- ~Aggregate [no#1], [plan#2]

== Analyzed Logical Plan ==
stream: string, n: bigint
~Aggregate [stream#5, length(value#7)], [stream#5, count(1) AS n#9L, (max(id#8L) - min(id#8L)) AS max(id)#10L]
+- ~Filter (cast(value#7 as string) = a
+- Aggregate [k#1], [k#1]
b)
   +- ~Join LeftOuter, ((stream#5 = other#12) AND (t#6-T1000ms <=> (u#13 + INTERVAL '01' MINUTE)))
      :- ~Project [cast(null as string) AS stream#5, cast(null as timestamp) AS t#6, value#7, id#8L]
      :  +- ~StreamingRelationV2 p.Rate@75ad, rate, p.RateTable@5443, [penstock.pretended.input=left, rows=9], [id#8L]
      +- ~Join Inner, (other#12 = name#14)
         :- ~StreamingRelationV2 p.Kafka@75ad, kafka, p.KafkaTable@5443, [topic=a], [other#12, u#13]
         +- LocalRelation [name#14]

== Optimized Logical Plan ==
~Aggregate [no#1], [plan#2]
"""


@pytest.mark.spark
def test_a_writer_is_known_in_any_thread_and_under_any_profiler(spark: SparkSession) -> None:
    made: list[Any] = []
    frame, own = spark.readStream.format("rate").load(), vars(type(spark.range(0)))["writeStream"]
    other = frame.where("value > 1")
    profiler = Profile()
    with following_writers() as written, following_writers() as also:
        thread = threading.Thread(target=lambda: made.append(frame.writeStream))
        thread.start()
        thread.join()
        profiler.enable()
        try:
            made.append(other.writeStream.format("noop"))
        finally:
            profiler.disable()
    assert [written.of(one) for one in made] == [also.of(one) for one in made] == [frame, other]
    assert vars(type(frame))["writeStream"] is own, "nothing of Spark's stays replaced"


def test_a_pipeline_that_writes_in_a_thread_is_planned_under_a_profiler(spark: SparkSession) -> None:
    @pipeline
    def elsewhere(events: DataFrame) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: events.groupBy("stream").count().writeStream.format("noop")).result()

    from penstock.spark.run.attempt import plan_of

    profiler = Profile()
    planned = profiler.runcall(plan_of, spark, elsewhere)
    assert [one.name for one in planned.state.operators] == ["groupBy"]


def test_a_writer_that_was_made_before_the_function_is_refused_with_a_hint(spark: SparkSession) -> None:
    writer = spark.readStream.format("rate").load().writeStream
    with following_writers() as written, pytest.raises(RequestError, match="it is not known which frame") as refused:
        written.of(writer)
    assert "Call writeStream inside the function" in str(refused.value.hint)


def test_a_plan_is_read_from_the_text_that_spark_prints() -> None:
    aggregates = "count(…), max(id), min(id)"
    assert parse_plan(PRINTED) == StatePlan(
        ("left", "kafka"),
        (
            StatefulOperator(
                "groupBy",
                {"keys": "stream, …", "aggregates": aggregates},
                types={"stream": "string", "id": "bigint"},
            ),
            StatefulOperator(
                "join",
                {"type": "LeftOuter", "keys": "other = stream, t = …"},
                types={"stream": "string", "t": "timestamp"},
            ),
        ),
    ), "a join with a table has no state, and a literal is no node"


Build = Callable[["DataFrame"], Any]


@pytest.fixture
def plan(spark: SparkSession) -> Callable[[Build], StatePlan]:
    """What is known about a pipeline with this function before it is started."""
    from penstock.spark.run.attempt import plan_of

    def found(build: Build) -> StatePlan:
        def function(events: DataFrame) -> Any:
            return build(events)

        made: Pipeline = pipeline(name="p", inputs={"events": "events"})(function)
        return plan_of(spark, made).state

    return found


Plan = Callable[[Build], StatePlan]


@pytest.mark.spark
def test_every_operator_of_sparks_shows_what_its_state_depends_on(plan: Plan) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    def by(window: Any) -> Build:
        return lambda events: (
            events.withWatermark("event_time", "1 minute").groupBy(window, "stream").agg(F.sum("message_id").alias("n"))
        )

    def facts(build: Build) -> dict[str, str]:
        (operator,) = plan(build).operators
        return {"name": operator.name, **operator.facts}

    minutes = facts(by(F.window("event_time", "1 minute")))
    assert minutes == {
        "name": "groupBy",
        "keys": "window, stream",
        "aggregates": "sum(message_id)",
        "time window": "60 s",
    }
    assert facts(by(F.window("event_time", "1 minute", "30 seconds")))["time window"] == "30 s, 60 s"
    assert facts(by(F.session_window("event_time", "5 minutes"))) == minutes | {
        "keys": "session_window, stream",
        "time window": "5 minutes",
    }
    assert facts(lambda events: events.dropDuplicates(["stream", "message_id"])) == {
        "name": "dropDuplicates",
        "keys": "message_id, stream",
    }
    assert facts(lambda events: watermarked(events).dropDuplicatesWithinWatermark(["stream"])) == {
        "name": "dropDuplicatesWithinWatermark",
        "keys": "stream",
    }
    assert facts(lambda events: events.limit(3)) == {"name": "limit"}
    assert plan(lambda events: events.limit(0)).operators == (), "Spark leaves it out"
    assert plan(lambda events: events.where("stream = 'Aggregate [a], [b]'")).operators == ()


@pytest.mark.spark
def test_what_state_does_not_survive_is_named_and_all_else_may_change(plan: Plan) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    def counts(events: DataFrame) -> DataFrame:
        return events.groupBy("stream").agg(F.count("*").alias("n"), F.max("message_id").alias("last"))

    def changed(events: DataFrame) -> DataFrame:
        computed = events.where("message_id > 3").withColumn("stream", F.upper("stream"))
        found = computed.groupBy("stream").agg(F.count("*").alias("n"), (F.max("message_id") + 1).alias("next"))
        return found.where("n > 1")

    before = plan(counts)
    assert differences(before, plan(changed)) == []
    assert differences(before, plan(lambda events: events.groupBy("stream", "source").count())) == [
        "groupBy: keys: stored stream; now stream, source",
        "groupBy: aggregates: stored count(…), max(message_id); now count(…)",
    ]
    assert differences(before, plan(lambda events: counts(events).groupBy("n").count())) == [
        "operators with state: stored groupBy; now groupBy, groupBy"
    ]
    assert differences(before, plan(lambda events: counts(events.withColumn("stream", F.lit(1).cast("int"))))) == [
        "groupBy: type of stream: stored string; now int"
    ]


@pytest.mark.spark
def test_joins_inputs_and_windows_are_found_in_the_order_in_which_the_query_reads_them(plan: Plan) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    def joined(events: DataFrame) -> DataFrame:
        right = events.select(F.col("stream").alias("other"), F.col("message_id").alias("id"))
        both = events.join(right, (events["stream"] == right["other"]) & (events["message_id"] < right["id"]))
        return windows.aggregate(both, windows.tumbling("1 minute"), keys=["other"], n=windows.count(), buckets=2)

    found = plan(joined)
    assert found.loads == ("events", "events", "events (watermark)")
    assert [one.name for one in found.operators] == ["windows", "join"]
    assert found.operators[0].facts["keys"] == "other string"
    assert found.operators[1].facts == {"type": "Inner", "keys": "other = stream"}


@pytest.mark.spark
def test_what_a_writer_of_sparks_own_writes_is_known_too(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    def written(events: DataFrame) -> Any:
        unused = events.writeStream
        print("a user's own words")
        assert unused is not None
        return events.dropDuplicates(["stream"]).writeStream.format("noop").outputMode("append")

    assert [one.name for one in plan(written).operators] == ["dropDuplicates"]
    assert capsys.readouterr().out == "a user's own words\n", "and none of Spark's"


@pytest.mark.long
@pytest.mark.spark
def test_all_aggregate_functions_of_this_spark_are_known(spark: SparkSession) -> None:
    functions = spark.catalog.listFunctions()
    assert {one.name for one in functions if ".aggregate." in (one.className or "")} <= AGGREGATES
