"""docs/writing-connectors.md matches the code: its source works, and the tests that it names exist."""

import re
from pathlib import Path
from typing import Any

from penstock.connectors.api import About, Capabilities, Connector, Host, Options
from penstock.connectors.streams import until_draining
from penstock.connectors.values import SomeSeconds
from penstock.core.types import Guarantee
from penstock.testing.conformance import ConnectorConformance
from penstock.testing.frame import Frame

DOCS = Path(__file__).parents[2] / "docs" / "writing-connectors.md"


async def test_the_smallest_source_sends_its_ticks(tmp_path: Path) -> None:
    program = re.findall(r"```python\n(class TicksOptions.*?)```", DOCS.read_text(), re.DOTALL)[0]
    names = {one.__name__: one for one in (About, Capabilities, Connector, Host, Options, Guarantee, until_draining)}
    scope: dict[str, Any] = {**names, "SomeSeconds": SomeSeconds, "__name__": __name__}
    exec(program, scope)
    async with Frame(tmp_path, scope["Ticks"], {"interval": "10ms"}) as frame:
        await frame.until_stored(3)
        await frame.drain()
        assert {*await frame.values()} == {b"tick"}


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(test_\w+)(…?)`", DOCS.read_text())
    there = [name for name in dir(ConnectorConformance) if name.startswith("test_")]
    for name, is_cut in named:
        assert any(one.startswith(name) if is_cut else one == name for one in there), name
    assert all(any(one.startswith(name) for name, _ in named) for one in there)
