"""What the blocking clients of a worker's HTTP side have in common: one connection, asked again while it is away."""

from types import TracebackType
from typing import Any, Self

from penstock.client.coordinator.connection import Connection
from penstock.client.segments.address import Address
from penstock.client.segments.failures import Interrupted
from penstock.client.segments.retrying import RETRY_SECONDS, TIMEOUT_SECONDS, retrying

PORT = 7102
"""Of a worker's HTTP side, where an address names none."""


class WorkerClient:
    """Every call may be repeated, and is, for `retry_seconds` while the worker is away; then Unavailable is raised. Not
    for several threads at once.
    """

    def __init__(
        self,
        worker: str = f"127.0.0.1:{PORT}",
        retry_seconds: float = RETRY_SECONDS,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self.address = Address.parse(worker.removeprefix("http://").rstrip("/"), PORT)
        self._retry_seconds = retry_seconds
        self._connection = Connection(self.address, timeout_seconds)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, method: str, path: str, body: Any = None, wait_seconds: float = 0.0) -> Any:
        for attempt in retrying(self._retry_seconds, Interrupted):
            with attempt:
                return self._connection.ask(method, path, body, wait_seconds)
        raise AssertionError("tenacity returns or raises")
