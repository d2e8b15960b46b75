"""Several attempts at one task, at once or one after the other: whichever Spark uses, each event leaves once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client.coordinator import CoordinatorClient
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


def test_a_function_that_decides_differently_twice_fails_its_epoch_which_is_run_again(
    worker: RunningWorker, tmp_path: Path
) -> None:
    """One attempt has registered that it rejects a row, the others hand that row on: it must not be lost between them,
    nor leave twice.
    """
    payloads = [b'{"n": 1}', b"poison", b'{"n": 4}', b'{"n": 0}']
    store_events(worker, "connector/attic/0", [stored(7, n, 1, payload=one) for n, one in enumerate(payloads, 1)])
    http = f"127.0.0.1:{worker.ports['http']}"
    command = [sys.executable, "-m", "tests.spark.undecided", http, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "lost").exists(), "the first attempt was lost"
    assert "apply share made different decisions for the same rows in epoch 0" in done.stderr
    with CoordinatorClient(http) as client:
        assert [one.generation for one in client.pipelines()] == [2]
    shares = sorted(json.loads(event.payload)["share"] for event in outputs(worker.address, "shares"))
    assert shares == [3, 12]
    assert [event.payload for event in outputs(worker.address, "shares", "err")] == [b"poison", b'{"n": 0}']
