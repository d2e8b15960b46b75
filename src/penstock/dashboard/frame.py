"""What all pages have in common: the login, the header with its links and keys, and fresh data while a page is open."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from nicegui import app, ui
from nicegui.events import KeyEventArguments

from penstock.core.errors import PenstockError
from penstock.dashboard.session import Session, Sessions

REFRESH_SECONDS = 2.0

LOGIN = "login"
"""The key of the session's id in the signed cookie."""

PAGES = (
    ("/", "Overview", "o"),
    ("/dead-letters", "Dead letters", "d"),
    ("/segments", "Segments", "s"),
    ("/cluster", "Cluster", "c"),
    ("/settings", "Settings", "e"),
)
"""Path, title, and the key that opens it."""

_STYLE = """
:root {
  --penstock-line: #64748b; --penstock-trouble: #c81e1e; --penstock-box: #f8fafc; --penstock-text: #0f172a;
  --penstock-page: #fff;
}
.body--dark {
  --penstock-line: #94a3b8; --penstock-trouble: #f87171; --penstock-box: #1e293b; --penstock-text: #e2e8f0;
  --penstock-page: #121212;
}
.flow { max-width: none; }
.flow rect { fill: var(--penstock-box); stroke: var(--penstock-line); stroke-width: 1.5; }
.flow .box:hover rect, .flow .box:focus rect { stroke-width: 3; }
.flow text { fill: var(--penstock-text); font: 13px system-ui, sans-serif; }
.flow .title { font-weight: 600; font-size: 14px; }
.flow .label {
  font-size: 11px; text-anchor: middle; fill: var(--penstock-line);
  paint-order: stroke; stroke: var(--penstock-page); stroke-width: 5px;
}
.flow .line { fill: none; stroke: var(--penstock-line); stroke-width: 1.5; }
.flow .trouble rect, .flow .line.trouble { stroke: var(--penstock-trouble); stroke-width: 3; stroke-dasharray: 7 4; }
.trouble-text { color: var(--penstock-trouble); }
pre.bytes { overflow-x: auto; font-size: 12px; }
.nicegui-content { padding: 12px; }
"""

_KEYS_HELP = "Keys: " + ", ".join(f"{key} {title.lower()}" for _, title, key in PAGES) + ", t light or dark"


class Dashboard:
    """The pages of one worker. `sessions` knows who is logged in."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    def session(self) -> Session | None:
        """Of the browser that asks for a page."""
        return self.sessions.of(app.storage.browser.get(LOGIN))

    async def show(self, title: str, build: Callable[[Session], Awaitable[None]]) -> None:
        """A page for a user who is logged in; others are asked to log in first."""
        session = self.session()
        if session is None:
            ui.navigate.to("/login")
            return
        ui.page_title(f"{title} · Penstock")
        self._header(session, title)
        with ui.column().classes("w-full gap-4"):
            try:
                await build(session)
            except PenstockError as error:
                complain(error)
            who = f"{session.principal.name}: {session.principal.role}"
            ui.label(f"{who} · {_KEYS_HELP}").classes("text-xs text-gray-500")

    def _header(self, session: Session, title: str) -> None:
        ui.add_css(_STYLE)
        ui.colors(primary="#0f4c81")
        dark = ui.dark_mode(session.is_dark)
        with ui.header().classes("items-center gap-1 py-1 px-3"):
            ui.label("Penstock").classes("text-lg font-bold mr-3")
            with ui.row().classes("gap-1 gt-sm"):
                for path, name, _ in PAGES:
                    link = ui.button(name, on_click=lambda path=path: ui.navigate.to(path))
                    link.props("flat dense no-caps" + (" aria-current=page" if name == title else ""))
                    link.classes("text-white" + (" underline" if name == title else ""))
            ui.space()
            with ui.button(icon="menu").props("flat dense aria-label=Menu").classes("text-white"), ui.menu():
                for path, name, _ in PAGES:
                    ui.menu_item(name, lambda path=path: ui.navigate.to(path))
                ui.separator()
                ui.menu_item("Light or dark", lambda: _switch(session, dark))
                ui.menu_item(f"Log out {session.principal.name}", self._log_out)
        # The editor of the settings is a div.
        ignored: list[Any] = ["input", "select", "button", "textarea", "div"]
        ui.keyboard(on_key=lambda event: _follow_key(event, session, dark), ignore=ignored)

    def _log_out(self) -> None:
        self.sessions.leave(app.storage.browser.get(LOGIN, ""))
        ui.navigate.to("/login")


def _switch(session: Session, dark: ui.dark_mode) -> None:
    """From what the browser prefers, to dark first."""
    session.is_dark = dark.value = not dark.value


def _follow_key(event: KeyEventArguments, session: Session, dark: ui.dark_mode) -> None:
    if not event.action.keydown or event.action.repeat or event.modifiers:
        return
    if event.key == "t":
        _switch(session, dark)
    for path, _, key in PAGES:
        if event.key == key:
            ui.navigate.to(path)


async def live(update: Callable[[], Awaitable[None]]) -> None:
    """Calls it now and every two seconds while the page is open. While the worker does not answer, the page says so and
    keeps what it has.
    """
    problem = ui.label().classes("trouble-text")
    problem.set_visibility(False)

    async def refresh() -> None:
        try:
            await update()
        except PenstockError as error:
            problem.text = f"⚠ {error}"
            problem.set_visibility(True)
        else:
            problem.set_visibility(False)

    await refresh()
    ui.timer(REFRESH_SECONDS, refresh, immediate=False)


def complain(error: PenstockError) -> None:
    with ui.card().classes("w-full"):
        ui.label(f"⚠ {error}").classes("trouble-text font-bold")
        if error.hint:
            ui.label(error.hint)


def told(error: PenstockError) -> None:
    """For something that the user has asked for."""
    ui.notify(f"{error} {error.hint or ''}", type="negative", multi_line=True, timeout=10_000, close_button=True)


async def confirmed(question: str, action: str) -> bool:
    with ui.dialog() as dialog, ui.card():
        ui.label(question)
        with ui.row().classes("justify-end w-full"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat no-caps")
            ui.button(action, on_click=lambda: dialog.submit(True)).props("no-caps")
    return bool(await dialog)


def facts(pairs: Sequence[tuple[str, object]]) -> None:
    """Names and values, in two columns."""
    with ui.element("dl").classes("grid grid-cols-[max-content_1fr] gap-x-4 gap-y-1 text-sm w-full"):
        for name, value in pairs:
            with ui.element("dt").classes("text-gray-500"):
                ui.label(name)
            with ui.element("dd").classes("break-words"):
                ui.label(str(value))


def table(
    columns: Sequence[tuple[str, str]],
    key: str,
    on_row: Callable[[Mapping[str, Any]], Awaitable[None]] | None = None,
    *,
    pagination: int | None = None,
) -> ui.table:
    """Columns are fields and titles; a title that ends with `#` is of numbers. `on_row`: for a row that is clicked."""
    shown = [
        {
            "name": name,
            "label": title.rstrip("#"),
            "field": name,
            "align": "right" if title.endswith("#") else "left",
            "sortable": True,
        }
        for name, title in columns
    ]
    found = ui.table(columns=shown, rows=[], row_key=key, pagination=pagination)
    found.add_slot("no-data", '<span class="text-grey">none</span>')
    if on_row is not None:
        found.on("rowClick", lambda event: on_row(event.args[1]))
        found.classes("cursor-pointer")
    return found.classes("w-full").props("dense flat bordered wrap-cells")


def fill(found: ui.table, rows: list[dict[str, Any]]) -> None:
    if found.rows != rows:
        found.rows = rows
        found.update()
