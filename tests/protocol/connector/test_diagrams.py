"""The docs' diagrams are those of the tables, and the docs' bytes those of the vectors."""

from enum import Enum

from penstock.protocol.connector import Use
from penstock.protocol.connector.frames import Frame, Hello, Ok
from penstock.protocol.connector.session import Closed

from .drawn import PAGE, drawn, mermaid


def test_the_page_matches_the_tables() -> None:
    page = PAGE.read_text()
    assert page == drawn(page), "run: python -m tests.protocol.connector.drawn"


class Light(Enum):
    RED = "Red"
    GREEN = "Green"


def test_an_arrow_carries_all_that_leads_from_one_state_to_another() -> None:
    table: dict[Light, dict[type[Frame], Light]] = {
        Light.RED: {Hello: Light.GREEN, Closed: Light.GREEN, Ok: Light.RED},
        Light.GREEN: {Ok: Light.RED},
    }
    assert mermaid(table, Use.SOURCE).splitlines() == [
        "stateDiagram-v2",
        "    [*] --> Red",
        "    Red --> Green: → HELLO, close",
        "    Red --> Red: ← OK",
        "    Green --> Red: ← OK",
    ]
