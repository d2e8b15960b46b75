"""The pages of what flows: the overview, and one each for a source, a pipeline and a sink."""

from collections.abc import Iterable
from typing import Any

from nicegui import ui

from penstock.core.errors import PenstockError, RequestError
from penstock.core.sizes import show_size
from penstock.dashboard import charts
from penstock.dashboard.facts import machine_facts, pipeline_facts, sink_facts, source_facts
from penstock.dashboard.flow_picture import drawn, graph
from penstock.dashboard.frame import confirmed, facts, fill, live, table, told
from penstock.dashboard.session import Session
from penstock.protocol.api.status import WorkerStatus

_CHART = "w-full h-56"


# Overview.


async def overview(session: Session) -> None:
    sentences = ui.column().classes("w-full gap-1")
    with ui.element("div").classes("w-full overflow-x-auto"):
        picture = ui.html(sanitize=False)
    empty = ui.label("Nothing is deployed. Start an application: penstock run app.yaml").classes("text-gray-500")
    with ui.element("div").classes("grid grid-cols-1 lg:grid-cols-2 gap-4 w-full"):
        rates = ui.echart(_no_chart()).classes(_CHART)
        lags = ui.echart(_no_chart()).classes(_CHART)
    with ui.card().classes("w-full"):
        about = ui.column().classes("w-full")

    async def update() -> None:
        status = await session.ask(lambda client: client.status())
        events = _each(_own(status.sources), "source", "events")
        behind = _each([one.name for one in status.pipelines], "pipeline", "lag_bytes")
        history = await session.history(*events, *behind)
        found = graph(status)
        picture.content = drawn(found)
        empty.set_visibility(not found.boxes)
        sentences.clear()
        with sentences:
            _say(status)
        _show(rates, charts.over_time(history, events, "events/s"))
        _show(lags, charts.over_time(history, behind, "bytes behind"))
        about.clear()
        with about:
            facts(machine_facts(status))

    await live(update)


def _say(status: WorkerStatus) -> None:
    """What is wrong, in the words of `penstock status`."""
    problems = [*status.problems, *(str(one) for one in status.blockages if one.is_blocking)]
    for problem in problems:
        ui.label(f"⚠ {problem}").classes("trouble-text")
    if not problems:
        ui.label("✓ Nothing is blocked.").classes("text-gray-500")


# A source.


async def source(session: Session, name: str) -> None:
    ui.label(f"Source {name}").classes("text-xl font-bold")
    body = ui.column().classes("w-full")
    rates = ui.echart(_no_chart()).classes(_CHART)
    ui.label("Programs").classes("font-bold")
    columns = [("program", "program"), ("peer", "address"), ("state", "state"), ("streams", "streams#")]
    sessions = table([*columns, ("credits", "credits#"), ("in_flight", "in flight#"), ("lag", "ack lag#")], "peer")
    ui.label("Streams that may not send").classes("font-bold")
    blocked = table([("stream", "stream"), ("why", "why")], "stream")
    ui.label("Segments").classes("font-bold")
    segments = table([("segment", "segment"), ("acknowledged", "acknowledged#"), ("complete", "complete#")], "segment")

    async def update() -> None:
        status = await session.ask(lambda client: client.status())
        history = await session.history(f"source/{name}/events")
        found = status.sources.get(name)
        connector = next((one for one in status.connectors if one.name == name), None)
        if found is None and connector is None:
            raise RequestError(f"there is no source {name!r}", "It appears with its first event.")
        _show(rates, charts.over_time(history, {f"source/{name}/events": "events/s"}, "events/s"))
        body.clear()
        with body:
            facts([*source_facts(status, name)])
        programs = sorted((one for one in status.sessions if one.source == name), key=lambda one: -one.ack_lag_seconds)
        fill(
            sessions,
            [
                {
                    "program": one.program,
                    "peer": one.peer,
                    "state": one.state,
                    "streams": one.streams,
                    "credits": one.credits,
                    "in_flight": show_size(one.in_flight_bytes),
                    "lag": f"{one.ack_lag_seconds:.1f} s",
                }
                for one in programs
            ],
        )
        fill(
            blocked, [{"stream": one.stream, "why": one.why} for one in connector.blocked_streams] if connector else []
        )
        fill(
            segments,
            [
                {
                    "segment": segment,
                    "acknowledged": found.acknowledged.get(segment, ""),
                    "complete": found.released.get(segment, ""),
                }
                for segment in found.segments
            ]
            if found is not None
            else [],
        )

    await live(update)


# A pipeline.


async def pipeline(session: Session, name: str) -> None:
    ui.label(f"Pipeline {name}").classes("text-xl font-bold")
    body = ui.column().classes("w-full")
    epochs = ui.echart(_no_chart()).classes(_CHART)
    with ui.element("div").classes("grid grid-cols-1 lg:grid-cols-2 gap-4 w-full"):
        rows = ui.echart(_no_chart()).classes(_CHART)
        latency = ui.echart(_no_chart()).classes(_CHART)
    ui.label("Epochs that are not delivered everywhere").classes("font-bold")
    waiting = table([("epoch", "epoch#"), ("state", "state"), ("size", "size#"), ("waits", "waits for")], "epoch")
    ui.label("Windows and state").classes("font-bold")
    columns = [("operator", "operator"), ("windows", "open windows#"), ("keys", "keys#"), ("state", "state#")]
    windows = table([*columns, ("late", "late#")], "operator")

    async def update() -> None:
        status = await session.ask(lambda client: client.status())
        key = f"pipeline/{name}"
        history = await session.history(*(f"{key}/{one}" for one in ("rows_in", "rows_out", "latency_seconds")))
        found = next((one for one in status.pipelines if one.name == name), None)
        if found is None:
            raise RequestError(f"there is no pipeline {name!r}", "It appears when it starts.")
        undelivered = await session.ask(lambda client: client.epochs(name))
        body.clear()
        with body:
            for one in (one for one in status.blockages if one.pipeline == name and one.is_blocking):
                ui.label(f"⚠ {one}").classes("trouble-text")
            facts([*pipeline_facts(found, status)])
        _show(epochs, charts.epoch_bars(history.epochs.get(name, ())))
        _show(rows, charts.over_time(history, {f"{key}/rows_in": "in", f"{key}/rows_out": "out"}, "rows/s"))
        _show(latency, charts.over_time(history, {f"{key}/latency_seconds": "latency"}, "seconds from arrival"))
        fill(
            waiting,
            [
                {
                    "epoch": one.epoch,
                    "state": one.state,
                    "size": show_size(one.bytes),
                    "waits": ", ".join(str(each.sink) for each in one.waiting),
                }
                for one in undelivered
            ],
        )
        fill(
            windows,
            [
                {
                    "operator": one.operator,
                    "windows": one.open_windows,
                    "keys": one.keys,
                    "state": show_size(one.state_bytes),
                    "late": one.late_kept + one.late_dropped,
                }
                for one in status.windows
                if one.pipeline == name
            ],
        )

    await live(update)


# A sink.


async def sink(session: Session, pipeline_name: str, name: str) -> None:
    ui.label(f"Sink {name} of {pipeline_name}").classes("text-xl font-bold")
    body = ui.column().classes("w-full")
    if session.may("deploy"):
        ui.button("Try again now", on_click=lambda: _retry(session, pipeline_name)).props("no-caps outline")
    rows = ui.echart(_no_chart()).classes(_CHART)
    ui.label("Epochs that it has not received").classes("font-bold")
    waiting = table([("epoch", "epoch#"), ("state", "state"), ("size", "size#")], "epoch")

    async def update() -> None:
        status = await session.ask(lambda client: client.status())
        key = f"sink/{pipeline_name}/{name}"
        history = await session.history(f"{key}/rows")
        found = next((one for one in status.sinks if (one.pipeline, one.sink) == (pipeline_name, name)), None)
        if found is None:
            raise RequestError(f"{pipeline_name} has no sink {name!r}", "List them: penstock sink list")
        undelivered = await session.ask(lambda client: client.epochs(pipeline_name))
        body.clear()
        with body:
            facts([*sink_facts(found, status)])
        _show(rows, charts.over_time(history, {f"{key}/rows": "rows"}, "rows/s"))
        lacking = [one for one in undelivered if any(each.sink == name for each in one.waiting)]
        fill(waiting, [{"epoch": one.epoch, "state": one.state, "size": show_size(one.bytes)} for one in lacking])

    await live(update)


async def _retry(session: Session, pipeline_name: str) -> None:
    if not await confirmed(f"Deliver the next epoch of {pipeline_name} now?", "Try again now"):
        return
    try:
        await session.ask(lambda client: client.retry(pipeline_name))
    except PenstockError as error:
        told(error)
    else:
        ui.notify("Asked")


# Charts.


def _no_chart() -> dict[str, Any]:
    return {"series": []}


def _show(chart: ui.echart, options: dict[str, Any]) -> None:
    chart.options.clear()
    chart.options.update(options)
    chart.update()


def _own(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("system.")]


def _each(names: Iterable[str], kind: str, what: str, most: int = 12) -> dict[str, str]:
    """Series of the first ones: more lines would be a tangle."""
    return {f"{kind}/{name}/{what}": name for name in [*names][:most]}
