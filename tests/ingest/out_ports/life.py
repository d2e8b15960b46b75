"""The parts of a worker on a folder, from their start to a crash. Run as a program: a process for a test to kill."""

import asyncio
import sys
from pathlib import Path
from typing import Any, Generic, TypeVar

from penstock.connectors.registry import make_chains
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.out_ports.host import SourceHost
from penstock.ingest.sessions.program_server import ProgramServer
from penstock.ingest.settings import ProgramServerSettings
from penstock.protocol.api.deployment import ConnectorSpec
from penstock.protocol.stored.event import StoredEvent
from penstock.store.file_journal import Committer, FileJournal
from penstock.store.files import RealFiles
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore
from tests.ingest.conftest import SMALL
from tests.ingest.out_ports.scene import Driven, ScriptedGate, read_events
from tests.support.waiting import eventually

J = TypeVar("J", bound=FileJournal)


class Life(Generic[J]):
    """One run of a worker. Its program server does not listen, since no program connects."""

    def __init__(self, folder: Path, journal: type[J]) -> None:
        self.journal = journal(RealFiles(folder), SMALL)
        self.store = SegmentStore(self.journal, SMALL)
        self.committer = Committer(self.journal, SMALL.idle_proof_seconds)
        self.committer.start()
        durability = Durability(self.journal, asyncio.get_running_loop(), lambda: None)
        self.sources = SourceCatalog(self.store, durability, ProgramServerSettings(port=0))
        self.programs = ProgramServer(self.sources)
        self.gate = ScriptedGate()
        self.sources.guard(self.gate)
        self._hosts: list[SourceHost] = []

    async def host(self, **spec: Any) -> SourceHost:
        described = ConnectorSpec(**{"name": "source", "id": "source", "instance": "01", "type": "driven", **spec})
        chains = make_chains(described.interceptors_in, ())
        host = SourceHost(described, Driven(), self.sources, gate=self.gate, chains=chains)
        self._hosts.append(host)
        host.start()
        await eventually(lambda: host.status().state == "connected")
        return host

    def events(self) -> list[StoredEvent]:
        return read_events(self.store, self.sources.log("source").segments)

    def ends(self) -> dict[str, int]:
        return {name: self.store.info(name).length for name in self.sources.log("source").segments}

    async def end(self) -> None:
        """Stop writing, as a crash would."""
        self.committer.stop()
        for host in self._hosts:
            await host.stop()
        self.journal.close()


async def main(folder: Path, what: str) -> None:
    """Print the id of a stream, or the lower bound of all ids of this process; then wait to be killed."""
    host = await Life(folder, FileJournal).host()
    found = (await host.open_stream("peer")).ref.stream_id if what == "stream" else host.log.streams.incarnation << 32
    print(found, flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
