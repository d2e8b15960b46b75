"""What every connector must pass, ours too: `class TestMine(ConnectorConformance)` in a file of pytest's.

    from penstock.testing.connector_conformance import ConnectorConformance
    from penstock.testing.peer import Peer

    class TestMine(ConnectorConformance):
        connector = MyConnector

        def make_peer(self, folder: Path) -> Peer:
            return MyPeer()            # the real other side: `penstock.testing.peer` says what it has to do

The connector runs in the real frame (`penstock.testing.frame`) on a real store, with lines: `split` stands before the
port `out`, `join` behind the port `in`. A peer's line says lines, and keeps the bytes it is sent. Each test begins with
an empty folder and a fresh peer. Tests of a port that the connector does not have, and of what the attributes below say
it cannot do, are skipped: say so in the connector's documentation. Needs pytest, and no plugin of it.
"""

from pathlib import Path

from penstock.testing.frame import Frame
from penstock.testing.peer import Peer
from penstock.testing.sink_conformance import SinkConformance
from penstock.testing.source_conformance import SourceConformance


class ConnectorConformance(SourceConformance, SinkConformance):
    def test_ports_are_as_declared(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            await frame.until(lambda: frame.instance.host.status().state in ("connected", "ended"), "the connection")
            about, found = self.connector.about, self.capabilities(peer)
            assert found.ports <= about.capabilities.ports
            assert about.name
            assert about.text
            undocumented = [name for name, info in about.options.model_fields.items() if not info.description]
            assert undocumented == [], "every option has a docstring"
            assert frame.instance.made.guarantee.keys() <= {port.value for port in found.ports}

        self.run(tmp_path, scenario)
