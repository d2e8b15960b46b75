"""Where a hosted connector's events go: its connector in the gateway, and what its streams share of it."""

from penstock.config.deployment import ConnectorSpec
from penstock.ingest.connectors.completing import Completing
from penstock.ingest.connectors.incarnation import Incarnation
from penstock.ingest.connectors.room import Room
from penstock.ingest.connectors.settings import settings_of
from penstock.ingest.connectors.window import Window
from penstock.ingest.gateway import Gateway


class Ground:
    """Made as the spec says, or opened again with all that is stored. Raises Damaged."""

    def __init__(self, spec: ConnectorSpec, gateway: Gateway, *, own_event_times: bool | None) -> None:
        gateway.configure(spec.name, settings_of(spec, own_event_times=own_event_times))
        self.connector = gateway.made(spec.name)
        self.completing = Completing(gateway.completion(spec.name))
        check = gateway.store.journal.check
        self.window = Window(gateway.durability, check)
        self.room = Room(self.connector, check)
        self.incarnation = Incarnation(self.connector, gateway.durability)

    def close(self) -> None:
        self.completing.close()
        self.room.close()
