"""Connectors to what stores events, in the real frame, each with a real peer."""

from pathlib import Path

from penstock.connectors.connector_protocol.connector import ConnectorProtocol
from penstock.connectors.file.connector import File
from penstock.connectors.segment import Segment
from penstock.testing.conformance import ConnectorConformance
from penstock.testing.peer import Peer
from tests.connectors.conformance.stored_peers import AnotherWorker, AppendedFile, GrowingFiles


class TestFileTail(ConnectorConformance):
    """A file takes all that is written: only how much of it is read can be limited."""

    connector = File
    breaks_off = False
    feels_it = False

    def make_peer(self, folder: Path) -> Peer:
        return GrowingFiles(folder)


class TestFileAppend(ConnectorConformance):
    connector = File
    speaks = False

    def make_peer(self, folder: Path) -> Peer:
        return AppendedFile(folder)


class TestSegment(ConnectorConformance):
    connector = Segment
    speaks = False
    is_dialled = True

    def make_peer(self, folder: Path) -> Peer:
        return AnotherWorker(folder)


class TestConnectorProtocol(ConnectorConformance):
    """Its streams are the gateway's sessions, which are tested in tests/gateway, and its sink is delivery's."""

    connector = ConnectorProtocol
    speaks = False

    def make_peer(self, folder: Path) -> Peer:
        return Peer()
