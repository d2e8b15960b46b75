"""How a connector sink is reached, and what it is told of us."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from penstock.core.errors import RequestError
from penstock.protocol.connector import FRAME_SIZE_CEILING, FRAME_SIZE_MAX

EVENT_TIME_UNITS: Mapping[str, int] = MappingProxyType({"s": 1_000_000, "ms": 1000, "us": 1})
"""Microseconds in each unit in which event times can be told."""

VOTE_SECONDS = 30.0
"""From PHASE1 to the vote: a sink syncs its data meanwhile, on a disk that may be slow."""

VOTE_SECONDS_MAX = 86_400.0
"""A day: TCP's own limit for a silent peer, which follows it, has 31 bits of milliseconds."""

COOKIE_BYTES_MAX = 2**16 - 1
"""What fits into a HELLO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorOptions:
    """Files are read at every connection: a new cookie or certificate needs no restart."""

    host: str
    port: int
    program: str = "penstock"
    instance: str = ""
    """Instead of the default one."""
    cookie_file: Path | None = None
    """Its first line is the cookie; none without a file."""
    tls: bool = False
    ca: Path | None = None
    """Authorities to trust, instead of the system's."""
    cert: Path | None = None
    key: Path | None = None
    """Of the certificate; may also be in its file."""
    server_name: str = ""
    """Whom the sink's certificate must name, if not the host."""
    event_time_unit: Literal["s", "ms", "us"] = "ms"
    vote_seconds: float = VOTE_SECONDS
    frame_size_max: int = FRAME_SIZE_MAX
    """The largest frame that the sink takes: an epoch with a larger one is refused in its name."""

    def __post_init__(self) -> None:
        if not 0 < self.vote_seconds <= VOTE_SECONDS_MAX:
            raise RequestError(f"vote_seconds: {self.vote_seconds:g} is not above 0 and up to {VOTE_SECONDS_MAX:g}")
        if not 0 < self.frame_size_max <= FRAME_SIZE_CEILING:
            raise RequestError(f"frame_size_max: {self.frame_size_max} is not between 1 and {FRAME_SIZE_CEILING}")
        if not self.tls and (self.ca or self.cert or self.key or self.server_name):
            raise RequestError("ca, cert, key and server_name are for TLS", "Add tls=1, or leave them out.")
        if self.key and not self.cert:
            raise RequestError("key: a key without a certificate", "Add cert=FILE.")

    @property
    def where(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def read_cookie(options: ConnectorOptions) -> bytes:
    """OSError when the file cannot be read, RequestError when there is no cookie in it."""
    if options.cookie_file is None:
        return b""
    with options.cookie_file.open("rb") as file:
        cookie = file.readline(COOKIE_BYTES_MAX + 2).rstrip(b"\r\n")
    if not 0 < len(cookie) <= COOKIE_BYTES_MAX:
        raise RequestError(f"cookie_file: the first line of {options.cookie_file} is no cookie")
    return cookie


def tls_context(options: ConnectorOptions) -> ssl.SSLContext | None:
    """OSError, of which an SSLError is one, when a file is not there or not what it should be."""
    if not options.tls:
        return None
    context = ssl.create_default_context(cafile=options.ca)
    if options.cert is not None:
        # A password, so that nobody is asked for one at the worker's terminal: keys with one are refused.
        context.load_cert_chain(options.cert, options.key, password="")
    return context
