"""One request and its reply, over as many connections as that takes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

from penstock.client.segments.failures import Interrupted, error_of
from penstock.core.errors import PenstockError, ProtocolError, Unavailable
from penstock.protocol.segment import VERSIONED, Failure, Reply, Request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request is repeated when its reply is lost with the connection, since most can be done twice. Two cannot:

    `done_when_repeated`: the repeated one fails with this error if the first one was done, and then that is success.
    `unknown_hint`: it must not be repeated; what the caller can look at instead.
    """

    request: Request
    reply: type[Reply]
    result: Callable[[Any], T]
    wait_seconds: float = 0.0
    """How much longer than usual the reply may take."""
    done_when_repeated: type[PenstockError] | None = None
    unknown_hint: str = ""


class Attempts(Generic[T]):
    """The tries of one call."""

    def __init__(self, call: Call[T]) -> None:
        self.call = call
        self._perhaps_done = False

    def encode(self, request_id: int) -> bytes:
        # Every request has a request id; the base class has no fields.
        return VERSIONED.encode(replace(cast("Any", self.call.request), request_id=request_id))

    def result(self, reply: Reply) -> T:
        """What the caller gets. Raises what a failure means; Interrupted goes on to `interrupted`."""
        if isinstance(reply, self.call.reply):
            return self.call.result(reply)
        if not isinstance(reply, Failure):
            raise ProtocolError(f"{type(reply).__name__} is no reply to {type(self.call.request).__name__}")
        error = error_of(reply)
        if self._perhaps_done and self.call.done_when_repeated and isinstance(error, self.call.done_when_repeated):
            return self.call.result(reply)
        raise error

    def interrupted(self, error: Interrupted) -> Unavailable:
        """What to raise when the request may have been sent and no reply came."""
        self._perhaps_done = True
        if self.call.unknown_hint:
            request = type(self.call.request).__name__
            return Unavailable(f"it is not known whether {request} was done: {error}", self.call.unknown_hint)
        return error
