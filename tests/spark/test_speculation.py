"""Two attempts at one task, at the same time, on a cluster: whichever Spark uses, each event leaves once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.protocol.stored.events import stored
from tests.spark.sending import outputs
from tests.spark.stored_data import store_events
from tests.support.running_worker import RunningWorker

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(600)]

SECONDS_MAX = 500
"""About 20 on an idle machine: three JVMs start."""


def test_a_task_that_runs_twice_at_the_same_time_has_its_effect_once(worker: RunningWorker, tmp_path: Path) -> None:
    payloads = [[b'{"n": 1}', b"poison", b'{"n": 0}'], [b'{"n": 2}', b'{"n": 4}', b"more poison", b'{"n": 0}']]
    for number, some in enumerate(payloads):
        events = [stored(7 + number, event, 1, payload=payload) for event, payload in enumerate(some, 1)]
        store_events(worker, f"connector/attic/{number}", events)
    command = [sys.executable, "-m", "tests.spark.speculation", f"127.0.0.1:{worker.ports['http']}", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "second").exists(), "Spark has run the slow task a second time"
    shares = sorted(json.loads(event.payload)["share"] for event in outputs(worker.address, "shares"))
    assert shares == [3, 6, 12]
    err = sorted(event.payload for event in outputs(worker.address, "shares", "err"))
    assert err == sorted([b"poison", b"more poison", b'{"n": 0}', b'{"n": 0}'])
