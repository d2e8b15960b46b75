"""The events that a test passes to a pipeline: as dicts, text, bytes or `Event`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from penstock.core.ddl import parse_ddl
from penstock.core.errors import RequestError
from penstock.protocol.stored.event import NO_TIME
from penstock.spark.codecs.codec import AS_IT_IS
from penstock.spark.codecs.registry import codec as codec_named

if TYPE_CHECKING:
    from penstock.spark.codecs.codec import Coding

DEFAULT_STREAM = "test"
"""The stream of an event that names none."""

_EPOCH = datetime.fromtimestamp(0, UTC)

Time: TypeAlias = datetime | str | int | float
"""A datetime (UTC if it names no zone), ISO 8601, or seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of an input. Its value is `value`, or `data` in the codec of the input; JSON if that has none."""

    data: Mapping[str, Any] | None = None
    value: bytes | str | None = None
    event_time: Time | None = None
    """None: the event has no event time, so windows treat it as a dead letter."""
    key: bytes | str = b""
    stream: str = DEFAULT_STREAM
    """Opened by its first event; the slowest open stream sets the watermark."""
    content_type: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What else the connector reports, such as headers."""

    def __post_init__(self) -> None:
        if (self.data is None) == (self.value is None):
            raise RequestError("an event needs either `data` or `value`", "Pass fields, or the bytes themselves.")


Given: TypeAlias = Event | Mapping[str, Any] | bytes | str

_OF_AN_EVENT = frozenset(one.name for one in fields(Event)) - {"data"}


def event_of(given: Given) -> Event:
    """Entries of a dict with the names of an event's own attributes are those, all others are the fields of its
    document. Raises RequestError.
    """
    match given:
        case Event():
            return given
        case bytes() | str():
            return Event(value=given)
        case Mapping():
            own = {name: value for name, value in given.items() if name in _OF_AN_EVENT}
            data = {name: value for name, value in given.items() if name not in _OF_AN_EVENT}
            if "value" in own and data:
                raise RequestError(
                    f"an event with a `value` has other fields: {', '.join(data)}",
                    "A document with a field of this name is Event(data={…}).",
                )
            return Event(**own) if "value" in own else Event(data=data, **own)
    raise RequestError(f"{given!r:.200} is not an event", "Pass a dict, bytes, text, or penstock.testing.Event.")


def time_us(given: Time) -> int:
    """In microseconds since 1970. Raises RequestError."""
    if isinstance(given, int | float):
        return round(given * 1_000_000)
    try:
        instant = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        raise RequestError(f"{given!r} is not a time", "Write it in ISO 8601: 2026-01-31T12:00:00Z.") from None
    return ((instant if instant.tzinfo else instant.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def datetime_of(time_us: int | None) -> datetime | None:
    return None if time_us is None else _EPOCH + timedelta(microseconds=time_us)


def bytes_of(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text


@dataclass(frozen=True, slots=True)
class StoredForm:
    """An event as a connector stores it."""

    stream: str
    value: bytes
    time_us: int
    key: bytes
    metadata: Mapping[str, Any]


def stored_form(event: Event, coding: Coding | None) -> StoredForm:
    """`coding`: of its input. Raises RequestError for data that the codec cannot write."""
    time = NO_TIME if event.event_time is None else time_us(event.event_time)
    metadata = {**event.metadata, **({} if event.content_type is None else {"content_type": event.content_type})}
    value = _encoded(event.data, _codec(event, coding), coding) if event.value is None else bytes_of(event.value)
    return StoredForm(event.stream, value, time, bytes_of(event.key), metadata)


def _codec(event: Event, coding: Coding | None) -> str:
    if coding is None:
        return "json"
    kind = (event.content_type or "").partition(";")[0].strip().lower()
    mapped = (codec for pattern, codec in coding.patterns() if pattern in (kind, f"{kind.partition('/')[0]}/*", "*/*"))
    codec = next(mapped, coding.codec)
    return "json" if codec in (None, AS_IT_IS) else codec


def _encoded(data: Mapping[str, Any] | None, codec: str, coding: Coding | None) -> bytes:
    match codec:
        case "json":
            return msgspec.json.encode(data)
        case "msgpack":
            return msgspec.msgpack.encode(data)
    import pyarrow as pa

    given = dict(data or {})
    names = [*given] if coding is None or coding.schema is None else [one.name for one in parse_ddl(coding.schema)]
    rows = pa.RecordBatch.from_pylist([{name: given.get(name) for name in names}])
    return bytes(codec_named(codec).encoder(rows.schema)(rows)[0].as_py())


def epochs_of(given: Mapping[str, Sequence[Any]]) -> list[dict[str, list[Event]]]:
    """The events of each epoch by input. An input is a list of events, which are one epoch, or a list of such lists.
    Raises RequestError.
    """
    by_input = {
        name: [[event_of(one) for one in epoch] for epoch in _nested(name, all_)] for name, all_ in given.items()
    }
    count = max((len(epochs) for epochs in by_input.values()), default=0)
    return [{name: epochs[n] for name, epochs in by_input.items() if n < len(epochs)} for n in range(count)]


def _nested(name: str, given: Sequence[Any]) -> Sequence[Sequence[Any]]:
    if isinstance(given, Mapping | str | bytes) or not isinstance(given, Sequence):
        raise RequestError(
            f"the events of {name!r} are {type(given).__name__}, not a list", f'{{"{name}": [event, …]}}'
        )
    lists = [isinstance(one, list | tuple) for one in given]
    if any(lists) and not all(lists):
        raise RequestError(
            f"{name!r} has events beside lists of events",
            "Pass a list of events, or a list of lists: one for each epoch.",
        )
    return given if any(lists) else [given]
