"""Declarations about sources over HTTP."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client.coordinator import CoordinatorClient, InputSpec, WatermarkBlocker
from penstock.core.errors import RequestError
from penstock.protocol.connector import stream_id_of
from penstock.protocol.stored.event import END_OF_TIME
from tests.spark.sending import send
from tests.support.open_stream import open_stream
from tests.support.running_worker import RunningWorker
from tests.support.waiting import SECONDS_MAX, until


@pytest.fixture
def client(worker: RunningWorker) -> Iterator[CoordinatorClient]:
    send(f"127.0.0.1:{worker.ports['connector']}", "a shop", "north", [b"order"])
    with CoordinatorClient(f"127.0.0.1:{worker.ports['http']}", 5) as made:
        yield made


def post(worker: RunningWorker, path: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{worker.ports['http']}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_mistakes_are_refused(worker: RunningWorker, client: CoordinatorClient) -> None:
    for body in (
        {},
        {"time_us": "now"},
        {"time_us": 1.5},
        {"time_us": 2**63},
        {"time_us": 1, "stream": 1.5},
        {"time_us": 1, "stream": 2**64},
        {"time_us": 1, "after": -1},
        {"time_us": 1, "stream": "south"},
    ):
        status, answer = post(worker, "/sources/a%20shop/watermark", body)
        assert (status, answer["kind"]) == (400, "RequestError"), body
    for verb in ("end", "watermark"):
        assert post(worker, f"/sources/nobody/{verb}", {"time_us": 1})[0] == 400
    with pytest.raises(RequestError, match="no stream of source 'a shop' is open"):
        client.declare_watermark("a shop", 5)


def test_an_end_and_what_blocks_a_watermark_are_shown_everywhere(
    worker: RunningWorker, client: CoordinatorClient
) -> None:
    run = client.start("counts", {"in": InputSpec(["a shop", "market"])}, [])
    assert post(worker, "/sources/a%20shop/end", {}) == (200, {})
    assert client.status().sources["a shop"].has_finished
    cut = client.cut("counts", run.generation, "in", client.initial("counts", run.generation, "in"))
    assert cut.offset.watermark is None, "the market has not even begun"
    client.drop("counts")
    send(f"127.0.0.1:{worker.ports['connector']}", "market", "east", [b"order"])
    run = client.start("counts", {"in": InputSpec(["a shop", "market"])}, [])
    at = client.cut("counts", run.generation, "in", client.initial("counts", run.generation, "in")).offset
    assert at.watermark == 1000, "its streams have ended, and may begin again"
    (told,) = client.pipelines()
    assert (told.watermark, told.watermark_blocked_by) == (1000, None)
    client.end_source("market")
    assert client.cut("counts", run.generation, "in", at).offset.watermark == END_OF_TIME


def test_a_stream_that_blocks_the_watermark_is_named_in_status_and_metrics(
    worker: RunningWorker, client: CoordinatorClient
) -> None:
    with open_stream(worker.ports["connector"], "a shop", "south") as stream:
        run = client.start("counts", {"in": InputSpec(["a shop"])}, [])
        at = client.cut("counts", run.generation, "in", client.initial("counts", run.generation, "in")).offset
        south = stream_id_of("south")
        assert client.pipelines()[0].watermark_blocked_by == WatermarkBlocker("a shop", south, "south", None)
        stream.send(1, 5)
        assert client.declare_watermark("a shop", 3_000, "south", after=1) == 1
        at = client.cut("counts", run.generation, "in", at).offset
        assert at.watermark == 5_000
        assert client.pipelines()[0].watermark_blocked_by == WatermarkBlocker("a shop", south, "south", 5_000)
        assert client.declare_watermark("a shop", 9_000, south) == 1
        at = client.cut("counts", run.generation, "in", at).offset
        assert at.watermark == 9_000
        with urllib.request.urlopen(
            f"http://127.0.0.1:{worker.ports['http']}/metrics", timeout=SECONDS_MAX
        ) as response:
            text = response.read().decode()
        labels = f'pipeline="counts",source="a shop",stream="south",stream_id="{south}"'
        assert f"penstock_pipeline_watermark_blocked{{{labels}}} 1.0" in text
        assert 'penstock_pipeline_watermark_seconds{pipeline="counts"} 0.009' in text
        assert 'penstock_pipeline_watermark_unmoved_seconds{pipeline="counts"}' in text


def test_the_slowest_streams_are_listed_first(worker: RunningWorker, client: CoordinatorClient) -> None:
    with (
        open_stream(worker.ports["connector"], "a shop", "fast") as fast,
        open_stream(worker.ports["connector"], "a shop", "slow") as slow,
    ):
        fast.send(1, 90)
        slow.send(1, 10)
        slow.send(2, 20)
        until(lambda: (fast.acked(), slow.acked()) == (1, 2))
        found = client.streams("a shop")
        assert {one.name: one.event_time for one in found.streams} == {"north": None, "fast": None, "slow": None}
        run = client.start("counts", {"in": InputSpec(["a shop"])}, [])
        client.cut("counts", run.generation, "in", client.initial("counts", run.generation, "in"))
        found = client.streams("a shop")
    assert (found.count, found.newest) == (3, 90_000)
    shown = [(one.name, one.state, one.last_message_id, one.event_time) for one in found.streams]
    assert shown == [("slow", "active", 2, 20_000), ("fast", "active", 1, 90_000), ("north", "ended", 1, None)]
    assert found.streams[0].stream_id == stream_id_of("slow")
    with pytest.raises(RequestError, match="there is no source 'nobody'"):
        client.streams("nobody")
