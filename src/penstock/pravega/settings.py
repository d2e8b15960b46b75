"""How the controller is reached, and its limits."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    host: str = "127.0.0.1"
    port: int = 0
    segment_host: str = "127.0.0.1"
    """Where clients reach the segment port: they learn it from the controller."""
    segment_port: int = 0
    """The same; 0: the one that the worker listens on."""
    certificate: Path | None = None
    """PEM files, if the port has TLS."""
    key: Path | None = None
    client_ca: Path | None = None

    token_seconds: int = 600
    """After this time a client asks for a new delegation token."""
    lease_ms_max: int = 24 * 3600 * 1000
    """How long a transaction may be open without a ping, whatever its writer asks for."""
    writer_seconds: float = 300.0
    """How long a writer that has noted a time may be silent before it holds back no watermark any more, in streams
    without a timeout of their own."""
    sweep_seconds: float = 1.0
    """Between two looks for transactions and writers that are gone."""
    page: int = 500
    """Names in one reply to a request for a list."""
    requests_max: int = 1000
    """Requests that are answered at the same time; others are refused, and clients repeat them."""
    connections_max: int = 1000
    """Each costs some 100 KB. A client has one; others are refused until one of these ends."""
    requests_per_connection_max: int = 100
    """At the same time; others wait."""
    idle_ms_max: int = 600_000
    """A connection without a request for this time is closed; clients connect again when they need one."""
    message_bytes_max: int = 4 << 20
    drain_seconds: float = 2.0
    """How long a stop waits for requests that are being answered."""
