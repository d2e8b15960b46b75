"""Windows in a real Spark session, epoch by epoch: every pane equals the reference's, across a restart."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from penstock import windows
from penstock.windows.kinds import Session, Sliding, Tumbling, Window
from tests.windows.reference import Event, Pane, Reference
from tests.windows.spark.scene import Scene, Sent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

SECOND = 1_000_000
KINDS: dict[str, tuple[Window, int]] = {
    "tumbling": (windows.tumbling("10 seconds", offset="3 seconds"), 5 * SECOND),
    "sliding": (windows.sliding("10 seconds", "4 seconds"), 0),
    "session": (windows.session("3 seconds"), 6 * SECOND),
}


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[None]:
    """A session whose time zone is not UTC, nor a whole number of hours off: no result may depend on it."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    yield
    spark.conf.set("spark.sql.session.timeZone", before or "UTC")


def ingest_epochs(scene: Scene, count: int, chance: random.Random, start: int) -> None:
    """Two streams whose times drift forward, with many late events, on both sides of 1970."""
    for epoch in range(start, start + count):
        now = (epoch * 4 - 20) * SECOND
        events = []
        for _ in range(20):
            behind = chance.choice([0, 1, 3, 8, 15, 30]) * SECOND
            value = {"user": chance.choice(["a", "b", None]), "amount": chance.randrange(100)}
            events.append((chance.randrange(1, 3), now + chance.randrange(5 * SECOND) - behind, value))
        events += [(1, now, {"user": "a", "amount": 1}), (2, now, {"user": "b", "amount": 1})]
        scene.ingest(*events)


def build(events: DataFrame) -> DataFrame:
    """All kinds of windows in one query, after a stage that has decoded the value and kept nothing else of it."""
    from pyspark.sql import functions as F  # noqa: N812

    decoded = F.from_json(F.col("value").cast("string"), "user string, amount bigint")
    rows = events.select("event_time", "segment", "offset", "stream_id", "message_id", decoded.alias("v"))
    rows = rows.select("event_time", "segment", "offset", "stream_id", "message_id", "v.user", "v.amount")
    frames = [one(rows, name, window, lateness) for name, (window, lateness) in KINDS.items()]
    return frames[0].unionByName(frames[1], True).unionByName(frames[2], True)


def one(rows: DataFrame, name: str, window: Window, lateness: int) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    frame = windows.aggregate(
        rows,
        window,
        keys="user",
        allowed_lateness=f"{lateness} us",
        buckets=3,
        name=name,
        n=windows.count(),
        total=windows.sum(F.col("amount") + 1),
        least=windows.min("amount"),
        most=windows.max("amount"),
        mean=windows.avg("amount"),
        values=windows.collect("amount", 5),
        first=windows.first("amount"),
        last=windows.last("amount"),
        different=windows.approx_distinct("amount"),
    )
    return frame.select(F.lit(name).alias("name"), *map(micros, frame.columns))


def micros(column: str) -> Any:
    """Instants as numbers: the timestamps of `collect` depend on time zones."""
    from pyspark.sql import functions as F  # noqa: N812

    if column in ("window_start", "window_end", "event_time"):
        return F.unix_micros(column).alias(column)
    if column == "replaces":
        bounds = F.transform("replaces", lambda one: F.array(*(F.unix_micros(one[name]) for name in one_names)))
        return bounds.alias(column)
    return F.col(column)


one_names = ("window_start", "window_end")


def expected(name: str, pane: Pane) -> dict[str, Any]:
    values = [event.value for event in pane.events if event.value is not None]
    return {
        "name": name,
        "user": pane.key,
        "window_start": pane.start,
        "window_end": pane.end,
        "pane": pane.kind,
        "revision": pane.revision,
        "n": len(values),
        "total": sum(values) + len(values),
        "least": min(values),
        "most": max(values),
        "mean": sum(values) / len(values),
        "values": values[:5],
        "first": values[0],
        "last": values[-1],
        "different": len(set(values)),
        "event_time": pane.end - 1,
        "replaces": sorted(map(list, pane.replaces)) if name == "session" else None,
    }


def found(row: Row) -> dict[str, Any]:
    values = row.asDict(recursive=True)
    if values["replaces"] is not None:
        values["replaces"] = sorted(values["replaces"])
    return values | {"mean": pytest.approx(values["mean"]), "different": pytest.approx(values["different"], abs=1)}


def sorted_panes(panes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("name", "user", "window_start", "window_end", "revision")
    return sorted(panes, key=lambda pane: tuple(str(pane[name]) for name in names))


def referred(sent: Sent) -> Event:
    value = json.loads(sent.payload)
    return Event(sent.time_us, value["user"], value["amount"], sent.number)


@pytest.mark.usefixtures("elsewhere")
def test_every_kind_of_window_has_the_panes_and_late_events_of_the_reference_across_a_restart(scene: Scene) -> None:
    chance = random.Random(20261115)
    ingest_epochs(scene, 5, chance, 0)
    rows = scene.run(build)
    ingest_epochs(scene, 5, chance, 5)
    rows += scene.run(build)
    panes, late, left = [], dict[str, list[Any]](), list[Any]()
    for name, (window, lateness) in KINDS.items():
        reference = Reference(window, lateness)
        for events, before, after in scene.epochs():
            gave, missed = reference.epoch([*map(referred, events)], before, after)
            panes += [expected(name, pane) for pane in gave]
            late.setdefault(name, []).extend((one.number, before, (before or 0) - one.time) for one in missed)
    assert len(scene.epochs()) == 10
    assert sorted_panes([found(row) for row in rows]) == sorted_panes(panes)
    assert {pane["pane"] for pane in panes} == {"on_time", "update"}
    by_number = {one.number: one for one in scene.sent}
    for event in scene.left():
        sent = by_number[event.event_id]
        assert (event.payload, event.metadata["offset"], event.stream_id) == (sent.payload, sent.offset, sent.stream)
        watermark = next(before for events, before, _ in scene.epochs() if sent in events)
        left.append((sent.number, watermark, event.metadata["behind_us"]))
    assert sorted(left) == sorted(one for each in late.values() for one in each), "of each operator, once"
    assert all(late.values())
    kinds = {type(window) for window, _ in KINDS.values()}
    assert kinds == {Tumbling, Sliding, Session}
    shown = {one["operator"]: one for one in scene.numbers()}
    assert {name: one["late_kept"] for name, one in shown.items()} == {name: len(late[name]) for name in KINDS}
    assert all(one["buckets"] == 3 and one["epoch"] == 9 and one["state_bytes"] > 0 for one in shown.values())
