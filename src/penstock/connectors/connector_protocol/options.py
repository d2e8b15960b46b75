"""The options of `connector-protocol`, and the files that they name."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from penstock.connectors.api import Options
from penstock.connectors.sockets import HostName
from penstock.connectors.values import Size, SomeSeconds
from penstock.core.errors import RequestError
from penstock.protocol.connector import FRAME_SIZE_CEILING, FRAME_SIZE_MAX

EVENT_TIME_UNITS: Mapping[str, int] = MappingProxyType({"s": 1_000_000, "ms": 1000, "us": 1})
"""Microseconds in each unit of event times."""

VOTE_SECONDS = 30.0
"""From PHASE1 to the vote: meanwhile the sink syncs its data, perhaps on a slow disk."""

VOTE_SECONDS_MAX = 86_400.0
"""A day: TCP's own limit for a silent peer, which is derived from it, has 31 bits of milliseconds."""

COOKIE_BYTES_MAX = 2**16 - 1
"""The longest text that fits into a HELLO."""


class ConnectorProtocolOptions(Options):
    """Programs connect to the worker's connector port under this connector's name and send events: the port `out`. With
    a `port`, the worker also connects to a program that listens there, and delivers epochs to it: the port `in`. The
    files are read at every connection, so a new cookie or certificate needs no restart.
    """

    host: HostName = "127.0.0.1"
    """Where the program for the port `in` listens."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Its port. Without it, the connector has no port `in`."""
    program: str = "penstock"
    """The program's name in the worker's HELLO."""
    instance: str = ""
    """The name of the instance in that HELLO; `PIPELINE@SINK` by default."""
    cookie_file: Path | None = None
    """A file whose first line is the cookie that the program expects."""
    tls: bool = False
    """Connect with TLS."""
    ca: Path | None = None
    """Authorities to trust, instead of the system's."""
    cert: Path | None = None
    """The worker's certificate, where the program asks for one."""
    key: Path | None = None
    """The key of the certificate, if it is not in the same file."""
    server_name: str = ""
    """The name in the program's certificate, if it is not the host."""
    event_time_unit: Literal["s", "ms", "us"] = "ms"
    """The unit of the event times that the program receives."""
    vote: Annotated[SomeSeconds, Field(le=VOTE_SECONDS_MAX)] = VOTE_SECONDS
    """How long the program may take to vote."""
    frame_size_max: Annotated[Size, Field(le=FRAME_SIZE_CEILING)] = FRAME_SIZE_MAX
    """The largest frame that the program accepts. An epoch with a larger one is refused."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.tls and (self.ca or self.cert or self.key or self.server_name):
            raise ValueError("ca, cert, key and server_name are for TLS: set tls, or leave them out")
        if self.key and not self.cert:
            raise ValueError("there is a key without a certificate: set cert")
        return self

    @property
    def where(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def read_cookie(options: ConnectorProtocolOptions) -> bytes:
    """Raises OSError when the file cannot be read, RequestError when it does not contain a valid cookie."""
    if options.cookie_file is None:
        return b""
    with options.cookie_file.open("rb") as file:
        cookie = file.readline(COOKIE_BYTES_MAX + 2).rstrip(b"\r\n")
    if not 0 < len(cookie) <= COOKIE_BYTES_MAX:
        raise RequestError(f"cookie_file: the first line of {options.cookie_file} is not a valid cookie")
    return cookie


def tls_context(options: ConnectorProtocolOptions) -> ssl.SSLContext | None:
    """Raises OSError, which includes SSLError, when a file is missing or invalid."""
    if not options.tls:
        return None
    context = ssl.create_default_context(cafile=options.ca)
    if options.cert is not None:
        # An empty password, so that OpenSSL does not ask for one at the worker's terminal: keys with a password are
        # refused.
        context.load_cert_chain(options.cert, options.key, password="")
    return context
