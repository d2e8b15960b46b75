"""A source that sends what it is told: what another source has stored before it is started."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from penstock.connectors.api import About, Capabilities, Connector, Host, Options
from penstock.core.types import Guarantee
from penstock.testing.frame import Frame, Setup
from tests.connectors.real_host import LINES


class PlantedOptions(Options):
    pieces: dict[str, str] = Field(default_factory=dict)
    """By the name of the stream: its bytes so far."""
    events: dict[str, dict[int, str]] = Field(default_factory=dict)
    """By the name of the stream: its events by their ids."""


class Planted(Connector[PlantedOptions]):
    about = About(
        "planted",
        "Of a test.",
        PlantedOptions,
        Capabilities(source=Guarantee.EXACTLY_ONCE, resumes=True, own_event_times=False),
    )

    async def run(self, host: Host) -> None:
        host.connected()
        for name, piece in self.options.pieces.items():
            stream = await host.open_stream(name, resume=True)
            await stream.send(piece.encode())
            await stream.cut_off("it is continued")
            await stream.close()
        for name, events in self.options.events.items():
            stream = await host.open_stream(name, resume=True)
            await stream.put([value.encode() for value in events.values()], ids=[*events])
            await stream.close()
        await host.draining()


async def plant(
    folder: Path, *, pieces: Mapping[str, str] | None = None, events: Mapping[str, Any] | None = None
) -> None:
    """Another frame in this folder continues these streams."""
    config = {"pieces": pieces or {}, "events": events or {}}
    count = sum(piece.count("\n") for piece in config["pieces"].values()) + sum(map(len, config["events"].values()))
    async with Frame(folder, Planted, config, Setup(interceptors_in=LINES if pieces else ())) as frame:
        await frame.until_stored(count)
