"""The pages of what is stored: dead letters, which can be replayed, and the events of any segment."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

from nicegui import ui

from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments import Event, SegmentClient
from penstock.coordinator.machine.state import source_of
from penstock.core.errors import PenstockError, RequestError
from penstock.core.sizes import show_size
from penstock.dashboard.facts import clock
from penstock.dashboard.frame import confirmed, dialog, facts, fill, live, table, title, told
from penstock.dashboard.session import Session
from penstock.protocol.api.dead_letters import DeadLetter, DeadLetterList, Replayed
from penstock.protocol.api.pipelines import AtTime
from penstock.protocol.stored import Kind, kind_of, parse_event

_LETTERS_MAX = 200
"""Of each port, in a list: a browser has to keep them."""
_EVENTS_SHOWN = 50
_BYTES_SHOWN = 64 << 10
"""Of one value: a browser does not like more."""
_HEX_WIDTH = 16


_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that change the direction of what follows."""


def as_text(value: bytes) -> str:
    text = value[:_BYTES_SHOWN].decode(errors="backslashreplace")
    return _INVISIBLE.sub(lambda found: repr(found[0])[1:-1], text)


def as_hex(value: bytes) -> str:
    """As `hexdump -C` shows it."""
    lines = []
    for at in range(0, min(len(value), _BYTES_SHOWN), _HEX_WIDTH):
        row = value[at : at + _HEX_WIDTH]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{3 * _HEX_WIDTH}} |{text}|")
    return "\n".join(lines)


def as_json(value: bytes) -> str:
    """Indented; or why it is not JSON."""
    try:
        found = json.dumps(json.loads(value), indent=2, ensure_ascii=False)[:_BYTES_SHOWN]
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {error}"
    return found.encode(errors="backslashreplace").decode()


def bytes_view(value: bytes, size: int) -> None:
    """Text, hexadecimal or JSON, as the user chooses, of the beginning of a value of this size."""
    forms = {"text": as_text, "hex": as_hex, "JSON": as_json}
    shown = ui.element("pre").classes("bytes w-full")

    def show(form: str) -> None:
        shown.clear()
        with shown:
            wrap = "pre" if form == "hex" else "pre-wrap"
            is_cut = form == "JSON" and size > len(value)
            text = "too long to be shown as JSON" if is_cut else forms[form](value)
            ui.label(text).classes("font-mono").style(f"white-space: {wrap}")

    ui.toggle([*forms], value="text", on_change=lambda event: show(event.value)).props("dense no-caps")
    show("text")
    if size > len(value):
        ui.label(f"The first {show_size(len(value))} of {show_size(size)}.").classes("quiet")


# Dead letters.

_LOOKED_AT_MAX = 20
"""Pipelines that are asked when the page is opened: each is a request."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where dead letters are: at a pipeline, or at a source, for what never became an event of it."""

    name: str
    is_pipeline: bool

    def listed(
        self, client: CoordinatorClient, limit: int = _LETTERS_MAX, before: Mapping[str, int] | None = None
    ) -> DeadLetterList:
        """The newest of each port; `before`: those of these ports that end at these offsets or earlier."""
        if before:
            pages = [self._older(client, port, limit, at) for port, at in before.items()]
            return DeadLetterList(self.listed(client, 0).ports, [one for page in pages for one in page.dead_letters])
        if self.is_pipeline:
            return client.dead_letters(self.name, limit=limit)
        return client.source_dead_letters(self.name, limit=limit)

    def _older(self, client: CoordinatorClient, port: str, limit: int, before: int) -> DeadLetterList:
        if self.is_pipeline:
            return client.dead_letters(self.name, port, limit=limit, before=before)
        return client.source_dead_letters(self.name, limit=limit, before=before)

    def whole(self, client: CoordinatorClient, port: str, at: int) -> DeadLetter:
        if self.is_pipeline:
            return client.dead_letter(self.name, port, at)
        return client.source_dead_letter(self.name, at)


async def dead_letters(session: Session, name: str, kind: str) -> None:
    status = await session.ask(lambda client: client.status())
    choices = {f"pipeline {one.name}": _Place(one.name, True) for one in status.pipelines}
    choices |= {f"source {one.name}": _Place(one.name, False) for one in status.connectors if one.guarantee.get("out")}
    wanted = f"{kind} {name}" if name else ""
    if wanted and wanted not in choices:
        raise RequestError(f"there is no {kind} {name!r}", "It appears when it starts. Others are on: Dead letters.")
    if not choices:
        ui.label("There are no pipelines and no connectors yet.").classes("quiet")
        return
    await _DeadLetters(session, choices).build(wanted or await _first_with_some(session, choices))


async def _first_with_some(session: Session, choices: Mapping[str, _Place]) -> str:
    """The first pipeline with dead letters that were not replayed yet, or else the first with any, or else what is
    listed first.
    """
    with_some = []
    for text, place in [*choices.items()][:_LOOKED_AT_MAX]:
        found = await session.ask(partial(place.listed, limit=1))
        if place.is_pipeline and any(one.waiting for one in found.ports):
            return text
        if found.dead_letters:
            with_some.append(text)
    return next(iter([*with_some, *choices]))


class _DeadLetters:
    """The page while it is open."""

    def __init__(self, session: Session, choices: Mapping[str, _Place]) -> None:
        self._session = session
        self._choices = choices
        self._list = DeadLetterList((), ())
        self._before: dict[str, int] = {}
        """Where the listed ones end, by port; empty for the newest."""

    async def build(self, first: str) -> None:
        """Begin with this one."""
        title(
            "Dead letters",
            "Events that could not be processed or were too late, with their bytes and the reason. Fix the cause, then "
            "replay them: each goes through the pipeline once more, with its next epoch.",
        )
        self._chosen = ui.select([*self._choices], value=first, label="Of", on_change=self._choose)
        self._chosen.classes("w-64").props("dense outlined")
        self._waiting = ui.label()
        if self._may_replay:
            with ui.row().classes("items-center gap-2"):
                self._replay_chosen = ui.button("Replay selected", on_click=self._replay_selected).props("no-caps")
                self._replay_all = ui.button("Replay all", on_click=self._replay_everything).props("no-caps outline")
        columns = [("at", "offset#"), ("port", "port"), ("reason", "reason"), ("source", "source"), ("size", "size~")]
        columns += [("time", "event time"), ("state", "state")]
        empty = "None: every event could be processed, and none was late."
        on_select = self._offer if self._may_replay else None
        self._table = table(columns, "key", self._look, empty=empty, pagination=15, on_select=on_select)
        with ui.row().classes("items-center gap-2"):
            self._older = ui.button("Older", on_click=self._turn_back).props("no-caps outline")
            self._newest = ui.button("Newest", on_click=self._choose).props("no-caps outline")
            self._part = ui.label().classes("quiet")
        self._dialog = dialog()
        await live(self._update)

    @property
    def _place(self) -> _Place:
        return self._choices[self._chosen.value]

    @property
    def _may_replay(self) -> bool:
        return self._session.may("deploy")

    async def _update(self) -> None:
        place, before = self._place, self._before
        self._list = await self._session.ask(lambda client: place.listed(client, before=before))
        fill(self._table, [_letter_row(one) for one in reversed(self._list.dead_letters)])
        waiting = [f"{show_size(one.waiting)} in {one.port}" for one in self._list.ports if one.waiting]
        self._waiting.text = f"Not replayed yet: {', '.join(waiting)}." if waiting else ""
        self._show_part()
        self._offer()

    def _show_part(self) -> None:
        """Which of all dead letters these are."""
        has_older = bool(self._first_of_ports())
        self._older.set_visibility(has_older)
        self._newest.set_visibility(bool(self._before))
        count, which = len(self._list.dead_letters), "older ones" if self._before else "the newest"
        ports = f" of each port ({_LETTERS_MAX} at most)" if len(self._list.ports) > 1 else ""
        self._part.text = f"{count:,} are listed: {which}{ports}." if has_older or self._before else ""

    def _first_of_ports(self) -> dict[str, int]:
        """Where the list begins at ports that have more before that."""
        found: dict[str, int] = {}
        for one in self._list.dead_letters:
            found[one.port] = min(one.at, found.get(one.port, one.at))
        starts = {one.port: one.start for one in self._list.ports}
        return {port: at for port, at in found.items() if at > starts.get(port, 0)}

    async def _turn_back(self) -> None:
        await self._turn_to(self._first_of_ports())

    async def _choose(self) -> None:
        self._dialog.close()
        await self._turn_to({})

    async def _turn_to(self, before: dict[str, int]) -> None:
        self._before = before
        self._table.selected.clear()
        await self._update()

    def _offer(self) -> None:
        """What can be done with what is selected. Dead letters of a source were never events: they stay."""
        if not self._may_replay:
            return
        count, is_pipeline = len(self._selected()), self._place.is_pipeline
        self._replay_chosen.text = f"Replay selected ({count})" if count else "Replay selected"
        self._replay_chosen.set_enabled(is_pipeline and count > 0)
        self._replay_all.set_enabled(is_pipeline and any(one.waiting for one in self._list.ports))

    def _selected(self) -> list[DeadLetter]:
        """Those that can still be replayed."""
        keys = {row["key"] for row in self._table.selected}
        return [one for one in self._list.dead_letters if _key(one) in keys and not one.replayed]

    async def _look(self, row: Mapping[str, Any]) -> None:
        place = self._place
        try:
            whole = await self._session.ask(lambda client: place.whole(client, row["port"], row["at"]))
        except PenstockError as error:
            told(error)
            return
        self._dialog.clear()
        with self._dialog, ui.card().classes("w-full").style("max-width: 900px"):
            _letter(whole)
            with ui.row().classes("w-full justify-end"):
                ui.button("Close", on_click=self._dialog.close).props("flat no-caps")
                if place.is_pipeline and self._may_replay and not whole.replayed:
                    ui.button("Replay this one", on_click=lambda: self._replay([whole])).props("no-caps")
        self._dialog.open()

    async def _replay_selected(self) -> None:
        await self._replay(self._selected())

    async def _replay(self, letters: Sequence[DeadLetter]) -> None:
        name = self._place.name
        what = "this dead letter" if len(letters) == 1 else f"these {len(letters)} dead letters"
        by_port = {port: [one.at for one in letters if one.port == port] for port in {one.port for one in letters}}

        def replay(client: CoordinatorClient) -> list[Replayed]:
            return [client.replay_chosen(name, port, at) for port, at in by_port.items()]

        await self._confirm_and_ask(f"{what} of {name}", replay)

    async def _replay_everything(self) -> None:
        name, ports = self._place.name, [one for one in self._list.ports if one.waiting]

        def replay(client: CoordinatorClient) -> list[Replayed]:
            return [client.replay(name, one.port, one.replayed, one.end) for one in ports]

        await self._confirm_and_ask(f"all dead letters of {name} that were not replayed yet", replay)

    async def _confirm_and_ask(self, what: str, replay: Callable[[CoordinatorClient], list[Replayed]]) -> None:
        if not await confirmed(f"Send {what} through the pipeline again? {_FIX_FIRST}", "Replay"):
            return
        try:
            done = await self._session.change(replay)
        except PenstockError as error:
            told(error)
            return
        count, left_out = sum(one.count for one in done), sum(one.left_out for one in done)
        left = f", {left_out:,} left out: no input reads their source" if left_out else ""
        ui.notify(f"{count:,} replayed{left}", type="positive")
        self._dialog.close()
        await self._turn_to(self._before)


_FIX_FIRST = "Fix the cause first: an event that fails again becomes a dead letter again."


def _key(one: DeadLetter) -> str:
    return f"{one.port}@{one.at}"


def _letter_row(one: DeadLetter) -> dict[str, Any]:
    return {
        "key": _key(one),
        "at": one.at,
        "port": one.port,
        "reason": one.reason[:200],
        "source": one.source,
        "size": show_size(one.size),
        "time": clock(one.event_time),
        "state": "replayed" if one.replayed else "waiting",
    }


def _letter(one: DeadLetter) -> None:
    ui.label(one.reason).classes("font-bold")
    place = f"{one.segment}@{one.offset}" if one.segment else ""
    late = [("Missed the watermark", f"{clock(one.watermark)}, by {(one.behind_us or 0) / 1e6:,.1f} s")]
    facts(
        [
            ("Source", one.source),
            ("Stream", f"{one.stream or one.stream_id}, message {one.message_id}"),
            ("Event time", clock(one.event_time)),
            ("Read from", place),
            *([("Key", as_text(one.key))] if one.key else []),
            *(late if one.watermark is not None else []),
        ]
    )
    value = one.value or b""
    bytes_view(value[:_BYTES_SHOWN], len(value))


# Segments.


async def segments(session: Session, name: str, prefix: str) -> None:
    await _Segments(session, name, prefix).build()


class _Segments:
    """The page while it is open."""

    def __init__(self, session: Session, name: str, prefix: str) -> None:
        self._session = session
        self._name = name
        self._wanted = prefix

    async def build(self) -> None:
        title("Segments", "Everything is stored in segments. Choose one to look at its events.")
        self._prefix = ui.input("Names that start with", value=self._wanted)
        self._prefix.props("dense outlined clearable").classes("w-80")
        columns = [("name", "segment"), ("start", "start#"), ("end", "end#"), ("size", "size~"), ("state", "state")]
        empty = "No segment has a name like that."
        self._table = table(columns, "key", self._choose, empty=empty, pagination=10)
        self._more = ui.label().classes("quiet")
        title("Events")
        self._title = ui.label("Choose a segment above.")
        with ui.row().classes("items-center w-full"):
            self._offset = ui.number("From offset", min=0, precision=0).props("dense outlined").classes("w-40")
            self._time = ui.input("Or from a time, like 2026-01-31T12:00:00Z").props("dense outlined").classes("w-80")
            ui.button("Show", on_click=self._look).props("no-caps")
        self._shown = ui.column().classes("w-full gap-1")
        await live(self._update)
        if self._name:
            await self._look()

    async def _update(self) -> None:
        page = await self._session.ask(lambda client: client.segments(self._prefix.value or ""))
        fill(self._table, [{"key": number} | _segment_row(one) for number, one in enumerate(page.segments)])
        self._more.text = f"These are the first {len(page.segments):,}: type the beginning of a name." * page.more

    async def _choose(self, row: Mapping[str, Any]) -> None:
        self._name, self._offset.value, self._time.value = row["name"], row["start"], ""
        await self._look()

    async def _look(self) -> None:
        if not self._name:
            ui.notify("Choose a segment first")
            return
        name, self._title.text = self._name, self._name
        self._shown.clear()
        with self._shown:
            ui.label("Looking for them …").classes("quiet")
        try:
            wanted = await self._start()
            start, events = await self._session.read(lambda client: events_at(client, name, wanted))
        except PenstockError as error:
            self._shown.clear()
            told(error)
            return
        self._shown.clear()
        with self._shown:
            if wanted is not None and wanted < start:
                gone = f"Events before offset {start:,} are not retained any more."
                ui.label(gone).classes("quiet")
            self._show(events)

    def _show(self, events: Sequence["ShownEvent"]) -> None:
        if not events:
            ui.label("No events there.").classes("quiet")
        for event in events:
            with ui.expansion(event.title).classes("w-full border rounded").props("dense"):
                facts(event.facts)
                bytes_view(event.value, event.size)
        if len(events) == _EVENTS_SHOWN:
            ui.button("Next events", on_click=lambda: self._show_next(events[-1].end)).props("no-caps outline")

    async def _show_next(self, offset: int) -> None:
        self._offset.value, self._time.value = offset, ""
        await self._look()

    async def _start(self) -> int | None:
        """Where to read: at the offset, or where the event times reach a time; None: from the start."""
        name, time, offset = self._name, self._time.value or "", self._offset.value
        if time:
            return await offset_at(self._session, name, time)
        return None if offset is None else int(offset)


def _segment_row(one: Any) -> dict[str, Any]:
    state = "damaged" if one["damage"] else "sealed" if one["sealed"] else "open"
    size = show_size(one["length"] - one["start"])
    return {"name": one["name"], "start": one["start"], "end": one["length"], "size": size, "state": state}


async def offset_at(session: Session, segment: str, text: str) -> int:
    """Where the event times reach a time. The worker walks through the heads of all records before it, since times need
    not follow the order of the records: in a long segment, that takes longer than other questions.
    """
    try:
        given = datetime.fromisoformat(text.strip())
    except ValueError:
        raise RequestError(f"{text!r} is not a time", "Write it like 2026-01-31T12:00:00Z.") from None
    time = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
    starting = AtTime(int(time.timestamp() * 1_000_000))
    found = await session.change(lambda client: client.resolve([source_of(segment)], starting))
    return found.get(segment, 0)


@dataclass(frozen=True, slots=True)
class ShownEvent:
    title: str
    facts: Sequence[tuple[str, object]]
    value: bytes
    """Its beginning: pages keep many."""
    size: int
    end: int
    """The offset of the next event."""

    @classmethod
    def of(cls, event: Event, about: Sequence[tuple[str, object]], value: bytes) -> Self:
        return cls(f"{event.offset}: {as_text(value[:100])}", about, value[:_BYTES_SHOWN], len(value), event.end)


def events_at(
    client: SegmentClient, segment: str, wanted: int | None, most: int = _EVENTS_SHOWN
) -> tuple[int, list[ShownEvent]]:
    """The events from there on, or from the segment's start, which moves up as events are removed; and where that is.
    Raises RequestError if no event starts there.
    """
    found: list[ShownEvent] = []
    info = client.info(segment)
    if wanted is not None and wanted > info.length:
        raise RequestError(f"{segment} has the offsets {info.start} to {info.length}", "Choose one of them.")
    start = max(info.start, wanted or 0)
    is_stored = kind_of(segment).kind is Kind.STORED
    for event in client.events(segment, start):
        if not is_stored:
            found.append(ShownEvent.of(event, [], event.data))
        elif (stored := parse_event(event.data)) is not None:
            about: list[tuple[str, object]] = [
                ("Stream", f"{stored.stream_id}, message {stored.event_id}"),
                ("Event time", clock(stored.event_time)),
                *([("Key", as_text(stored.key))] if stored.key else []),
                *((key, value) for key, value in stored.metadata.items()),
            ]
            found.append(ShownEvent.of(event, about, stored.payload))
        if len(found) == most:
            break
    return start, found
