"""The blocking client of what a worker has deployed: for drivers and commands."""

from dataclasses import dataclass
from typing import Any

from penstock.client.coordinator.worker_client import WorkerClient
from penstock.config.deployment import Deployment


@dataclass(frozen=True, slots=True)
class Deployed:
    """`state` is running, draining or drained; `revision` is another one after every change, and 0 before the first."""

    revision: int
    state: str
    deployment: Deployment


class ApplicationClient(WorkerClient):
    """What an answer says is kept on disk."""

    def application(self) -> Deployed:
        """What is deployed."""
        told = self._ask("GET", "/application")
        return Deployed(told["revision"], told["state"], Deployment.from_json(told["deployment"]))

    def apply(self, deployment: Deployment, name: str = "") -> dict[str, Any]:
        """Deploy it: `revision`, and what was started, stopped and linked anew. `name` is what people call it: its
        file. Raises RequestError where it cannot run here; then nothing has changed.
        """
        answer: dict[str, Any] = self._ask("PUT", "/application", {"deployment": deployment.as_json(), "name": name})
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
