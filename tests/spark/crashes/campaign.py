"""Kill at many places, one after the other, in one system that keeps going; then look at every event's effect."""

import json
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from penstock.client.segments import SegmentClient
from penstock.protocol.stored import parse_event
from tests.spark.crashes.places import Place, every_place
from tests.spark.crashes.scene import PIPELINES, Scene
from tests.spark.crashes.sender import KEYS, STREAMS, key, text


def run(seed: int) -> None:
    """Every window of both victims, in an order of its own for each seed."""
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
    """Everything that was ever sent, when all of it is acknowledged."""
    messages = scene.end_sender()
    with SegmentClient(scene.worker.address) as client:
        check_copy(client, messages)
        check_tally(client, messages, scene.pipeline("tally")["merged"] + 1)


def check_copy(client: SegmentClient, messages: int) -> None:
    """A pipeline without a shuffle: byte for byte the same, per stream, in order, once."""
    found = defaultdict(list)
    for event in filter(None, (parse_event(e.data) for e in client.events("pipeline/copy/out"))):
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
    events = filter(None, (parse_event(e.data) for e in client.events("pipeline/tally/out")))
    rows = [json.loads(event.payload) for event in events]
    final = {row["key"]: (row["count"], row["sum"]) for row in rows}
    assert final == {name: (counts[name], sums[name]) for name in counts}
    for name, group in groupby(sorted(rows, key=lambda row: (row["key"], row["count"])), lambda row: row["key"]):
        assert len(list(group)) <= batches, f"{name} is in more outputs than there were batches"
    assert len(final) == KEYS


def first_difference(found: list[tuple[int, bytes, bytes]], expected: list[tuple[int, bytes, bytes]]) -> str:
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=False)):
        if ours != theirs:
            return f"at {number}: {ours} instead of {theirs}"
    return f"{len(found)} events instead of {len(expected)}"
