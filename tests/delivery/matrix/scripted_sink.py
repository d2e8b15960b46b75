"""The sink program as a test sees it: its votes, what it has received, what it has committed."""

import json
from pathlib import Path
from typing import NamedTuple

from penstock.client.sink import read_committed
from tests.client.sink.sink_process import SinkProcess


class Committed(NamedTuple):
    id: str
    start: int
    end: int
    payloads: list[str]

    @property
    def epoch(self) -> int:
        return int(self.id.split(":")[-2])

    @property
    def attempt(self) -> int:
        return int(self.id.split(":")[-1])


class ScriptedSinkProcess(SinkProcess):
    def __init__(self, directory: Path, votes: str = "") -> None:
        super().__init__("-m", "tests.delivery.matrix.sink_program", str(directory), "ADDRESS")
        directory.mkdir()
        (directory / "votes").write_text(votes)
        self.directory = directory

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def hold(self, prefix: str) -> None:
        """Do not vote on a transaction whose id starts with this prefix."""
        (self.directory / "hold").write_text(prefix)

    def release(self) -> None:
        (self.directory / "hold").unlink(missing_ok=True)

    @property
    def history(self) -> list[str]:
        return self._lines("history")

    @property
    def committed(self) -> list[Committed]:
        return [Committed(*json.loads(line)) for line in self._lines("committed")]

    @property
    def committed_offset(self) -> int:
        """From the SDK's log."""
        return read_committed(self.directory / "state").offset

    def _lines(self, name: str) -> list[str]:
        """The complete lines: the program may be writing."""
        file = self.directory / name
        return file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []
