"""Kill at many points, one after the other, in one system that keeps running; then check every event's effect."""

import json
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

from penstock.client.segments import SegmentClient
from penstock.protocol.stored import StoredEvent, parse_event
from tests.spark.crashes.pipelines import LATE_EVERY, LATE_MS, SIZE_MS
from tests.spark.crashes.places import Place, every_place
from tests.spark.crashes.scene import PIPELINES, Scene
from tests.spark.crashes.sender import KEYS, STREAMS, key, text

Pane = tuple[str, int]
"""A key, and the window's start in milliseconds."""


def run(seed: int) -> None:
    """Every window of both victims, in a different order for each seed."""
    places = every_place(PIPELINES if seed % 2 else PIPELINES[::-1])
    random.Random(seed).shuffle(places)
    with tempfile.TemporaryDirectory(prefix="penstock-crashes-") as directory, Scene(Path(directory)) as scene:
        kill_and_check(scene, places)


def kill_and_check(scene: Scene, places: Iterable[Place]) -> None:
    scene.wait_for_progress()
    for place in places:
        scene.kill_at(place)
    check(scene)


def check(scene: Scene) -> None:
    """Check everything that was sent, once all of it is acknowledged."""
    messages = scene.end_sender()
    watermark = scene.pipeline("windowed")["watermark"] // 1000
    with SegmentClient(scene.worker.address) as client:
        check_copy(client, messages)
        check_tally(client, messages, scene.pipeline("tally")["merged"] + 1)
        panes, late = (stored(client, f"pipeline/windowed/{port}") for port in ("out", "late"))
    check_late(late)
    check_panes(panes, late, messages, watermark)


def stored(client: SegmentClient, segment: str) -> list[StoredEvent]:
    return [event for one in client.events(segment) if (event := parse_event(one.data)) is not None]


def check_copy(client: SegmentClient, messages: int) -> None:
    """A pipeline without a shuffle: byte for byte the same, per stream, in order, once."""
    found = defaultdict(list)
    for event in stored(client, "pipeline/copy/out"):
        found[event.metadata["stream"]].append((event.event_id, event.payload, event.key))
    for stream in STREAMS:
        expected = [(number, text(stream, number), key(number)) for number in range(1, messages + 1)]
        assert found[stream] == expected, f"stream {stream}: {first_difference(found[stream], expected)}"
    assert set(found) == set(STREAMS)


def check_tally(client: SegmentClient, messages: int, batches: int) -> None:
    """A pipeline with state: the final result of every key is right, and no epoch's output is there twice."""
    counts, sums = Counter[str](), Counter[str]()
    for number in range(1, messages + 1):
        counts[key(number).decode()] += len(STREAMS)
        sums[key(number).decode()] += number * len(STREAMS)
    rows = [json.loads(event.payload) for event in stored(client, "pipeline/tally/out")]
    final = {row["key"]: (row["count"], row["sum"]) for row in rows}
    assert final == {name: (counts[name], sums[name]) for name in counts}
    for name, group in groupby(sorted(rows, key=lambda row: (row["key"], row["count"])), lambda row: row["key"]):
        assert len(list(group)) <= batches, f"{name} is in more outputs than there were batches"
    assert len(final) == KEYS


def check_late(late: list[StoredEvent]) -> None:
    assert late
    origins = Counter((event.metadata["stream"], event.event_id) for event in late)
    assert set(origins.values()) == {1}, "no late event comes twice"
    for event in late:
        assert event.payload == text(event.metadata["stream"], event.event_id), "with its original bytes"
        assert event.key == key(event.event_id)
        assert event.event_id % LATE_EVERY == 0
        assert event.metadata["behind_us"] > 0


def check_panes(panes: list[StoredEvent], late: list[StoredEvent], messages: int, watermark: int) -> None:
    """Each event is in the one pane of its key and window, or late; every window that has ended has its panes."""
    expected, sums = Counter[Pane](), Counter[Pane]()
    for number in range(1, messages + 1):
        place = key(number).decode(), window_of(number)
        expected[place] += len(STREAMS)
        sums[place] += number * len(STREAMS)
    for event in late:
        place = event.key.decode(), window_of(event.event_id)
        expected[place] -= 1
        sums[place] -= event.event_id
    rows = [json.loads(event.payload) for event in panes]
    found = [(row["k"], milliseconds(row["window_start"]), row["n"], row["ids"]) for row in rows]
    assert {(row["pane"], row["revision"]) for row in rows} == {("on_time", 0)}
    closed = {place for place, count in expected.items() if count and place[1] + SIZE_MS <= watermark}
    assert sorted(found) == sorted((*place, expected[place], sums[place]) for place in closed)


def window_of(number: int) -> int:
    at = number - (LATE_MS if number % LATE_EVERY == 0 else 0)
    return at // SIZE_MS * SIZE_MS


def milliseconds(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def first_difference(found: list[tuple[int, bytes, bytes]], expected: list[tuple[int, bytes, bytes]]) -> str:
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=False)):
        if ours != theirs:
            return f"at {number}: {ours} instead of {theirs}"
    return f"{len(found)} events instead of {len(expected)}"
