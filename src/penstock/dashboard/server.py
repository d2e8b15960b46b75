"""Serves the dashboard: its pages, the login, and who may ask at all.

A page acts for the user who is logged in, so that no other web site may: requests and WebSockets with the Origin of
another site are refused, and so is a Host that is not this server's (DNS rebinding). The cookie only names a session,
and is sent to this site alone.
"""

import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI
from nicegui import app as pages
from nicegui import ui
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.core.address import Address, is_loopback
from penstock.core.errors import PenstockError, RequestError, Unauthenticated, Unavailable
from penstock.dashboard import deployed_pages, flow_pages, look_pages, pipeline_pages
from penstock.dashboard.frame import LOGIN, STYLE, Dashboard
from penstock.dashboard.session import Sessions

log = logging.getLogger(__name__)

PORT = 7180

_PROBLEMS = {
    "token": "The token is not valid.",
    "link": "This link was used before, is older than ten minutes, or is not ours. Log in with a token, or start the "
    "dashboard again.",
    "worker": "The worker cannot be reached at the moment. Try again.",
    "refused": "The worker has refused the login; the dashboard's log has the reason.",
}
"""By what the address of the login page may have: a link from elsewhere shows no other text there."""
_RECONNECT_SECONDS = 30.0
"""How long a page is kept for a browser that has lost the connection: a phone that sleeps, a text that is edited."""

_HEADERS = [
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
]


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    worker: str
    """Its HTTP address."""
    host: str = "127.0.0.1"
    port: int = PORT
    allow_hosts: tuple[str, ...] = ()
    """Other names under which browsers reach it."""
    tls_cert: str | None = None
    tls_key: str | None = None
    has_key: bool = False
    """The address that is printed has a key, which logs its first user in as the worker's owner."""
    find: Callable[[], str] | None = None
    """Looks for the worker's address again. Raises PenstockError."""
    folder: Path | None = None
    """Of the application's file, if it is known."""


class SameSite:
    """In front of everything."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        if self._is_ours(host) and (not origin or urlsplit(origin).netloc.lower() == host.lower()):
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 4403})
        else:
            text = "The dashboard is not served under this name. Start it with --allow-host NAME.\n"
            await PlainTextResponse(text, 403)(scope, receive, send)

    def _is_ours(self, host: str) -> bool:
        try:
            name = Address.parse(host).host.lower()
        except RequestError:
            return False
        return is_loopback(name) or name in self._names


def _with_headers(send: Send) -> Send:
    async def sent(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *_HEADERS]}  # type: ignore[misc]
        await send(message)

    return sent  # type: ignore[return-value]


def make_app(settings: DashboardSettings, sessions: Sessions) -> ASGIApp:
    """The whole site."""
    api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_login(sessions)
    _add_pages(sessions, settings.folder)
    ui.run_with(
        api,
        title="Penstock",
        dark=None,
        storage_secret=secrets.token_urlsafe(32),
        session_middleware_kwargs={
            "session_cookie": f"penstock-dashboard-{secrets.token_hex(4)}",  # others of this machine have their own
            "same_site": "strict",
            "https_only": settings.tls_cert is not None,
        },
        show_welcome_message=False,
        reconnect_timeout=_RECONNECT_SECONDS,
    )
    return SameSite(api, [settings.host, *settings.allow_hosts])


def _add_pages(sessions: Sessions, folder: Path | None) -> None:
    board = Dashboard(sessions)

    @ui.page("/")
    async def overview() -> None:
        await board.show("Overview", flow_pages.overview)

    @ui.page("/source")
    async def source(name: str = "") -> None:
        await board.show("Source", lambda session: flow_pages.source(session, name))

    @ui.page("/pipeline")
    async def pipeline(name: str = "") -> None:
        await board.show("Pipeline", lambda session: pipeline_pages.pipeline(session, name))

    @ui.page("/sink")
    async def sink(pipeline: str = "", name: str = "") -> None:
        await board.show("Sink", lambda session: pipeline_pages.sink(session, pipeline, name))

    @ui.page("/dead-letters")
    async def dead_letters(name: str = "", kind: str = "pipeline") -> None:
        await board.show("Dead letters", lambda session: look_pages.dead_letters(session, name, kind))

    @ui.page("/segments")
    async def segments(name: str = "", prefix: str = "") -> None:
        await board.show("Segments", lambda session: look_pages.segments(session, name, prefix))

    @ui.page("/cluster")
    async def cluster() -> None:
        await board.show("Cluster", deployed_pages.cluster)

    @ui.page("/settings")
    async def settings() -> None:
        await board.show("Settings", lambda session: deployed_pages.settings(session, folder))

    @ui.page("/login", title="Log in · Penstock")
    async def login(problem: str = "") -> None:
        _show_login(sessions.worker.text, _PROBLEMS.get(problem, ""))


def _show_login(worker: str, problem: str) -> None:
    ui.colors(primary="#0f4c81")
    ui.add_css(STYLE)
    with ui.card().classes("absolute-center w-80"), ui.element("form").props("method=post action=/token"):
        ui.label("Penstock").classes("text-xl font-bold")
        ui.label(f"Worker {worker}").classes("quiet")
        ui.input("Token", password=True).classes("w-full").props("autofocus name=token autocomplete=off")
        ui.label(problem).classes("trouble-text")
        ui.button("Log in").props("no-caps type=submit").classes("w-full my-3")
        ui.label("The owner's token is in the file \"token\" in the worker's data directory.").classes("text-xs quiet")
        ui.label("Tokens for others: penstock access add").classes("text-xs quiet")


def _add_login(sessions: Sessions) -> None:
    """Plain requests: a login gets a new id in the cookie, which a page that is open cannot set."""

    async def enter(request: Request, entering: Awaitable[str], by: str) -> Response:
        try:
            request.session[LOGIN] = await entering
        except Unauthenticated:
            return _again(by)
        except Unavailable:
            return _again("worker")
        except PenstockError as error:
            log.warning("a login was refused: %s", error)
            return _again("refused")
        return RedirectResponse("/", 303)

    @pages.post("/token")
    async def by_token(request: Request) -> Response:
        async with request.form(max_files=0, max_fields=10) as form:
            token = str(form.get("token", "")).strip()
        return await enter(request, sessions.enter(token), "token")

    @pages.get("/enter")
    async def by_key(request: Request, key: str = "") -> Response:
        return await enter(request, sessions.enter_by_key(key), "link")


def _again(problem: str) -> Response:
    return RedirectResponse(f"/login?problem={problem}", 303)


def serve(settings: DashboardSettings, ready: Callable[[str], None]) -> None:
    """Until SIGINT or SIGTERM. `ready` gets the address for a browser."""
    sessions = Sessions(settings.worker, settings.find)
    config = uvicorn.Config(
        make_app(settings, sessions),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config, lambda port: ready(_url(settings, port, sessions)))
    server.run()


def _url(settings: DashboardSettings, port: int, sessions: Sessions) -> str:
    scheme = "https" if settings.tls_cert else "http"
    entry = f"enter?key={sessions.one_time_key()}" if settings.has_key else ""
    return f"{scheme}://{Address(settings.host, port)}/{entry}"


class _Server(uvicorn.Server):
    """Says when it listens, and where: port 0 picks a free one."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[int], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready(self.servers[0].sockets[0].getsockname()[1])
