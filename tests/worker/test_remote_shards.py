"""A pipeline reads sources of two shards, in processes of their own that are killed and move."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments import SegmentClient
from penstock.core.errors import Unavailable
from tests.spark.sending import send
from tests.support.copying_driver import Driver
from tests.support.shard_process import ShardProcess, ShardProcesses
from tests.support.waiting import SECONDS_MAX

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PLACES = {"a": 0, "b": 1, "pipeline:copy/out": 0, "pipeline:copy/err": 0, "pipeline:copy/late": 0}
COUNT = 300


def output(home: ShardProcess) -> list[bytes]:
    with SegmentClient(home.segment) as client:
        return [bytes(event.data) for event in client.events("pipeline/copy/out")]


def payloads(source: str) -> list[bytes]:
    return [b"%s %d" % (source.encode(), number) for number in range(COUNT)]


def test_every_event_of_both_shards_is_read_once_although_both_are_killed_and_move(tmp_path: Path) -> None:
    with ShardProcesses(tmp_path, PLACES) as (home, other):
        driver = Driver(home, ["a", "b"])
        copying = threading.Thread(target=driver.run)
        copying.start()
        try:
            _wait(lambda: _is_running(home))
            sending = [
                threading.Thread(target=send, args=(one.connector, source, "s", payloads(source)))
                for one, source in ((home, "a"), (other, "b"))
            ]
            for one in sending:
                one.start()
            for killed in (other, home, other):
                before = len(output(home))
                _wait(lambda before=before: len(output(home)) > before or not sending[1].is_alive())
                killed.kill()
                killed.start()
            for one in sending:  # they return when all is acknowledged, by the pipeline
                one.join(SECONDS_MAX)
                assert not one.is_alive()
            found = output(home)
            _wait(lambda: driver.watermark is not None)
        finally:
            driver.is_over.set()
            copying.join()
    assert Counter(found) == Counter(payloads("a") + payloads("b")), "acknowledged, so all of it is in the output"
    for source in ("a", "b"):
        assert [one for one in found if one.startswith(source.encode())] == payloads(source), "in order"


def test_other_shards_authenticate_with_the_clusters_secret(tmp_path: Path) -> None:
    with ShardProcesses(tmp_path, {"a": 0}) as (only,):
        body = json.dumps({"home": 1, "source": "a", "after": {}, "bytes_max": 1000}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{only.http}/shard/follow", body, headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        with refused.value as reply:
            assert reply.code == 403
        headers["Authorization"] = "Bearer the secret of the cluster"
        request = urllib.request.Request(f"http://{only.http}/shard/follow", body, headers)
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["segments"] == {}


def _is_running(home: ShardProcess) -> bool:
    try:
        with closing(CoordinatorClient(home.http, 0)) as coordinator:
            return bool(coordinator.pipelines())
    except Unavailable:
        return False


def _wait(condition: object) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)
