"""The driver is killed with SIGKILL between fire and commit: no pane is lost or comes twice, late events come once."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.client.segments import SegmentClient
from penstock.protocol.stored import StoredEvent, parse_event
from tests.spark.crashes.places import Place, Victim, Window
from tests.spark.crashes.scene import Scene
from tests.spark.crashes.sender import STREAMS, key, text
from tests.windows.spark.crashing.pipelines import LATE_EVERY, LATE_MS, SIZE_MS

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900)]

Pane = tuple[str, int]
"""A key, and the window's start in milliseconds."""


def stored(scene: Scene, port: str) -> list[StoredEvent]:
    with SegmentClient(scene.worker.address) as client:
        return [e for one in client.events(f"pipeline/windowed/{port}") if (e := parse_event(one.data)) is not None]


def window_of(number: int) -> int:
    at = number - (LATE_MS if number % LATE_EVERY == 0 else 0)
    return at // SIZE_MS * SIZE_MS


def milliseconds(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def test_panes_and_late_events_come_once_when_the_driver_is_killed_between_fire_and_commit(tmp_path: Path) -> None:
    file = Path(__file__).parent / "crashing" / "pipelines.py"
    with Scene(tmp_path, file, ["windowed"]) as scene:
        scene.wait_for_progress()
        scene.kill_at(Place(Victim.DRIVER, Window.BEFORE_MERGE, "windowed"))
        scene.kill_at(Place(Victim.DRIVER, Window.AFTER_MERGE, "windowed"))
        assert len(scene.drivers) == 3
        messages = scene.end_sender()
        watermark = scene.pipeline("windowed")["watermark"] // 1000
        panes, late = stored(scene, "out"), stored(scene, "late")
    check_late(late)
    check_panes(panes, late, messages, watermark)


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
