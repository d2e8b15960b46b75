"""What the server has done since it started: plain numbers, read by /status and /metrics."""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    connections: int = 0
    connections_refused: int = 0
    protocol_errors: int = 0
    appends: int = 0
    appended_bytes: int = 0
    duplicates: int = 0
    refused: int = 0
    reads: int = 0
    read_bytes: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
