"""`connector-protocol`: programs that speak the connector protocol, as artefacts of an application.

out    programs connect to the worker's connector port under this connector's name, as with `penstock send`
in     the worker connects to a program that takes events by two-phase commit, such as penstock.client.Sink
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlencode

from pydantic import Field, model_validator

from penstock.connectors.api import About, Capabilities, Connector, Options, Pause
from penstock.connectors.values import Size, SomeSeconds
from penstock.core.types import Guarantee
from penstock.protocol.connector import FRAME_SIZE_CEILING


class ConnectorProtocolOptions(Options):
    """Without a `port` there is only the port `out`."""

    host: str = "127.0.0.1"
    """Where the program listens that takes the events of `in`."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Its port."""
    instance: str = ""
    """The name under which the program knows this worker; by default `PIPELINE/SINK`."""
    cookie_file: Path | None = None
    """Its first line is the cookie that the program asks for. It is read at every connection."""
    tls: bool = False
    """Connect with TLS."""
    ca: Path | None = None
    """Authorities to trust, instead of the system's."""
    cert: Path | None = None
    """Our certificate, where the program asks for one."""
    key: Path | None = None
    """Of the certificate; may also be in its file."""
    server_name: str = ""
    """Whom the program's certificate must name, if not the host."""
    event_time_unit: Literal["s", "ms", "us"] = "ms"
    """In which event times are told to the program."""
    vote: SomeSeconds | None = None
    """How long the program may take to vote; by default 30s."""
    frame_size_max: Annotated[Size, Field(le=FRAME_SIZE_CEILING)] | None = None
    """The largest frame that the program takes."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.tls and (self.ca or self.cert or self.key or self.server_name):
            raise ValueError("ca, cert, key and server_name are for TLS: add tls: true, or leave them out")
        if self.key and not self.cert:
            raise ValueError("key: a key without a certificate, add cert")
        return self


class ConnectorProtocol(Connector[ConnectorProtocolOptions]):
    """The gateway's, and delivery's: this only gives them a name in an application."""

    about = About(
        "connector-protocol",
        "Programs that speak the connector protocol: with penstock.client, or in any language.",
        ConnectorProtocolOptions,
        Capabilities(
            source=Guarantee.EXACTLY_ONCE,
            sink=Guarantee.EXACTLY_ONCE,
            resumes=True,
            own_event_times=True,
            pauses=Pause.SESSION,
            on_stream_started="Opens every stream while the program can be reached.",
            interceptors=frozenset(),
        ),
        example={"host": "127.0.0.1", "port": 7200, "cookie_file": "/etc/penstock/cookie"},
    )

    @classmethod
    def capabilities(cls, options: ConnectorProtocolOptions) -> Capabilities:
        known = cls.about.capabilities
        return known if options.port is not None else replace(known, sink=None)

    @classmethod
    def sink_url(cls, options: ConnectorProtocolOptions, name: str) -> str | None:  # noqa: ARG003
        if options.port is None:
            return None
        host = f"[{options.host}]" if ":" in options.host else options.host
        query = urlencode(_query(options))
        return f"connector://{host}:{options.port}{'?' if query else ''}{query}"

    @classmethod
    def source_name(cls, options: ConnectorProtocolOptions, name: str) -> str | None:  # noqa: ARG003
        return name


_SAME_NAMES = ("instance", "cookie_file", "ca", "cert", "key", "server_name", "frame_size_max")


def _query(options: ConnectorProtocolOptions) -> dict[str, str]:
    """What differs from the defaults: the URL is the sink's identity, and stays short."""
    found = {name: str(value) for name in _SAME_NAMES if (value := getattr(options, name))}
    if options.tls:
        found["tls"] = "1"
    if options.event_time_unit != "ms":
        found["event_time_unit"] = options.event_time_unit
    if options.vote is not None:
        found["vote_seconds"] = f"{options.vote:g}"
    return found
