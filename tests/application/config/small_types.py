"""Some types for files in tests: the configuration has no other types than those passed to it."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, SecretStr, model_validator

from penstock.connectors.api import About, Capabilities, Options
from penstock.connectors.interceptors.api import AboutInterceptor
from penstock.connectors.values import Size, SomeSeconds
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee


class Tls(Options):
    certificate: Path
    """A file in PEM."""
    verify: bool = True


class Server(Options):
    host: str = "127.0.0.1"
    """Where it listens."""
    port: int = Field(ge=0, le=65535)
    """The port that it listens on."""
    tls: Tls | None = None
    timeout: SomeSeconds = 30.0
    password: SecretStr | None = None
    """What peers must know."""
    token: str = ""
    level: Literal["low", "high"] = "low"

    @model_validator(mode="after")
    def _check(self) -> "Server":
        if self.token == "bad" or len(self.token) > 20:
            raise ValueError(f"the token {self.token} is too weak")
        return self


class Clock(Options):
    interval: SomeSeconds = 1.0


class Nothing(Options):
    pass


class Archive(Options):
    path: Path
    mode: Literal["read", "write"] = "write"
    size: Size = 1 << 20


class Delimiter(Options):
    delimiter: str = "\n"


class Batches(Delimiter):
    max_elements: int = Field(default=1000, ge=1)
    max_wait_ms: int = 0


_TEXT = "One for tests."
_ONCE, _LEAST, _MOST = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE
CONNECTORS = {
    about.name: about
    for about in (
        About("ws-server", _TEXT, Server, Capabilities(source=_MOST, sink=_LEAST, is_linked=True)),
        About("tcp-server", _TEXT, Server, Capabilities(source=_MOST, sink=_LEAST, every_worker=True)),
        About("metronome", _TEXT, Clock, Capabilities(source=_LEAST, has_codec=False)),
        About("null", _TEXT, Nothing, Capabilities(sink=_ONCE, has_codec=False)),
        About("file", _TEXT, Archive, Capabilities(source=_ONCE, sink=_ONCE, resumes=True)),
        About("queue", _TEXT, Nothing, Capabilities(source=_ONCE, sink=_LEAST, interceptors=frozenset({"out"}))),
    )
}
INTERCEPTORS: dict[str, tuple[str, type[Options]]] = {"split": ("in", Delimiter), "join": ("out", Batches)}


class SmallTypes:
    def names(self) -> list[str]:
        return list(CONNECTORS)

    def about(self, name: str) -> About:
        return CONNECTORS[name]

    def capabilities(self, name: str, options: BaseModel) -> Capabilities:
        """A file is read or written, never both."""
        if isinstance(options, Archive):
            return Capabilities(source=_ONCE) if options.mode == "read" else Capabilities(sink=_ONCE)
        if isinstance(options, Clock) and options.interval > 3600:
            raise RequestError("this clock needs clockwork, which is not installed", "pip install clockwork")
        return CONNECTORS[name].capabilities

    def interceptors(self) -> list[str]:
        return list(INTERCEPTORS)

    def interceptor(self, name: str) -> AboutInterceptor:
        return AboutInterceptor(name, _TEXT, INTERCEPTORS[name][1])

    def directions(self, name: str, options: BaseModel) -> frozenset[str]:
        return frozenset({INTERCEPTORS[name][0]})

    def check_interceptor(self, name: str, options: BaseModel) -> None:
        """All of them work."""

    def check_codec(self, codec: str) -> None:
        """All of them work."""

    def codecs(self) -> tuple[str, ...]:
        return ("json", "string", "csv")

    def needs_schema(self, codec: str) -> bool:
        return codec == "csv"

    def codec_options(self, codec: str) -> type[BaseModel] | None:
        return Delimiter if codec == "csv" else None

    def timed_codecs(self) -> tuple[str, ...]:
        return ("json", "csv")
