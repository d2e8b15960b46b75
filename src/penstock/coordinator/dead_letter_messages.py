"""What clients are told about letters. Plain values, as JSON has them."""

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from penstock.protocol.stored.dead_letters import Letter


@dataclass(frozen=True, slots=True)
class LetterPort:
    """The letters of one port, by places in its output segment."""

    port: str
    start: int
    """Where those begin that are still there."""
    replayed: int
    """Up to here they were sent through again."""
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterInfo:
    """One letter. Times are in microseconds; None is what is not known."""

    port: str
    at: int
    """Where it begins in its port's output segment: its name."""
    end: int
    reason: str
    replayed: bool
    size: int
    """Bytes of its value."""
    source: str
    stream: str
    stream_id: int
    message_id: int
    event_time: int | None
    segment: str | None
    """Where its event was read."""
    offset: int | None
    watermark: int | None
    """The one that it missed."""
    behind_us: int | None
    key: bytes
    value: bytes | None = None
    """None in a list."""

    @classmethod
    def of(cls, port: str, letter: Letter, *, replayed: bool, with_value: bool = False) -> Self:
        event = letter.event
        return cls(
            port=port,
            at=letter.start,
            end=letter.end,
            reason=letter.reason,
            replayed=replayed,
            size=len(event.payload),
            source=str(event.metadata.get("source") or ""),
            stream=str(event.metadata.get("stream") or ""),
            stream_id=event.stream_id,
            message_id=event.event_id,
            event_time=event.event_time,
            segment=letter.segment,
            offset=letter.offset,
            watermark=letter.watermark,
            behind_us=letter.behind_us,
            key=event.key,
            value=event.payload if with_value else None,
        )

    def as_json(self) -> dict[str, Any]:
        """Bytes in base64."""
        packed = {"key": _packed(self.key), "value": None if self.value is None else _packed(self.value)}
        return asdict(self) | packed

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """What a newer worker tells besides is passed over."""
        told = {field.name: data[field.name] for field in fields(cls)}
        value = told["value"]
        packed = {
            "key": base64.b64decode(told["key"]),
            "value": None if value is None else base64.b64decode(value),
        }
        return cls(**told | packed)


@dataclass(frozen=True, slots=True)
class LetterList:
    ports: Sequence[LetterPort]
    letters: Sequence[LetterInfo]

    def as_json(self) -> dict[str, Any]:
        return {"ports": [asdict(port) for port in self.ports], "letters": [one.as_json() for one in self.letters]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls([LetterPort(**port) for port in data["ports"]], [*map(LetterInfo.from_json, data["letters"])])


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many letters were sent through again, and how many were not, for no input reads what they came from."""

    count: int
    left_out: int


def _packed(data: bytes) -> str:
    return base64.b64encode(data).decode()
