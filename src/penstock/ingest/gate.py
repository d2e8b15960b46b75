"""The gate decides whether streams may send. Both fronts ask it, and report starts and ends of streams to it."""

from collections.abc import Callable
from typing import Protocol

from penstock.connectors.api import StreamRef

Changed = Callable[[StreamRef, bool], None]
"""A stream, and whether it may send now."""


class Gate(Protocol):
    """Decides whether streams may send: breakers, in a worker with an application. All calls are made in the worker's
    event loop.

    A stream is `started`, sends while it may, is `ended`, and `completed` once every pipeline has completed its last
    event. It may be started again: before its end if its program reconnects, after its end if it resumes.
    """

    def started(self, stream: StreamRef) -> None:
        """Its start is durable. Idempotent."""
        ...

    def ended(self, stream: StreamRef) -> None:
        """Its end is durable. Idempotent. Also called for a stream that was started in an earlier process."""
        ...

    def completed(self, stream: StreamRef) -> None:
        """After `ended`: every pipeline has completed an epoch with its last event, regardless of the `ack` mode."""
        ...

    def may_send(self, stream: StreamRef) -> bool:
        """Whether a stream that is started may send."""
        ...

    def why(self, stream: StreamRef) -> str:
        """What blocks it, in one sentence; "" if it may send."""
        ...

    def subscribe(self, changed: Changed) -> Callable[[], None]:
        """Call `changed` whenever `may_send` of a stream has changed, until the returned function is called."""
        ...


class OpenGate:
    """Every stream may always send: nothing is deployed that could block one."""

    def started(self, stream: StreamRef) -> None: ...

    def ended(self, stream: StreamRef) -> None: ...

    def completed(self, stream: StreamRef) -> None: ...

    def may_send(self, stream: StreamRef) -> bool:  # noqa: ARG002
        return True

    def why(self, stream: StreamRef) -> str:  # noqa: ARG002
        return ""

    def subscribe(self, changed: Changed) -> Callable[[], None]:  # noqa: ARG002
        return lambda: None


class GuardedStreams:
    """The gate of a worker's sources, and the started streams that it blocks. The silence of a blocked stream does not
    count; the gate is not asked about streams that have not started, so their silence does.
    """

    def __init__(self) -> None:
        self.gate: Gate = OpenGate()
        self.is_guarded = False
        """Whether a gate is set that may block streams."""
        self._blocked: set[StreamRef] = set()

    def guard(self, gate: Gate, changed: Changed) -> None:
        """Set the gate; `changed` is called for every change. Call it once, before sources may connect."""
        self.gate, self.is_guarded = gate, True

        def remember(stream: StreamRef, may_send: bool) -> None:
            self.remember(stream, may_send=may_send)
            changed(stream, may_send)

        gate.subscribe(remember)

    def started(self, stream: StreamRef) -> bool:
        """Report the start of a stream. Returns whether it may send."""
        self.gate.started(stream)
        may_send = self.gate.may_send(stream)
        self.remember(stream, may_send=may_send)
        return may_send

    def remember(self, stream: StreamRef, *, may_send: bool) -> None:
        (self._blocked.discard if may_send else self._blocked.add)(stream)

    def is_blocked(self, stream: StreamRef) -> bool:
        return stream in self._blocked
