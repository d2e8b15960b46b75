"""Requests to a worker's HTTP port, for tests."""

from typing import Any

from tests.support import http
from tests.support.running_worker import RunningWorker


def get(worker: RunningWorker, path: str) -> Any:
    return http.get(worker.ports["http"], path)


def segment_names(worker: RunningWorker, prefix: str = "") -> list[str]:
    return [segment["name"] for segment in get(worker, f"/segments?prefix={prefix}")["segments"]]


def connections(worker: RunningWorker) -> int:
    """Open connections to the segment port."""
    number: int = get(worker, "/status")["segment_server"]["connections"]
    return number
