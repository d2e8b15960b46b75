"""What stands between a sink URL's scheme and its options, read as its kind needs it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode

from penstock.core.errors import RequestError

HTTP_PREFIX = "penstock_"
"""Of our options in an HTTP sink's query: the others are the server's."""

_HIDDEN = "…"


class Place(NamedTuple):
    fields: Mapping[str, Any]
    """Of the options' dataclass."""
    given: list[tuple[str, str]]
    """The options of the query."""
    shown: str | None = None
    """The URL without what may be secret; None: there is nothing of that in it."""


def _given(parts: SplitResult) -> list[tuple[str, str]]:
    return parse_qsl(parts.query, keep_blank_values=True)


def nowhere(parts: SplitResult) -> Place:
    if parts.netloc or parts.path:
        raise RequestError(f"{parts.path or parts.netloc!r} means nothing here", f"Write {parts.scheme}: alone.")
    return Place({}, _given(parts))


def path(parts: SplitResult) -> Place:
    if parts.netloc:
        raise RequestError(
            f"{parts.netloc!r} stands where a host would",
            f"Write {parts.scheme}:{parts.netloc}{parts.path}, or {parts.scheme}:/{parts.netloc}{parts.path}.",
        )
    if not parts.path:
        raise RequestError("the path is missing", f"Write {parts.scheme}:PATH.")
    return Place({"path": Path(unquote(parts.path))}, _given(parts))


def name(parts: SplitResult) -> Place:
    if parts.netloc or not parts.path or "/" in unquote(parts.path):
        raise RequestError("a name is wanted", f"Write {parts.scheme}:NAME.")
    return Place({"name": unquote(parts.path)}, _given(parts))


def address(parts: SplitResult) -> Place:
    host, port = _host(parts), _port(parts)
    if port is None:
        raise RequestError("the port is missing", f"Write {parts.scheme}://{host}:PORT.")
    if parts.path not in ("", "/"):
        raise RequestError(f"{parts.path!r} means nothing here", f"Write {parts.scheme}://{host}:{port}?OPTIONS.")
    return Place({"host": host, "port": port}, _given(parts))


def function(parts: SplitResult) -> Place:
    file, _, name = unquote(parts.path).rpartition(":")
    if parts.netloc or not file.endswith(".py") or not name.isidentifier():
        raise RequestError("a function of a file is wanted", f"Write {parts.scheme}:PATH.py:FUNCTION.")
    return Place({"path": Path(file), "function": name}, _given(parts))


def endpoint(parts: SplitResult) -> Place:
    """All but our own options of the query are sent; their values may be tokens, and are not shown."""
    secure = parts.scheme == "https"
    ours = [(name, value) for name, value in _given(parts) if name.startswith(HTTP_PREFIX)]
    theirs = [(name, value) for name, value in _given(parts) if not name.startswith(HTTP_PREFIX)]
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    fields = {
        "secure": secure,
        "host": _host(parts),
        "port": _port(parts) or (443 if secure else 80),
        "path": f"{target}?{urlencode(theirs)}" if theirs else target,
    }
    query = "&".join([*(f"{quote(name)}={_HIDDEN}" for name, _ in theirs), *([urlencode(ours)] if ours else [])])
    return Place(fields, ours, parts._replace(query=query).geturl())


def _host(parts: SplitResult) -> str:
    if parts.username is not None:
        raise RequestError("a user means nothing here", f"Write {parts.scheme}://HOST…")
    if not parts.hostname:
        raise RequestError("the host is missing", f"Write {parts.scheme}://HOST…")
    return parts.hostname


def _port(parts: SplitResult) -> int | None:
    """Raises RequestError for what is no port."""
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise RequestError("what follows the host is no port", "Give a number from 1 to 65535.")
    return port


DATABASE_FIELDS = ("user", "host", "port", "dbname")


def database(parts: SplitResult) -> Place:
    """What is left out is libpq's to find: in its environment, or a service file."""
    name = unquote(parts.path.removeprefix("/"))
    if "/" in name:
        raise RequestError("the name of a database has no slash", f"Write {parts.scheme}://USER@HOST:PORT/DATABASE.")
    fields = {
        "user": unquote(parts.username or ""),
        "host": parts.hostname or "",
        "port": _port(parts),
        "dbname": name,
    }
    return Place(fields, _given(parts))
