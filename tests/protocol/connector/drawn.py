"""The parts of docs/connector-protocol.md that are drawn from the tables and the vectors. To draw them again:

python -m tests.protocol.connector.drawn
"""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

from penstock.protocol.connector import Role, Use
from penstock.protocol.connector.frames import Frame
from penstock.protocol.connector.session import SENDERS, SINK_TRANSITIONS, SOURCE_TRANSITIONS, STREAM_TRANSITIONS
from penstock.protocol.connector.two_phase import ROUND_TRANSITIONS

from .vectors import TWO_PHASE_VECTORS, VECTORS

PAGE = Path(__file__).parents[3] / "docs" / "connector-protocol.md"
END = "<!-- end -->"


# A transition table as a Mermaid state diagram: the docs' diagrams are drawn from the tables that the code runs on.

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum | type[Frame])

INITIATOR_MARK, ACCEPTOR_MARK = "→", "←"
"""Who sends: the initiator, the acceptor. A frame without a mark is for both."""


def mermaid(table: Mapping[S, Mapping[E, S]], use: Use | None = None) -> str:
    """The table's states in its order, the first one first; an arrow for each pair of states, with what leads there."""
    lines = ["stateDiagram-v2", f"    [*] --> {_name(next(iter(table)))}"]
    for state, row in table.items():
        arrows: dict[S, list[str]] = {}
        for event, following in row.items():
            arrows.setdefault(following, []).append(_label(event, use))
        lines += [f"    {_name(state)} --> {_name(to)}: {', '.join(labels)}" for to, labels in arrows.items()]
    return "\n".join(lines)


def _name(state: Enum) -> str:
    return str(state.value)


def _label(event: Enum | type[Frame], use: Use | None) -> str:
    if isinstance(event, Enum):
        return str(event.value)
    if use is None:
        return event.wire_name
    senders = [role for role, frames in SENDERS[use].items() if event in frames]
    marks = {Role.INITIATOR: INITIATOR_MARK, Role.ACCEPTOR: ACCEPTOR_MARK}
    return f"{marks[senders[0]]} {event.wire_name}" if len(senders) == 1 else event.wire_name


def parts() -> dict[str, str]:
    """What belongs between `<!-- drawn: NAME -->` and `<!-- end -->`."""
    return {
        "source session": _fenced(mermaid(SOURCE_TRANSITIONS, Use.SOURCE), "mermaid"),
        "sink session": _fenced(mermaid(SINK_TRANSITIONS, Use.SINK), "mermaid"),
        "stream": _fenced(mermaid(STREAM_TRANSITIONS), "mermaid"),
        "round": _fenced(mermaid(ROUND_TRANSITIONS), "mermaid"),
        "vectors": _fenced("\n".join(f"{f.wire_name:<17} {text}" for f, text in VECTORS + TWO_PHASE_VECTORS)),
    }


def _fenced(text: str, language: str = "") -> str:
    return f"```{language}\n{text}\n```"


def drawn(page: str) -> str:
    """The page with all its parts drawn again."""
    for name, text in parts().items():
        begin = f"<!-- drawn: {name} -->\n"
        assert begin in page, f"{PAGE} has no place for {name}"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{text}\n{END}{rest.partition(END)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
