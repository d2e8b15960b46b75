"""The blocking client of what a worker has deployed: for drivers and commands."""

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from penstock.client.coordinator.client import PORT
from penstock.client.coordinator.connection import Connection
from penstock.client.segments.address import Address
from penstock.client.segments.failures import Interrupted
from penstock.client.segments.retrying import RETRY_SECONDS, TIMEOUT_SECONDS, retrying
from penstock.config.deployment import Deployment


@dataclass(frozen=True, slots=True)
class Deployed:
    """`state` is running, draining or drained; `revision` is another one after every change, and 0 before the first."""

    revision: int
    state: str
    deployment: Deployment


class ApplicationClient:
    """Every call may be repeated, and is, for `retry_seconds` while the worker is away; then Unavailable is raised.
    What an answer says is kept on disk. Not for several threads at once.
    """

    def __init__(self, worker: str = f"127.0.0.1:{PORT}", retry_seconds: float = RETRY_SECONDS) -> None:
        self._address = Address.parse(worker.removeprefix("http://").rstrip("/"), PORT)
        self._retry_seconds = retry_seconds
        self._connection = Connection(self._address, TIMEOUT_SECONDS)

    def application(self) -> Deployed:
        """What is deployed."""
        told = self._ask("GET", "/application")
        return Deployed(told["revision"], told["state"], Deployment.from_json(told["deployment"]))

    def apply(self, deployment: Deployment) -> dict[str, Any]:
        """Deploy it: `revision`, and what was started, stopped and linked anew. Raises RequestError where it cannot run
        here; then nothing has changed.
        """
        answer: dict[str, Any] = self._ask("PUT", "/application", {"deployment": deployment.as_json()})
        return answer

    def drain(self) -> None:
        """Sources read no more. Returns at once: `application` says when all has left."""
        self._ask("POST", "/drain", {})

    def pause(self, connector: str, stream: str | int | None = None) -> None:
        """A connector, or one of its streams by its name or its id."""
        self._ask("POST", "/pause", {"connector": connector, "stream": stream})

    def resume(self, connector: str, stream: str | int | None = None) -> None:
        self._ask("POST", "/resume", {"connector": connector, "stream": stream})

    def status(self) -> dict[str, Any]:
        """The worker's /status."""
        answer: dict[str, Any] = self._ask("GET", "/status")
        return answer

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        for attempt in retrying(self._retry_seconds, Interrupted):
            with attempt:
                return self._connection.ask(method, path, body)
        raise AssertionError("tenacity returns or raises")
