"""What a pipeline has produced in a test: rows by port, dead letters, late events and windows, for each epoch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgpack

from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion
from penstock.protocol.api.dead_letters import DeadLetter
from penstock.protocol.stored.dead_letters import ERR, LATE
from penstock.protocol.stored.event import StoredEvent
from penstock.testing.events import datetime_of

_WINDOW_FIELDS = ("window_start", "window_end", "pane", "revision")
"""Fields of every row that a window emits."""
_OUT = "out"
_PACKED = ".msgpack"
"""The end of the name of a port whose rows are in MessagePack."""


class Row(dict[str, Any]):
    """The fields of a row as its sink gets them: from JSON, so times are text. A row with a `value` of its own has just
    that. The attributes are those of the stored row.
    """

    __slots__ = ("event_time", "key", "metadata", "port", "stream", "value")

    def __init__(self, port: str, event: StoredEvent, *, has_fields: bool) -> None:
        super().__init__(_fields(port, event.payload) if has_fields else {"value": event.payload})
        self.port = port
        self.value = event.payload
        """Its bytes."""
        self.key = event.key
        self.event_time: datetime | None = datetime_of(event.event_time)
        self.metadata: Mapping[str, Any] = event.metadata
        self.stream: str | None = event.metadata.get("stream")
        """The name of the stream that it replies to."""


def _fields(port: str, payload: bytes) -> dict[str, Any]:
    found = msgpack.unpackb(payload, timestamp=3) if port.endswith(_PACKED) else json.loads(payload)
    return found if isinstance(found, dict) else {"data": found}


@dataclass(frozen=True, slots=True)
class WindowPane:
    """A row that a window has emitted."""

    start: datetime
    end: datetime
    pane: str
    """`on_time` or `update`."""
    revision: int
    values: Mapping[str, Any]
    """Its keys and results."""
    row: Row

    @classmethod
    def of(cls, row: Row) -> WindowPane:
        start, end = (datetime.fromisoformat(row[name]) for name in _WINDOW_FIELDS[:2])
        others = (*_WINDOW_FIELDS, "event_time", "replaces")
        values = {name: value for name, value in row.items() if name not in others}
        return cls(start, end, row["pane"], row["revision"], values, row)


@dataclass(frozen=True, slots=True)
class Outputs:
    """What left in one epoch or in several."""

    ports: Mapping[str, list[Row]]
    """Port → its rows. A port without rows is there as well."""
    dead_letters: list[DeadLetter]
    """What left through `err`: each with its bytes (`value`), `reason`, `segment` and `offset`. First those of the
    connectors: events without an event time, which have no position.
    """
    late: list[DeadLetter]
    """What left through `late`, likewise; with the `watermark` that it missed."""

    @property
    def rows(self) -> list[Row]:
        """Of the port `out`; of the only port, if it has another name. The order is the events' own if the function
        does not shuffle.
        """
        others = [port for port in self.ports if port not in (ERR, LATE)]
        return self[others[0] if len(others) == 1 else _OUT] if others else []

    def __getitem__(self, port: str) -> list[Row]:
        """The rows of this port. Raises RequestError for a port that the pipeline does not have."""
        if port not in self.ports:
            raise RequestError(f"the pipeline has no port {port!r}", suggestion(port, [*self.ports], "Its ports"))
        return self.ports[port]

    @property
    def windows(self) -> list[WindowPane]:
        """The rows that windows have emitted, of all ports."""
        return [WindowPane.of(row) for rows in self.ports.values() for row in rows if row.keys() >= {*_WINDOW_FIELDS}]


@dataclass(frozen=True, slots=True)
class EpochOutputs(Outputs):
    watermark: datetime | None
    """Of the epoch's end."""


@dataclass(frozen=True, slots=True)
class Result(Outputs):
    """What left in the whole run."""

    epochs: list[EpochOutputs]
    """One for each epoch of the inputs; a last one for the end of the sources, if they have ended."""

    @classmethod
    def of(cls, epochs: Sequence[EpochOutputs]) -> Result:
        ports = {port: [*_rows(epochs, port)] for epoch in epochs for port in epoch.ports}
        dead_letters = [one for epoch in epochs for one in epoch.dead_letters]
        return cls(ports, dead_letters, [one for epoch in epochs for one in epoch.late], [*epochs])


def _rows(epochs: Sequence[EpochOutputs], port: str) -> Iterator[Row]:
    for epoch in epochs:
        yield from epoch.ports.get(port, ())
