"""The blocking client of what a worker has deployed: for drivers and commands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from penstock.client.coordinator.connection import WorkerClient
from penstock.protocol.api.deployment import Deployment

_CHECK_SECONDS_MAX = 60.0
"""The worker asks the driver of the pipelines before it answers."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A deployment that a worker asks its driver about."""

    number: int
    deployment: Deployment


@dataclass(frozen=True, slots=True)
class Deployed:
    """`state` is running, draining or drained; `revision` is another one after every change, and 0 before the first."""

    revision: int
    state: str
    deployment: Deployment
    proposed: Proposal | None = None
    incarnations: Mapping[str, int] = field(default_factory=dict)
    """By pipeline: another one after a reset."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        proposed = data.get("proposed")
        return cls(
            data["revision"],
            data["state"],
            Deployment.from_json(data["deployment"]),
            None if proposed is None else Proposal(proposed["number"], Deployment.from_json(proposed["deployment"])),
            data.get("incarnations", {}),
        )


class ApplicationClient(WorkerClient):
    """What an answer says is kept on disk."""

    def application(self) -> Deployed:
        """What is deployed."""
        return Deployed.from_json(self._ask("GET", "/application"))

    def follow(self) -> Deployed:
        """The same, for the driver of its pipelines: from now on it is asked before anything changes."""
        return Deployed.from_json(self._ask("GET", "/application?driver=1"))

    def leave(self) -> None:
        """As the driver: it follows no more, and need not be asked."""
        self._ask("POST", "/application/leave", {})

    def answer(self, number: int, refusals: Sequence[str]) -> None:
        """As the driver: why it cannot run what was proposed; nothing if it can."""
        self._ask("POST", "/application/answer", {"number": number, "refusals": [*refusals]})

    def apply(self, deployment: Deployment, name: str = "") -> dict[str, Any]:
        """Deploy it: `revision`, and what was started, stopped and linked anew. `name` is what people call it: its
        file. Raises RequestError where it cannot run here, or not with the state that its pipelines have; then nothing
        has changed.
        """
        body = {"deployment": deployment.as_json(), "name": name}
        answer: dict[str, Any] = self._ask("PUT", "/application", body, _CHECK_SECONDS_MAX)
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
