"""The controller port of a host: each connection is passed on to the process that has the controller, with its TLS."""

import asyncio

from penstock.core.address import Address
from penstock.core.connection_limits import ConnectionLimits
from penstock.pravega.settings import ControllerSettings
from penstock.worker.directory import CONTROLLER, CONTROLLER_PLACE, Directory
from penstock.worker.redirects import Splice
from penstock.worker.spliced_connection import BeginSplice, SplicedConnection

_DEAD_PEER_SECONDS = 30
_FINDING_SECONDS_MAX = 10.0


class ControllerPort:
    """What the connections share."""

    def __init__(self, settings: ControllerSettings, directory: Directory) -> None:
        self._directory = directory
        self.limits = ConnectionLimits(settings.connections_max, settings.connections_max)

    def connection(self) -> "ControllerConnection":
        return ControllerConnection(self)

    async def find(self) -> Address | None:
        """The controller's address; None while no process serves it. Raises Unavailable."""
        shard = await self._directory.place(CONTROLLER_PLACE)
        found = (await self._directory.addresses(shard) or {}).get(CONTROLLER)
        return None if found is None else Address.parse(found)


class ControllerConnection(SplicedConnection):
    def __init__(self, port: ControllerPort) -> None:
        super().__init__(port.limits, _FINDING_SECONDS_MAX, _DEAD_PEER_SECONDS)
        self._port = port
        self._early = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._pass_on(self._find())

    def _received_early(self, data: bytes) -> None:
        self._early += data

    async def _find(self) -> BeginSplice | None:
        owner = await self._port.find()
        return None if owner is None else lambda client: Splice(client, owner, bytes(self._early))
