"""The screen of `penstock top`: draws lines, handles keys, and asks the worker every second in a thread."""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from penstock.cli.top.feed import Feed, Place, Seen
from penstock.cli.top.pages import KEYS, Line, banner, page, title

_LOOK_SECONDS = 1.0
_MARGIN = 2
"""Columns of the list that lines cannot use: the scroll bar and a column beside it."""
_FOOT = "↑↓ move   Enter open   Esc back   o overview   p pause   ? keys   q quit"


class _Looked(Message):
    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        super().__init__()


class _Keys(ModalScreen[None]):
    """All keys; any of them closes it."""

    def compose(self) -> ComposeResult:
        width = max(len(keys) for keys, _ in KEYS)
        lines = "\n".join(f"{keys:{width}}  {what}" for keys, what in KEYS)
        about = "! needs attention. Rates are over the last 10 s, charts over the last hour."
        yield Static(Text(f"{lines}\n\n{about}"), id="keys")

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss()


class TopApp(App[None]):
    """Asks the feed in a thread of its own, which never delays the exit."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #title, #foot { height: 1; }
    #foot { dock: bottom; text-style: reverse; }
    #banner { height: auto; }
    OptionList { height: 1fr; border: none; padding: 0; background: ansi_default; scrollbar-size-vertical: 1; }
    OptionList:focus { border: none; background-tint: ansi_default 0%; }
    OptionList > .option-list--option-disabled { color: ansi_default; }
    OptionList > .option-list--option-highlighted, OptionList:focus > .option-list--option-highlighted {
        color: ansi_default; background: ansi_default; text-style: reverse;
    }
    OptionList > .option-list--option-hover { background: ansi_default; }
    _Keys { align: center middle; background: ansi_default; }
    #keys { width: auto; height: auto; max-width: 100%; border: round ansi_default; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", priority=True),
        Binding("question_mark", "keys"),
        Binding("escape,left,h,backspace", "leave"),
        Binding("right,l", "open"),
        Binding("j", "move(1)"),
        Binding("k", "move(-1)"),
        Binding("o", "overview"),
        Binding("p", "pause"),
    ]

    def __init__(self, feed: Feed) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self._feed = feed
        self._seen = Seen()
        self._places = [Place()]
        self._marked: dict[Place, Place] = {}
        """What was selected on each page that was left."""
        self._lines: Sequence[Line] = ()
        self._is_paused = False
        self._wanted, self._is_over = threading.Event(), threading.Event()

    @property
    def place(self) -> Place:
        return self._places[-1]

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield Static(id="banner")
        yield OptionList(markup=False)
        yield Static(_FOOT, id="foot", markup=False)

    def on_mount(self) -> None:
        self._show()
        threading.Thread(target=self._follow, name="penstock top", daemon=True).start()

    def on_unmount(self) -> None:
        self._is_over.set()
        self._wanted.set()

    def _follow(self) -> None:
        """Every second, and at once for another page. A daemon thread: a worker that does not answer delays no exit."""
        while not self._is_over.is_set():
            seen = self._feed.look(self.place)
            with suppress(RuntimeError):  # it has just ended
                self.post_message(_Looked(seen))
            self._wanted.wait(_LOOK_SECONDS)
            self._wanted.clear()
        self._feed.close()

    # What is shown.

    def on__looked(self, message: _Looked) -> None:
        if not self._is_paused and message.seen.place == self.place:
            self._seen = message.seen
            self._show()

    def on_resize(self) -> None:
        self._show()

    def _show(self) -> None:
        width = max(self.size.width - _MARGIN, 20)
        self.query_one("#title", Static).update(title(self._seen, width))
        problem = banner(self._seen, time.monotonic(), width)
        shown = self.query_one("#banner", Static)
        shown.display = bool(problem)
        shown.update(Text("\n").join(problem))
        self._fill(page(self._seen, width, self.size.height))

    def _fill(self, lines: Sequence[Line]) -> None:
        """The selection stays on the same thing. Unchanged lines are not redrawn: the connection may be slow."""
        options = self.query_one(OptionList)
        before, self._lines = self._lines, lines
        shape = [(line.target, line.is_heading) for line in lines]
        if shape == [(line.target, line.is_heading) for line in before]:
            for number, (old, new) in enumerate(zip(before, lines, strict=True)):
                if old.text != new.text or old.text.style != new.text.style:
                    options.replace_option_prompt_at_index(number, new.text)
            return
        marked = self._mark(before, options.highlighted, lines)
        options.set_options(Option(line.text, disabled=line.is_heading) for line in lines)
        options.highlighted = marked

    def _mark(self, before: Sequence[Line], at: int | None, lines: Sequence[Line]) -> int | None:
        """The selected line among the new ones: the thing that was selected when this page was left, or just now, or
        else the same line. A new page begins at its top, which says what is wrong; the overview begins at the first
        line that opens something.
        """
        targets = [line.target for line in lines]
        left = self._marked.get(self.place)
        if left is not None and left in targets:
            del self._marked[self.place]
            return targets.index(left)
        if at is not None and at < len(before):
            if (was := before[at].target) is not None and was in targets:
                return targets.index(was)
            if 0 < at < len(lines) and not lines[at].is_heading:
                return at
        first = next((number for number, target in enumerate(targets) if target is not None), 0)
        return None if not lines else first if self.place == Place() else 0

    # Keys.

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        self._go(self._lines[message.option_index].target)

    def action_open(self) -> None:
        self.query_one(OptionList).action_select()

    def action_move(self, step: int) -> None:
        options = self.query_one(OptionList)
        if step > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def action_leave(self) -> None:
        if len(self._places) > 1:
            self._places.pop()
            self._turn()

    def action_overview(self) -> None:
        if self.place != Place():
            self._places = [Place()]
            self._turn()

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self.query_one("#foot", Static).update("paused: p continues" if self._is_paused else _FOOT)

    def action_keys(self) -> None:
        self.push_screen(_Keys())

    def _go(self, place: Place | None) -> None:
        if place is not None and place != self.place:
            self._marked[self.place] = place
            self._places.append(place)
            self._turn()

    def _turn(self) -> None:
        """Go to another page: show what is known immediately, and the rest when the worker has answered."""
        self._is_paused = False
        self._lines = ()
        self._seen = self._feed.seen.about(self.place)
        self._show()
        self._wanted.set()
