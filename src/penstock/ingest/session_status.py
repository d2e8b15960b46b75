"""What /status shows of a session."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """Before its HELLO there is not much."""

    peer: str
    program: str
    connector: str | None
    state: str
    streams: int = 0
    credits: int = 0
    in_flight_bytes: int = 0
    ack_lag_seconds: float = 0.0
