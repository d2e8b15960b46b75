"""Every test runs with the blocking sink and with the asyncio one."""

from pathlib import Path

import pytest

from penstock.client.sink import read_committed
from tests.client.sink.running_sink import KINDS, Serve, serve_with


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def serve(kind: str, tmp_path: Path) -> Serve:
    """Runs sinks of one kind, one after the other, on one state directory."""
    return serve_with(kind, tmp_path / "state")


class Output:
    """A file that a sink writes, and what of it is committed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "out"
        self._state = folder / "state"

    @property
    def committed(self) -> bytes:
        return self.path.read_bytes()[: read_committed(self._state).size]

    @property
    def all(self) -> bytes:
        return self.path.read_bytes()


@pytest.fixture
def output(tmp_path: Path) -> Output:
    return Output(tmp_path)
