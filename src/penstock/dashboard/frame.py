"""What all pages have in common: the login, the header with its links and keys, and fresh data while a page is open."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

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

STYLE = """
:root {
  --penstock-line: #64748b; --penstock-trouble: #c81e1e; --penstock-box: #f8fafc; --penstock-text: #0f172a;
  --penstock-page: #fff; --penstock-quiet: #566070; --penstock-focus: #d97706; --penstock-ground: #fdf1f1;
}
.body--dark {
  --penstock-line: #94a3b8; --penstock-trouble: #f98080; --penstock-box: #1e293b; --penstock-text: #e2e8f0;
  --penstock-page: #121212; --penstock-quiet: #a3adba; --penstock-focus: #fbbf24; --penstock-ground: #2a1717;
}
.body--dark .q-btn.text-primary { --q-primary: #8cc8f8; }
.body--dark .q-field__control { color: #8cc8f8; }
.body--dark .cm-editor { filter: invert(0.92) hue-rotate(180deg); }
.quiet { color: var(--penstock-quiet); }
:focus-visible, .q-focusable:focus-visible { outline: 3px solid var(--penstock-focus) !important; outline-offset: 1px; }
.flow { max-width: none; }
.flow rect { fill: var(--penstock-box); stroke: var(--penstock-line); stroke-width: 1.5; }
.flow .storage rect { stroke-dasharray: 1 3; stroke-linecap: round; stroke-width: 2; }
.flow a:focus-visible { outline: none !important; }
.flow .box:hover rect { stroke-width: 3; }
.flow .box:focus-visible rect { stroke: var(--penstock-focus); stroke-width: 4; stroke-dasharray: none; }
.flow text { fill: var(--penstock-text); font: 12.5px Roboto, system-ui, sans-serif; }
.flow .title { font-weight: 600; font-size: 14px; }
.flow .label {
  font-size: 11.5px; text-anchor: middle; fill: var(--penstock-quiet);
  paint-order: stroke; stroke: var(--penstock-page); stroke-width: 5px;
}
.flow .line { fill: none; stroke: var(--penstock-line); stroke-width: 1.5; }
.flow .trouble rect, .flow .line.trouble { stroke: var(--penstock-trouble); stroke-width: 3; stroke-dasharray: 7 4; }
.trouble-text { color: var(--penstock-trouble); }
.trouble-box {
  border-left: 4px solid var(--penstock-trouble); background: var(--penstock-ground); padding: 6px 12px; width: 100%;
}
.link-button {
  background: none; border: 0; padding: 0; font: inherit; color: inherit; text-align: inherit;
  text-decoration: underline dotted;
}
.unfilled > :not(.trouble-box, .text-xl) { display: none; }
.unfilled::after { content: "Asking the worker …"; color: var(--penstock-quiet); }
.border { border-color: #8886; }
.codehilite pre { white-space: pre-wrap; overflow-wrap: anywhere; }
pre.bytes { overflow-x: auto; font-size: 12px; }
pre.bytes > * { overflow-wrap: anywhere; }
.nicegui-content { padding: 12px; }
.q-table__grid-item-row { display: flex; gap: 8px; }
.q-table__grid-item-title { flex: none; width: 42%; white-space: normal; opacity: 1; color: var(--penstock-quiet); }
.q-table__grid-item-value { overflow-wrap: anywhere; }
@media (prefers-reduced-motion: reduce) {
  *, ::before, ::after { transition: none !important; animation: none !important; }
}
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
            body = ui.column().classes("w-full gap-4")
            who = f"{session.principal.name}: {session.principal.role}"
            ui.label(f"{who} · {_KEYS_HELP}").classes("text-xs quiet")
        # The browser has the page before the worker is asked, which may take long to answer, or not answer at all.
        await ui.context.client.connected()
        await _built(body, lambda: build(session))

    def _header(self, session: Session, title: str) -> None:
        ui.add_css(STYLE)
        ui.colors(primary="#0f4c81")
        dark = ui.dark_mode(session.is_dark)
        with ui.header().classes("items-center gap-1 py-1 px-3"):
            ui.label("Penstock").classes("text-lg font-bold mr-3")
            ui.label(title).classes("lt-md")
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
                ui.menu_item("Light or dark", partial(_switch, session, dark))
                ui.menu_item(f"Log out {session.principal.name}", self._log_out)
        ui.keyboard(on_key=lambda event: _follow_key(event, session, dark), ignore=["input", "select", "textarea"])

    def _log_out(self) -> None:
        self.sessions.leave(app.storage.browser.get(LOGIN, ""))
        ui.navigate.to("/login")


async def _built(body: ui.column, build: Callable[[], Awaitable[None]]) -> None:
    """Without the worker, the page says so, and tries again."""
    body.clear()
    with body:
        try:
            await build()
        except PenstockError as error:
            complain(error)
            with body.parent_slot or body:
                ui.timer(REFRESH_SECONDS, lambda: _built(body, build), once=True)


async def _switch(session: Session, dark: ui.dark_mode) -> None:
    """Until the first time, the page is as the browser prefers, which only the browser knows."""
    is_dark = dark.value
    if is_dark is None:
        is_dark = await ui.run_javascript("return Quasar.Dark.isActive")
    session.is_dark = dark.value = not is_dark


async def _follow_key(event: KeyEventArguments, session: Session, dark: ui.dark_mode) -> None:
    if not event.action.keydown or event.action.repeat or event.modifiers:
        return
    if event.key == "t":
        await _switch(session, dark)
    for path, _, key in PAGES:
        if event.key == key:
            ui.navigate.to(path)


def keep_keys(element: ui.element) -> None:
    """What is typed in it is not for the page."""
    element.on("keydown", js_handler="(event) => { if (event.key.length === 1) event.stopPropagation(); }")


def dialog() -> ui.dialog:
    found = ui.dialog()
    keep_keys(found)
    return found


async def live(update: Callable[[], Awaitable[None]]) -> None:
    """Calls it now and every two seconds while the page is open. While the worker does not answer, the page says so and
    keeps what it has. Until it has something, only its name is there.
    """
    page = ui.context.slot.parent.classes("unfilled")
    problem = ui.label().classes("trouble-text trouble-box order-first")  # above what may be out of date
    problem.set_visibility(False)
    as_of = ui.label().classes("text-xs quiet")

    async def refresh() -> None:
        try:
            await update()
        except PenstockError as error:
            problem.text = f"⚠ {_sentences(error)}"
            problem.set_visibility(True)
        else:
            problem.set_visibility(False)
            page.classes(remove="unfilled")
            as_of.text = f"As of {datetime.now(UTC):%H:%M:%S} UTC. Refreshes every {REFRESH_SECONDS:.0f} seconds."

    await refresh()
    ui.timer(REFRESH_SECONDS, refresh, immediate=False)


def troubles(sentences: Iterable[str]) -> None:
    """What is wrong, in the words of `penstock status`."""
    for sentence in sentences:
        ui.label(f"⚠ {sentence}").classes("trouble-text trouble-box")


def _sentences(error: PenstockError) -> str:
    text = str(error)
    return f"{text if text.endswith(('.', '?', '!')) else f'{text}.'} {error.hint or ''}".rstrip()


def complain(error: PenstockError) -> None:
    with ui.card().classes("w-full"):
        ui.label(f"⚠ {error}").classes("trouble-text font-bold")
        if error.hint:
            ui.label(error.hint)


def told(error: PenstockError) -> None:
    """For something that the user has asked for."""
    ui.notify(_sentences(error), type="negative", multi_line=True, timeout=10_000, close_button=True)


async def confirmed(question: str, action: str) -> bool:
    with dialog() as asked, ui.card():
        ui.label(question)
        with ui.row().classes("justify-end w-full"):
            ui.button("Cancel", on_click=lambda: asked.submit(False)).props("flat no-caps")
            ui.button(action, on_click=lambda: asked.submit(True)).props("no-caps")
    return bool(await asked)


def facts(pairs: Sequence[tuple[str, object]]) -> None:
    """Names and values, in two columns."""
    with ui.element("dl").classes("grid grid-cols-[max-content_1fr] gap-x-4 gap-y-1 text-sm w-full"):
        for name, value in pairs:
            with ui.element("dt").classes("quiet"):
                ui.label(name)
            with ui.element("dd").classes("break-words"):
                ui.label(str(value))


def code(text: str, language: str) -> None:
    """Text in colours. `ui.code` has a fixed fence, and shows what follows three backticks as Markdown."""
    fence = "`" * (1 + max(map(len, re.findall("`{2,}", text)), default=2))
    shown = ui.markdown(f"{fence}{language}\n{text}\n{fence}", extras=["fenced-code-blocks"])
    shown.classes("w-full border rounded px-3")


def title(text: str, explained: str = "") -> None:
    """The title of a part of a page."""
    with ui.column().classes("gap-0"):
        ui.label(text).classes("font-bold").props("role=heading aria-level=2")
        if explained:
            ui.label(explained).classes("text-sm quiet")


def table(
    columns: Sequence[tuple[str, str]],
    key: str,
    on_row: Callable[[Mapping[str, Any]], Awaitable[None]] | None = None,
    *,
    empty: str = "none",
    pagination: int | None = None,
    on_select: Callable[[], None] | None = None,
) -> ui.table:
    """Columns are pairs of a field and a title. A title that ends with `#` has numbers; with `~`, numbers with a unit,
    which cannot be sorted. `on_row` is called when a row is chosen, with the mouse or with the button in its first
    column. With `on_select`, rows have boxes to check. `empty` explains a table without rows. On a phone, each row is a
    card.
    """
    selection: Literal["multiple"] | None = None if on_select is None else "multiple"
    chosen = None if on_select is None else lambda _: on_select()
    found = ui.table(
        columns=_columns(columns), rows=[], row_key=key, pagination=pagination, selection=selection, on_select=chosen
    )
    with found.add_slot("no-data"):
        ui.label(empty).classes("quiet")
    if on_row is not None:
        found.on("rowClick", lambda event: on_row(event.args[1]))
        found.classes("cursor-pointer")
        found.add_slot(f"body-cell-{columns[0][0]}", _BUTTON)
        found.add_slot("item", _CARD.replace("CHECKBOX", "" if on_select is None else _CHECKBOX))
    return found.classes("w-full").props('dense flat bordered wrap-cells :grid="Quasar.Screen.lt.sm"')


_BUTTON = """
<q-td :props="props"><button class="link-button" @click.stop="$parent.$emit('rowClick', $event, props.row)">
{{ props.value }}</button></q-td>
"""
_CARD = """
<div class="q-table__grid-item col-12"><q-card flat bordered class="q-table__grid-item-card"
 @click="$parent.$emit('rowClick', $event, props.row)">CHECKBOX
<div v-for="(column, at) in props.cols" :key="column.name" class="q-table__grid-item-row">
<div class="q-table__grid-item-title">{{ column.label }}</div>
<div class="q-table__grid-item-value"><button v-if="at === 0" class="link-button"
 @click.stop="$parent.$emit('rowClick', $event, props.row)">{{ column.value }}</button>
<template v-else>{{ column.value }}</template></div></div></q-card></div>
"""
_CHECKBOX = '<q-checkbox v-model="props.selected" dense class="q-mb-sm" @click.stop aria-label="Select" />'


def _columns(columns: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "label": title.rstrip("#~"),
            "field": name,
            "align": "right" if title[-1] in "#~" and number else "left",
            "sortable": not title.endswith("~"),
        }
        for number, (name, title) in enumerate(columns)
    ]


def fill(found: ui.table, rows: list[dict[str, Any]]) -> None:
    if found.rows != rows:
        found.rows = rows
        found.update()


# Charts.


_EMPTY = "height: 3.2rem"
"""Room for a title, and a line that says that there is nothing."""


def chart(height: str = "h-56") -> ui.echart:
    return ui.echart({"series": []}).classes(f"w-full {height}").style(_EMPTY)


def pair() -> ui.element:
    """Two columns, or one on a narrow screen."""
    return ui.element("div").classes("grid grid-cols-1 lg:grid-cols-2 gap-4 w-full")


def show_chart(found: ui.echart, options: dict[str, Any]) -> None:
    found.options.clear()
    found.options.update(options)
    found.style(replace="" if options["series"] else _EMPTY)
    found.update()
