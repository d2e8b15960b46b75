"""HTTP requests about a thing that another process serves are answered with 307 and that process's address."""

from http import HTTPStatus
from urllib.parse import unquote

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.access.principals import Principal, Role
from penstock.cluster.places import APPLICATION, Kind, Thing
from penstock.core.errors import PenstockError, Unavailable
from penstock.protocol.stored.names import DEAD_LETTERS_SUFFIX, partition_of
from penstock.worker.directory import HTTP, Directory
from penstock.worker.routes import PRINCIPAL, failure

_OF_APPLICATION = ("application", "drain", "pause", "resume")
_WITHOUT_NAME = ("resolve", "cut")
"""Below /sources: they name their sources in the body."""

_NAME_CHARS_MAX = 300
"""A longer name is not one of a thing: it gets no place."""


def thing_in(path: str) -> Thing | None:
    """The thing that a request's path names; None if it names none."""
    first, _, rest = path.strip("/").partition("/")
    name = unquote(rest.partition("/")[0])
    if first in _OF_APPLICATION:
        return APPLICATION
    if not name or len(name) > _NAME_CHARS_MAX:
        return None
    if first == "pipelines":
        return Thing(Kind.PIPELINE, name)
    if first == "sources" and name not in _WITHOUT_NAME:
        return Thing(Kind.SOURCE, *partition_of(name.removesuffix(DEAD_LETTERS_SUFFIX)))
    return None


def redirect(directory: Directory, address: str, scope: Scope) -> Response:
    query = scope.get("query_string", b"").decode("ascii", "replace")
    path = scope.get("raw_path", scope["path"].encode()).decode("ascii", "replace")
    location = f"{directory.url(address)}{path}{'?' + query if query else ''}"
    return Response(status_code=HTTPStatus.TEMPORARY_REDIRECT, headers={"Location": location})


def nobody_serves(shard: int) -> Unavailable:
    return Unavailable(f"no worker serves shard {shard} now", "Try again in some seconds; see penstock cluster status.")


class HttpRedirects:
    """Behind access control. A thing that is written to gets its place, if whoever writes may do so; reading places
    nothing.
    """

    def __init__(self, app: ASGIApp, directory: Directory) -> None:
        self._app = app
        self._directory = directory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        thing = thing_in(scope["path"])
        response: Response | None = None
        if thing is not None:
            try:
                response = await self._elsewhere(thing, scope)
            except PenstockError as error:
                response = failure(error, scope)
        await (self._app if response is None else response)(scope, receive, send)

    async def _elsewhere(self, thing: Thing, scope: Scope) -> Response | None:
        directory, principal = self._directory, scope[PRINCIPAL]
        assert isinstance(principal, Principal)
        name = "" if thing.kind is Kind.APPLICATION else thing.name
        is_placed = scope["method"] != "GET" and principal.may(Role.WRITE, name)
        shard = await (directory.place(thing) if is_placed else directory.likely(thing))
        if directory.is_own(shard):
            return None
        found = await directory.addresses(shard)
        if found is None or HTTP not in found:
            return failure(nobody_serves(shard), scope)
        return redirect(directory, found[HTTP], scope)
