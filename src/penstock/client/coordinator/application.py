"""The blocking client of what a worker has deployed: for drivers and commands."""

from collections.abc import Sequence
from typing import Any

from penstock.client.coordinator.connection import WorkerClient
from penstock.protocol.api.codec import Done, Empty, decode_reply, encode
from penstock.protocol.api.deployment import Answer, Apply, Deployed, Deployment, SelectStreams

_CHECK_SECONDS_MAX = 60.0
"""The worker asks the driver of the pipelines before it answers."""


class ApplicationClient(WorkerClient):
    """What an answer says is kept on disk."""

    def application(self) -> Deployed:
        """What is deployed."""
        return self._get("/application", Deployed)

    def follow(self) -> Deployed:
        """The same, for the driver of its pipelines: from now on it is asked before anything changes."""
        return self._get("/application?driver=1", Deployed)

    def leave(self) -> None:
        """As the driver: it follows no more, and need not be asked."""
        self._post("/application/leave", Empty(), Done)

    def answer(self, number: int, refusals: Sequence[str]) -> None:
        """As the driver: why it cannot run what was proposed; nothing if it can."""
        self._post("/application/answer", Answer(number=number, refusals=refusals), Done)

    def apply(self, deployment: Deployment, name: str = "") -> dict[str, Any]:
        """Deploy it: `revision`, and what was started, stopped and relinked. `name` is what people call it: its
        file. Raises RequestError where it cannot run here, or not with the state that its pipelines have; then nothing
        has changed.
        """
        body = encode(Apply(deployment=deployment.as_json(), name=name))
        return decode_reply(self._ask("PUT", "/application", body, _CHECK_SECONDS_MAX), dict[str, Any])

    def drain(self) -> None:
        """Sources read no more. Returns at once: `application` says when all has left."""
        self._post("/drain", Empty(), dict[str, Any])

    def pause(self, connector: str, stream: str | int | None = None) -> None:
        """A connector, or one of its streams by its name or its id."""
        self._post("/pause", SelectStreams(connector=connector, stream=stream), dict[str, Any])

    def resume(self, connector: str, stream: str | int | None = None) -> None:
        self._post("/resume", SelectStreams(connector=connector, stream=stream), dict[str, Any])

    def status(self) -> dict[str, Any]:
        """The worker's /status."""
        return self._get("/status", dict[str, Any])
