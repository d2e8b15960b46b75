"""The pages of the flow: the overview, and a source with its streams."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nicegui import ui

from penstock.core.errors import RequestError
from penstock.core.sizes import show_size
from penstock.dashboard import charts
from penstock.dashboard.catch_up import backlogs
from penstock.dashboard.facts import clock, machine_facts, source_facts
from penstock.dashboard.flow_picture import BOXES_MAX, drawn, graph, link, show_rate
from penstock.dashboard.frame import (
    chart,
    facts,
    fill,
    live,
    pair,
    show_chart,
    table,
    title,
    troubles,
)
from penstock.dashboard.session import Session
from penstock.protocol.api.history import StreamStatus
from penstock.protocol.api.status import SessionStatus, SourceStatus, WorkerStatus

# Overview.

_MORE_SOURCES = (("source", "source"), ("events", "events/s~"), ("retained", "retained~"))


async def overview(session: Session) -> None:
    sentences = ui.column().classes("w-full gap-1")
    pictures = {"gt-xs": ui.html(sanitize=False), "lt-sm": ui.html(sanitize=False)}
    for shown_on, picture in pictures.items():
        picture.classes(f"w-full overflow-x-auto {shown_on}")
    empty = ui.label("Nothing is deployed yet. Start an application: penstock run app.yaml").classes("quiet")
    with ui.column().classes("w-full") as others:
        title("More sources", f"The picture has the first {BOXES_MAX}.")
        more = table(_MORE_SOURCES, "source", _go_to_source, pagination=15)
    with pair():
        rates, lags = chart(), chart()
    with ui.card().classes("w-full"):
        about = ui.column().classes("w-full")

    async def update() -> None:
        status = await session.ask(lambda client: client.status())
        found = graph(status)
        sources = [key.removeprefix("source:") for key in found.boxes if key.startswith("source:")]
        events = _each(sources, "source", "events")
        behind = _each([one.name for one in status.pipelines], "pipeline", "lag_bytes")
        history = await session.history(*events, *behind)
        for shown_on, picture in pictures.items():
            picture.content = drawn(found, is_phone=shown_on == "lt-sm")
        empty.set_visibility(not found.boxes)
        others.set_visibility(bool(found.left_out))
        fill(more, [_more_row(name, status) for name in found.left_out])
        sentences.clear()
        with sentences:
            _say(status)
        show_chart(rates, charts.over_time(history, events, "sources", "events/s"))
        show_chart(lags, charts.over_time(history, behind, "what pipelines have yet to read", "B"))
        about.clear()
        with about:
            facts(machine_facts(status))

    await live(update)


def _more_row(name: str, status: WorkerStatus) -> dict[str, Any]:
    rate, source = status.rates.sources.get(name), status.sources.get(name)
    return {
        "source": name,
        "events": "" if rate is None else show_rate(rate.events_per_second),
        "retained": "" if source is None else show_size(source.retained_bytes),
    }


async def _go_to_source(row: Mapping[str, Any]) -> None:
    ui.navigate.to(link("source", name=row["source"]))


_BACKLOGS_NAMED = 5
"""Pipelines that are behind; each has its own page."""


def _say(status: WorkerStatus) -> None:
    """What blocks the flow, or else what it waits for; and how long what is behind takes to catch up."""
    blocking = [str(one) for one in status.blockages if one.is_blocking]
    troubles([*status.problems, *blocking])
    if not blocking and not status.problems:
        ui.label("✓ Nothing is blocked.")
        for one in status.blockages:
            ui.label(str(one)).classes("quiet")
    for sentence in backlogs(status, _BACKLOGS_NAMED):
        ui.label(sentence)


# A source.

_STREAMS = (
    ("stream", "stream"),
    ("state", "state"),
    ("message", "last message#"),
    ("time", "last event time read"),
    ("behind", "behind the newest~"),
    ("blocks", "blocks the watermark of"),
)
_PROGRAMS = (
    ("program", "program"),
    ("peer", "address"),
    ("state", "state"),
    ("streams", "streams#"),
    ("credits", "credits (messages)#"),
    ("in_flight", "in flight~"),
    ("lag", "oldest waits for its ack~"),
)
_POSITIONS = (
    ("segment", "segment"),
    ("stored", "stored up to (offset)#"),
    ("acknowledged", "acknowledged up to#"),
    ("complete", "complete in all pipelines up to#"),
)


async def source(session: Session, name: str) -> None:
    ui.label(f"Source {name}").classes("text-xl font-bold")
    body = ui.column().classes("w-full")
    rates = chart()
    title("Streams", "Slowest first: a pipeline's watermark is that of its slowest active stream.")
    streams = table(_STREAMS, "id", empty="No stream yet. It appears with its first event.", pagination=15)
    title("Programs", "A program may send as many messages as it has credits. Slowest first.")
    sessions = table(_PROGRAMS, "peer", empty="No program is connected.")
    title("Streams that may not send", "Their connector is paused, or a sink does not accept what they would send.")
    blocked = table([("stream", "stream"), ("why", "why")], "stream", empty="None: every stream may send.")
    title("Positions", "Bytes of each segment.")
    segments = table(_POSITIONS, "segment", empty="Nothing is stored yet.")

    async def update() -> None:
        status = await session.ask(lambda client: client.status())
        history = await session.history(f"source/{name}/events")
        found = status.sources.get(name)
        connector = next((one for one in status.connectors if one.name == name), None)
        if found is None and connector is None:
            raise RequestError(f"there is no source {name!r}", "It appears with its first event.")
        show_chart(rates, charts.over_time(history, {f"source/{name}/events": "events"}, "events/s"))
        listed = None if found is None else await session.ask(lambda client: client.streams(name))
        body.clear()
        with body:
            troubles(str(one) for one in status.blockages if one.link == f"source {name}" and one.is_blocking)
            facts([*source_facts(status, name, None if listed is None else listed.newest)])
        programs = sorted((one for one in status.sessions if one.source == name), key=lambda one: -one.ack_lag_seconds)
        fill(sessions, [_program_row(one) for one in programs])
        if connector is not None:
            fill(blocked, [{"stream": one.stream, "why": one.why} for one in connector.blocked_streams])
        if found is not None and listed is not None:
            blockers = _watermark_blockers(status, name)
            fill(streams, [_stream_row(one, listed.newest, blockers.get(one.stream_id, [])) for one in listed.streams])
            ends = await session.ask(lambda client: client.segments(f"connector/{name}/"))
            stored = {one["name"]: one["length"] for one in ends.segments}
            fill(segments, [_position_row(one, found, stored) for one in found.segments])

    await live(update)


def _program_row(one: SessionStatus) -> dict[str, Any]:
    return {
        "program": one.program,
        "peer": one.peer,
        "state": one.state.lower(),
        "streams": one.streams,
        "credits": one.credits,
        "in_flight": show_size(one.in_flight_bytes),
        "lag": f"{one.ack_lag_seconds:.1f} s",
    }


def _watermark_blockers(status: WorkerStatus, source: str) -> dict[int | None, list[str]]:
    """Stream → the pipelines whose watermark waits for it."""
    found: dict[int | None, list[str]] = {}
    for one in status.pipelines:
        if one.watermark_blocked_by is not None and one.watermark_blocked_by.source == source:
            found.setdefault(one.watermark_blocked_by.stream_id, []).append(one.name)
    return found


def _stream_row(one: StreamStatus, newest: int | None, blocks: Sequence[str]) -> dict[str, Any]:
    behind = None if one.event_time is None or newest is None else (newest - one.event_time) / 1e6
    return {
        "id": one.stream_id,
        "stream": one.name or f"#{one.stream_id}",
        "state": one.state,
        "message": _exact(one.last_message_id),
        "time": clock(one.event_time),
        "behind": "" if behind is None else f"{behind:,.1f} s",
        "blocks": f"⚠ {', '.join(blocks)}" if blocks else "",
    }


_EXACT_MAX = 2**53


def _exact(number: int | None) -> int | str | None:
    """A browser rounds larger integers, and ids may be times in nanoseconds."""
    return number if number is None or number < _EXACT_MAX else str(number)


def _position_row(segment: str, found: SourceStatus, stored: Mapping[str, int]) -> dict[str, Any]:
    return {
        "segment": segment,
        "stored": stored.get(segment, ""),
        "acknowledged": found.acknowledged.get(segment, ""),
        "complete": found.released.get(segment, ""),
    }


def _each(names: Iterable[str], kind: str, what: str, most: int = 12) -> dict[str, str]:
    """Series of the first ones: more lines would be a tangle."""
    return {f"{kind}/{name}/{what}": name for name in [*names][:most]}
