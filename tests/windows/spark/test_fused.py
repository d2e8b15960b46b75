"""Windows that the readers of an input compute, in a real Spark session: panes, late events and dead letters are those
that Spark's rows have, from the same checkpoint.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from penstock import windows
from penstock.cli import explain
from penstock.cli.app import app
from penstock.protocol.stored.event import NO_TIME
from penstock.spark import Pipeline, pipeline
from penstock.spark.run.attempt import plan_of
from penstock.windows.kinds import Window
from tests.windows.reference import Event, Reference
from tests.windows.spark.running import Bench
from tests.windows.spark.scene import Scene, Sent
from tests.windows.spark.test_end_to_end import KINDS, SECOND, expected, found, ingest_epochs, micros, sorted_panes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CODEC = {"codec": "json", "schema": "user string, amount bigint"}
LEAST = 10


def one(events: DataFrame, name: str, window: Window, lateness: int, where: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    frame = windows.aggregate(
        events,
        window,
        keys="user",
        where=where,
        select={"more": "amount + 1"},
        allowed_lateness=f"{lateness} us",
        buckets=3,
        name=name,
        n=windows.count(),
        total=windows.sum("more"),
        least=windows.min("amount"),
        most=windows.max("amount"),
        mean=windows.avg("amount"),
        values=windows.collect("amount", 5),
        first=windows.first("amount"),
        last=windows.last("amount"),
        different=windows.approx_distinct("amount"),
    )
    return frame.select(F.lit(name).alias("name"), *map(micros, frame.columns))


def of_readers(events: DataFrame, where: str = f"amount >= {LEAST}") -> DataFrame:
    """All kinds of windows on the input itself."""
    frames = [one(events, name, window, lateness, where) for name, (window, lateness) in KINDS.items()]
    return frames[0].unionByName(frames[1], True).unionByName(frames[2], True)


def of_spark(events: DataFrame) -> DataFrame:
    """The same on a frame that is derived from it."""
    return of_readers(events.select("*"))


def is_good(sent: Sent) -> bool:
    return sent.time_us != NO_TIME and sent.payload != b"no json"


def referred(sent: Sent) -> Event:
    value = json.loads(sent.payload)
    return Event(sent.time_us, value["user"], value["amount"], sent.number)


def test_a_query_may_go_from_plain_to_fused_and_back_and_has_the_panes_and_late_events_of_the_reference(
    scene: Scene,
) -> None:
    chance = random.Random(20261117)
    rows: list[Any] = []
    for phase, build in enumerate((of_spark, of_readers, of_spark)):
        ingest_epochs(scene, 1, chance, 2 * phase)
        now = (2 * phase + 1) * 4 * SECOND
        scene.ingest(
            (1, now, {"user": "a", "amount": 99}), (1, NO_TIME, {"user": "a", "amount": 50}), (1, now, b"no json")
        )
        rows += scene.run(build, **CODEC)
    panes, late = [], list[Any]()
    for name, (window, lateness) in KINDS.items():
        reference = Reference(window, lateness)
        for events, before, after in scene.epochs():
            taken = [event for event in map(referred, filter(is_good, events)) if (event.value or 0) >= LEAST]
            gave, missed = reference.epoch(taken, before, after)
            panes += [expected(name, pane) for pane in gave]
            late += [event.number for event in missed]
    assert len(scene.epochs()) == 6
    assert sorted_panes([found(row) for row in rows]) == sorted_panes(panes)
    assert {pane["pane"] for pane in panes} == {"on_time", "update"}
    by_number = {sent.number: sent for sent in scene.sent}
    for letter in (*scene.left(), *scene.left("err")):
        assert (letter.payload, letter.metadata["offset"]) == (
            by_number[letter.event_id].payload,
            by_number[letter.event_id].offset,
        )
    assert sorted(letter.event_id for letter in scene.left()) == sorted(late)
    assert late
    reasons = [(letter.metadata["reason"], letter.event_id) for letter in scene.left("err")]
    timeless = [sent.number for sent in scene.sent if sent.time_us == NO_TIME]
    broken = [sent.number for sent in scene.sent if sent.payload == b"no json"]
    assert sorted(number for reason, number in reasons if "event time" in reason) == sorted(timeless * len(KINDS))
    assert [number for reason, number in reasons if "JSON" in reason] == broken, "once, of the reader they share"

    scene.ingest((1, 0, {"user": "a", "amount": 3}))
    with pytest.raises(Exception, match=r"\[DIVIDE_BY_ZERO\]"):
        scene.run(lambda events: of_readers(events, where="1 / (amount - 3) > 0"), **CODEC)


def counts(frame: DataFrame) -> DataFrame:
    return windows.aggregate(frame, windows.tumbling("10 seconds"), keys=["stream_id"], n=windows.count(), buckets=2)


def passing(fused: bool) -> Pipeline:
    """An input that is also used in another way: as plain rows, it is one load."""

    def passed(given: DataFrame) -> dict[str, DataFrame]:
        return {"counts": counts(given if fused else given.where("true")), "same": given.select("value")}

    return pipeline(name="passed", inputs={"given": "sensors"})(passed)


def test_an_input_that_is_also_used_otherwise_keeps_its_checkpoint_when_windows_become_fused(
    scene: Scene, bench: Bench
) -> None:
    for round_, is_fused in enumerate((False, True, False)):
        scene.ingest(*((1, (10 * round_ + second) * SECOND, {"n": second}) for second in range(4)))
        bench.run(passing(is_fused))
    panes = [json.loads(event.payload) for event in bench.out("passed", "counts")]
    assert [(pane["stream_id"], pane["n"]) for pane in panes] == [(1, 4), (1, 4)]
    assert len(bench.out("passed", "same")) == 12
    notes = [plan_of(bench.spark, passing(is_fused)).operators[0] for is_fused in (True, False)]
    assert [note.not_fused is None for note in notes] == [True, False]


def test_progress_counts_the_events_that_readers_have_read(scene: Scene) -> None:
    scene.ingest(*((1, number * SECOND, {"n": number}) for number in range(7)))
    assert not scene.run(
        lambda events: windows.aggregate(events, windows.tumbling("1 minute"), where="offset < 0", n=windows.count())
    )
    assert scene.rows_read == 7


APPLICATION = """
from pyspark.sql import DataFrame
from penstock import windows
from penstock.spark import pipeline


@pipeline(columns=["key", "event_time", "stream_id"])
def sold(tills: DataFrame) -> dict[str, DataFrame]:
    minute = windows.tumbling("1 minute")
    more = {"n": "stream_id + 1"}
    return {
        "a": windows.aggregate(tills, minute, keys="key", where="stream_id > 7", select=more, top=windows.max("n")),
        "b": windows.aggregate(tills, minute, keys="key", name="b", where="upper(key) = 'A'", n=windows.count()),
    }
"""


FLOW = (("├─", "a"), ("├─", "b"), ("├─", "err"), ("└─", "late"))


@pytest.fixture
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that start Spark use the session of the tests."""
    from contextlib import nullcontext

    def session(_: object) -> AbstractContextManager[SparkSession]:
        return nullcontext(spark)

    monkeypatch.setattr(explain, "_session", session)


YAML = """
connector:
  - {id: tills, type: http-server, config: {port: 8080}, codec: json, schema: 'amount BIGINT'}
  - {id: archive, type: file, config: {path: results, mode: write}, codec: json}
pipeline: {id: sums, spark: 'sums.py:sums'}
binding: {id: b, links: {connector/tills/out: pipeline/sums/tills, pipeline/sums/out: connector/archive/in}}
"""
SUMS = """
from penstock.spark import pipeline

@pipeline(inputs={"tills": "tills"}, outputs=["out"])
def sums(tills): return tills.selectExpr("amount + 1 AS more")
"""


@pytest.mark.usefixtures("shared_session")
def test_explain_draws_an_application_with_its_guarantees(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(SUMS)
    (tmp_path / "app.yaml").write_text(YAML)
    shown = CliRunner().invoke(app, ["explain", str(tmp_path / "app.yaml")])
    lines = shown.stdout.splitlines()
    assert lines[:7] == [
        "tills (http-server, at-least-once)",
        "└─ sums",
        "   ├─ out → archive (file, exactly-once, transactional)",
        "   ├─ err: stored as pipeline:sums/err",
        "   └─ late: stored as pipeline:sums/late",
        "",
        "sums",
    ]
    assert lines[-1] == "    decoded by json: amount BIGINT"


@pytest.mark.usefixtures("shared_session")
def test_explain_shows_which_windows_are_fused_and_why_others_are_not(tmp_path: Path) -> None:
    file = tmp_path / "sold.py"
    file.write_text(APPLICATION)
    shown = CliRunner().invoke(app, ["explain", str(file)])
    assert shown.stdout.splitlines() == [
        "tills",
        "└─ sold, 1 of 2 windows fused with the readers",
        *(f"   {line} {port}: stored as pipeline:sold/{port}" for line, port in FLOW),
        "",
        "sold",
        "  input tills: tills",
        "    columns: key, event_time, stream_id",
        "  windows tumbling 1m by key of tills: fused",
        "    readers compute partial results from stream_id, event_time, key",
        "    where stream_id > 7",
        "    select n: stream_id + 1",
        "  windows b of tills: not fused: where: readers cannot compute this: upper(…)",
        "    where upper(key) = 'A'",
    ]
    (found_,) = json.loads(CliRunner().invoke(app, ["explain", str(file), "sold", "--json"]).stdout)
    assert [one["fused"] for one in found_["windows"]] == [True, False]
    assert found_["windows"][0]["columns"] == ["stream_id", "event_time", "key"]
    missing = CliRunner().invoke(app, ["explain", str(file), "sald"])
    assert "sald" in str(missing.exception)
