"""Sinks by their URLs: what a URL says, checked as far as it can be without the sink; and the sink itself."""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from penstock.connectors.sink_api import FollowingSink, VotingSink
from penstock.connectors.tables import SchemaOf, no_schema
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee
from penstock.delivery.urls.kinds import BY_SCHEME, Kind
from penstock.delivery.urls.options import Mistakes, build, nearest

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_PASSWORD_OPTIONS = frozenset({"password", "passwd", "pass", "pwd", "cookie", "token", "secret"})


@dataclass(frozen=True, slots=True)
class ParsedSink:
    """`options` is the dataclass of its kind. `shown` is the URL without what may be secret."""

    spec: Kind
    options: Any
    shown: str

    @property
    def kind(self) -> str:
        return self.spec.name

    @property
    def guarantee(self) -> Guarantee:
        guarantee: Guarantee = getattr(self.options, "guarantee", self.spec.guarantee)
        return guarantee

    @property
    def votes(self) -> bool:
        return self.spec.votes

    def check_installed(self) -> None:
        """Raises NotInstalled when something must be installed here to make it."""
        self.spec.check_installed()


def parse_sink(url: str) -> ParsedSink:
    """Raises RequestError with all that is wrong, NotInstalled if that cannot be seen here. Nothing is opened, and no
    path is looked at: relative ones begin where the worker was started.
    """
    kind = _kind(url)
    parts = _split(url)
    if parts.password is not None:
        raise RequestError(f"{named(url)}: a password in a URL is seen by everybody", kind.credentials)
    if parts.fragment:
        raise RequestError(f"{named(url)}: '#' begins what is not sent", "Write it as %23.")
    try:
        place = kind.place(parts)
        options = build(kind.options_type(), place.fields, place.given, kind.prefix)
    except Mistakes as mistakes:
        raise _told(url, kind, mistakes) from None
    except RequestError as error:
        raise type(error)(f"{named(url)}: {error}", error.hint) from None
    return ParsedSink(kind, options, place.shown or url)


def make_sink(parsed: ParsedSink, pipeline: str, name: str, schema: SchemaOf = no_schema) -> VotingSink | FollowingSink:
    """Not open yet. `schema` tells what the rows hold. Raises NotInstalled."""
    return parsed.spec.make(parsed.spec.sink_type(), parsed.options, f"{pipeline}/{name}", schema)


def named(url: str) -> str:
    """The URL for an error: without user and password, and without options, whose values may be one."""
    return re.sub(r"//.*@", "//…@", url.partition("?")[0])


def _kind(url: str) -> Kind:
    scheme = _SCHEME.match(url)
    if scheme is None or not url.isprintable() or url != url.strip():
        raise RequestError(
            f"{named(url)!r} is no URL of a sink", f"Write file:{url or 'PATH'}, or see: penstock sink kinds"
        )
    kind = BY_SCHEME.get(scheme[1].lower())
    if kind is None:
        raise RequestError(f"there is no kind of sink {scheme[1]!r}", nearest(scheme[1].lower(), BY_SCHEME))
    return kind


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise RequestError(f"{named(url)} is no URL: {error}", "See: penstock sink kinds") from None


def _told(url: str, kind: Kind, mistakes: Mistakes) -> RequestError:
    """All in one error, each hint once."""
    texts = "; ".join(map(str, mistakes.found))
    hints = dict.fromkeys(error.hint for error in mistakes.found if error.hint)
    if kind.credentials and any(f"{name!r}" in texts for name in _PASSWORD_OPTIONS):
        hints = {kind.credentials: None}
    return RequestError(f"{named(url)}: {texts}", " ".join(hints))
