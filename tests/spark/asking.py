"""What a worker's HTTP side says, for tests."""

import json
import urllib.request
from typing import Any

from tests.support.running_worker import RunningWorker


def get(worker: RunningWorker, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{worker.ports['http']}{path}", timeout=10) as response:
        return json.load(response)


def segment_names(worker: RunningWorker, prefix: str = "") -> list[str]:
    return [segment["name"] for segment in get(worker, f"/segments?prefix={prefix}")["segments"]]


def connections(worker: RunningWorker) -> int:
    """Open connections to the segment port."""
    number: int = get(worker, "/status")["segment_server"]["connections"]
    return number
