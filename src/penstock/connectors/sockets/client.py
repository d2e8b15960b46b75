"""A connector that connects to a server: all that its type adds is how."""

from typing import TypeVar

from penstock.connectors.api import Connector, Host, Outgoing, StreamRef
from penstock.connectors.sockets.dialling import dialling
from penstock.connectors.sockets.options import ClientOptions
from penstock.connectors.sockets.peer import Peer

C = TypeVar("C", bound=ClientOptions)


class Client(Connector[C]):
    def __init__(self, options: C) -> None:
        super().__init__(options)
        self._dialling = dialling(options, self.where(options), self.connect)

    @classmethod
    def where(cls, options: C) -> str:
        """The server, for people."""
        raise AssertionError(f"{cls.__name__} says where {options} leads")

    async def connect(self) -> Peer:
        """Raises OSError."""
        raise AssertionError(f"{type(self).__name__} connects")

    async def run(self, host: Host) -> None:
        await self._dialling.run(host)

    async def stream_started(self, stream: StreamRef, host: Host) -> None:
        await self._dialling.stream_started(stream, host)

    async def stream_closed(self, stream: StreamRef, host: Host) -> None:
        await self._dialling.stream_closed(stream, host)

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        await self._dialling.deliver(outgoing, host)
