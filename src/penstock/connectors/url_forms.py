"""How the URL of a sink spells a connector's options: which options are in its path, and which it implies.

    file:results?format=raw                    path=results, format=raw, mode=write (implied)
    postgresql://me@db:5432/shop?table=t       user, host, port and dbname from the place, table from the query

A type declares its form in its `About`. Without one, all options are in the query: `my-type:?a=1&b=2`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode

from penstock.core.errors import RequestError

PREFIX = "penstock_"
"""The prefix of our options in the query of an HTTP or WebSocket URL: all others belong to the server."""

_HIDDEN = "…"


class Place(NamedTuple):
    """The contents of a URL."""

    fields: Mapping[str, Any]
    """Options from the part before the query."""
    query: list[tuple[str, str]]
    """Our options from the query."""
    shown: str | None = None
    """The URL without possible secrets; None: it has none."""


def no_place(parts: SplitResult) -> Place:
    """`stdout:`, `null:`"""
    if parts.netloc or parts.path:
        raise RequestError(f"{parts.path or parts.netloc!r} is not expected here", f"Write {parts.scheme}:?OPTIONS.")
    return Place({}, _query(parts))


def path(parts: SplitResult) -> Place:
    """`file:PATH`"""
    if parts.netloc:
        raise RequestError(
            f"{parts.netloc!r} is read as a host, and there is none in this URL",
            f"Write {parts.scheme}:{parts.netloc}{parts.path}, or {parts.scheme}:/{parts.netloc}{parts.path}.",
        )
    if not parts.path:
        raise RequestError("the path is missing", f"Write {parts.scheme}:PATH.")
    return Place({"path": unquote(parts.path)}, _query(parts))


def segment(parts: SplitResult) -> Place:
    """`segment:NAME`"""
    if parts.netloc or not parts.path:
        raise RequestError("the name of the segment is missing", f"Write {parts.scheme}:NAME.")
    return Place({"segment": unquote(parts.path)}, _query(parts))


def address(parts: SplitResult) -> Place:
    """`connector://HOST:PORT`"""
    host, port = _host(parts), _port(parts)
    if port is None:
        raise RequestError("the port is missing", f"Write {parts.scheme}://{host}:PORT.")
    if parts.path not in ("", "/"):
        raise RequestError(f"{parts.path!r} is not expected here", f"Write {parts.scheme}://{host}:{port}?OPTIONS.")
    return Place({"host": host, "port": port}, _query(parts))


def topic(parts: SplitResult) -> Place:
    """`kafka://HOST:PORT,HOST:PORT/TOPIC`"""
    brokers, name = [one for one in parts.netloc.split(",") if one], unquote(parts.path.removeprefix("/"))
    if "@" in parts.netloc or not brokers or not name or "/" in name:
        raise RequestError("this does not name brokers and a topic", f"Write {parts.scheme}://HOST:PORT/TOPIC.")
    return Place({"brokers": brokers, "topic": name}, _query(parts))


def redis_stream(parts: SplitResult) -> Place:
    """`redis://HOST:PORT/STREAM`"""
    found = {"host": _host(parts), "port": _port(parts), "stream": unquote(parts.path.removeprefix("/"))}
    if not found["stream"]:
        raise RequestError("the key of the stream is missing", f"Write {parts.scheme}://HOST:PORT/STREAM.")
    return Place({key: value for key, value in found.items() if value is not None}, _query(parts))


def function(parts: SplitResult) -> Place:
    """`callback:PATH.py:FUNCTION`"""
    file, _, name = unquote(parts.path).rpartition(":")
    if parts.netloc or not file.endswith(".py") or not name.isidentifier():
        raise RequestError("this does not name a function in a file", f"Write {parts.scheme}:PATH.py:FUNCTION.")
    return Place({"path": file, "function": name}, _query(parts))


def endpoint(parts: SplitResult) -> Place:
    """`https://HOST/PATH?THEIRS&penstock_OURS`: the server's own options may be tokens, and are not shown."""
    _host(parts)
    _port(parts)
    query = _query(parts)
    ours = [(name.removeprefix(PREFIX), value) for name, value in query if name.startswith(PREFIX)]
    theirs = [(name, value) for name, value in query if not name.startswith(PREFIX)]
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    url = parts._replace(path=target, query=urlencode(theirs)).geturl()
    hidden = [f"{quote(name)}={_HIDDEN}" for name, _ in theirs]
    shown = [urlencode([(name, value)]) for name, value in query if name.startswith(PREFIX)]
    return Place({"url": url}, ours, parts._replace(query="&".join([*hidden, *shown])).geturl())


def database(parts: SplitResult) -> Place:
    """`postgresql://USER@HOST:PORT/DATABASE`: libpq takes what is left out from its environment or a service file."""
    name = unquote(parts.path.removeprefix("/"))
    if "/" in name:
        raise RequestError(
            "the name of a database cannot contain a slash", f"Write {parts.scheme}://USER@HOST:PORT/DATABASE."
        )
    found = {"user": unquote(parts.username or ""), "host": parts.hostname or "", "port": _port(parts), "dbname": name}
    return Place({key: value for key, value in found.items() if value}, _query(parts))


class AtServer(NamedTuple):
    """Something that a server has, such as a topic."""

    host: str
    port: int
    name: str
    query: list[tuple[str, str]]


def at_server(parts: SplitResult, port: int, what: str) -> AtServer:
    """`mqtt://HOST[:PORT]/NAME`: the default port, and what the name is of, for people."""
    host, name = _host(parts), unquote(parts.path.removeprefix("/"))
    if not name:
        raise RequestError(f"the {what} is missing", f"Write {parts.scheme}://{host}/{what.upper()}?OPTIONS.")
    return AtServer(host, _port(parts) or port, name, _query(parts))


def _query(parts: SplitResult) -> list[tuple[str, str]]:
    return parse_qsl(parts.query, keep_blank_values=True)


def _host(parts: SplitResult) -> str:
    if parts.username is not None:
        raise RequestError("a user is not allowed in this URL", f"Write {parts.scheme}://HOST…")
    if not parts.hostname:
        raise RequestError("the host is missing", f"Write {parts.scheme}://HOST…")
    return parts.hostname


def _port(parts: SplitResult) -> int | None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise RequestError("this is not a valid port", "Write a number from 1 to 65535.")
    return port


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlForm:
    """The URL form of a type's `in` port."""

    written: str = ""
    """The URL without its query, as people write it; "" for `TYPE:`."""
    place: Callable[[SplitResult], Place] = no_place
    """Parses the part before the query. Raises RequestError."""
    fields: tuple[str, ...] = ()
    """The options that `place` sets: they are not allowed in the query."""
    implied: Mapping[str, Any] = field(default_factory=dict)
    """Options that a URL has unless its query sets them, if the default differs from a connector in YAML."""
    prefix: str = ""
    """The prefix of our options in the query."""
    credentials: str = ""
    """Where to put a password."""
