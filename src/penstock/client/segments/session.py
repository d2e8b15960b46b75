"""One connection to a worker, without I/O: Hello first, then every reply goes to the one who asked."""

from typing import Protocol

from penstock.client.segments.address import Address
from penstock.core.errors import PenstockError, ProtocolError
from penstock.protocol.segment import (
    NO_REQUEST,
    VERSION_HIGH,
    VERSION_LOW,
    VERSIONED,
    Decoder,
    ErrorMessage,
    Hello,
    Incoming,
    Reply,
    Role,
)

_NOT_A_WORKER = "Is this the segment port of a penstock worker, and does it speak TLS if we do, and only then?"


class Receiver(Protocol):
    """Who is told of replies. Must not raise: others share the connection."""

    def on_reply(self, reply: Reply) -> None: ...

    def on_lost(self, error: PenstockError) -> None:
        """No reply will come any more."""


class Session:
    """Replies are matched by request id: the order of requests does not hold for reads that wait at the tail.

    Receive into `get_buffer`, then say how much with `received`. A ProtocolError is final.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.is_open = False
        self._decoder = Decoder(Role.CLIENT)
        self._receivers: dict[int, Receiver] = {}
        self._last_request_id = 0

    def hello(self) -> bytes:
        """What to send first."""
        return VERSIONED.encode(Hello(VERSION_HIGH, VERSION_LOW))

    def expect(self, receiver: Receiver) -> int:
        """The request id whose replies, one or many, go to this receiver until `forget`."""
        self._last_request_id += 1
        self._receivers[self._last_request_id] = receiver
        return self._last_request_id

    def forget(self, request_id: int) -> None:
        """A reply that comes nevertheless is dropped."""
        self._receivers.pop(request_id, None)

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def received(self, count: int) -> None:
        try:
            for incoming in self._decoder.received(count):
                self._handle(incoming)
        except ProtocolError as error:
            raise self._explained(error) from None

    def lost(self, error: PenstockError) -> None:
        """Tell everybody who still expects a reply."""
        receivers, self._receivers = self._receivers, {}
        for receiver in receivers.values():
            receiver.on_lost(error)

    def _handle(self, incoming: Incoming) -> None:
        if isinstance(incoming, Hello):
            self._greeted(incoming)
        elif isinstance(incoming, ErrorMessage) and incoming.request_id == NO_REQUEST:
            raise ProtocolError(f"it ended the connection: {incoming.message}", "Look at the worker's log.")
        elif not self.is_open:
            raise ProtocolError(f"{type(incoming).__name__} before Hello")
        elif isinstance(incoming, Reply):
            receiver = self._receivers.get(getattr(incoming, "request_id", NO_REQUEST))
            if receiver is not None:
                receiver.on_reply(incoming)

    def _greeted(self, hello: Hello) -> None:
        if hello.low > VERSION_HIGH or hello.high < VERSION_LOW:
            ours = f"{VERSION_LOW} to {VERSION_HIGH}"
            raise ProtocolError(
                f"it speaks versions {hello.low} to {hello.high}, we {ours}", "Use the same version of penstock."
            )
        self.is_open = True

    def _explained(self, error: ProtocolError) -> ProtocolError:
        hint = error.hint or (_NOT_A_WORKER if not self.is_open else "Look at the worker's log.")
        return ProtocolError(f"the worker at {self.address}: {error}", hint)
