"""What the gateway has done since it started."""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class ConnectorCounters:
    """Of one connector."""

    messages: int = 0
    message_bytes: int = 0
    duplicates: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(slots=True)
class Counters:
    sessions_joined: int = 0
    sessions_refused: int = 0
    messages: int = 0
    message_bytes: int = 0
    duplicates: int = 0
    streams_opened: int = 0
    streams_refused: int = 0
    streams_ended: int = 0
    frames_sent: int = 0
    protocol_errors: int = 0
    errors_from_sources: int = 0
    closed_for_room: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
