"""The gate of the gateway's own sources: as breakers and operators say, and shut while the application is drained."""

from collections.abc import Callable

from penstock.connectors.api import StreamRef
from penstock.ingest.gate import Changed, Gate

_SHUT = "the application is being stopped, or started"


class Guard:
    """A Gate before another one. Shut, no stream of any program may send; hosted connectors have their own drain. It is
    in the beginning: until what is deployed runs, nobody knows where streams lead.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._is_shut = True
        self._started: set[StreamRef] = set()
        self._subscribers: list[Changed] = []
        gate.subscribe(self._changed)

    def shut(self) -> None:
        self._set(is_shut=True)

    def open(self) -> None:
        self._set(is_shut=False)

    def _set(self, *, is_shut: bool) -> None:
        if is_shut == self._is_shut:
            return
        self._is_shut = is_shut
        for stream in [stream for stream in self._started if self._gate.may_send(stream)]:
            self._tell(stream, not is_shut)

    def started(self, stream: StreamRef) -> None:
        self._started.add(stream)
        self._gate.started(stream)

    def ended(self, stream: StreamRef) -> None:
        self._started.discard(stream)
        self._gate.ended(stream)

    def completed(self, stream: StreamRef) -> None:
        self._gate.completed(stream)

    def may_send(self, stream: StreamRef) -> bool:
        return not self._is_shut and self._gate.may_send(stream)

    def why(self, stream: StreamRef) -> str:
        return _SHUT if self._is_shut else self._gate.why(stream)

    def subscribe(self, changed: Changed) -> Callable[[], None]:
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed) if changed in self._subscribers else None

    def _changed(self, stream: StreamRef, may_send: bool) -> None:
        """Also of hosted connectors, which ask the other gate themselves."""
        if not (self._is_shut and stream in self._started):
            self._tell(stream, may_send)

    def _tell(self, stream: StreamRef, may_send: bool) -> None:
        for subscriber in [*self._subscribers]:
            subscriber(stream, may_send)
