"""Whether streams may send, as the gateway and its hosts ask for it, and what they tell of them in return."""

from collections.abc import Callable
from typing import Protocol

from penstock.connectors.api import StreamRef

Changed = Callable[[StreamRef, bool], None]
"""A stream, and whether it may send now."""


class Gate(Protocol):
    """Stands between sources and their streams: breakers, in a worker that hosts an application. All calls are made in
    the worker's event loop.

    A stream is `started`, sends while it may, has `ended`, and is `completed` once every pipeline is done with its last
    event. A stream may be started again: before its end, when its program comes back, and after it, if it resumes.
    """

    def started(self, stream: StreamRef) -> None:
        """It is durable that it has begun. Idempotent."""
        ...

    def ended(self, stream: StreamRef) -> None:
        """It sends no more, and that is durable. Idempotent; also of one that was started in an earlier process."""
        ...

    def completed(self, stream: StreamRef) -> None:
        """After `ended`: every pipeline has completed an epoch that holds its last event, whatever `ack` says."""
        ...

    def may_send(self, stream: StreamRef) -> bool:
        """Of one that is started."""
        ...

    def why(self, stream: StreamRef) -> str:
        """Who keeps it from sending, in one sentence; "" if nobody does."""
        ...

    def subscribe(self, changed: Changed) -> Callable[[], None]:
        """Call it whenever `may_send` of a stream has changed, after the change. What it returns ends that."""
        ...


class OpenGate:
    """Every stream may send, always: where nothing is deployed that could say otherwise."""

    def started(self, stream: StreamRef) -> None: ...

    def ended(self, stream: StreamRef) -> None: ...

    def completed(self, stream: StreamRef) -> None: ...

    def may_send(self, stream: StreamRef) -> bool:  # noqa: ARG002
        return True

    def why(self, stream: StreamRef) -> str:  # noqa: ARG002
        return ""

    def subscribe(self, changed: Changed) -> Callable[[], None]:  # noqa: ARG002
        return lambda: None
