"""A transition table as a Mermaid state diagram: the docs' diagrams are drawn from the tables that the code runs on."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from penstock.protocol.connector.frames import Frame
from penstock.protocol.connector.roles import Role, Use
from penstock.protocol.connector.session import SENDERS

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
