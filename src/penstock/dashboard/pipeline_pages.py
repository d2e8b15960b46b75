"""The page of a pipeline with its epochs, and the page of a sink with its rounds and votes."""

import time
from typing import Any

from nicegui import ui

from penstock.core.errors import PenstockError, RequestError
from penstock.core.sizes import show_size
from penstock.dashboard import charts
from penstock.dashboard.facts import pipeline_facts, sink_facts
from penstock.dashboard.flow_picture import link
from penstock.dashboard.frame import (
    chart,
    confirmed,
    facts,
    fill,
    live,
    pair,
    show_chart,
    table,
    title,
    told,
    troubles,
)
from penstock.dashboard.session import Session
from penstock.protocol.api.delivery import EpochStatus, SinkStatus, Waiting
from penstock.protocol.api.status import OperatorStatus

# A pipeline.

_UNDELIVERED = (("epoch", "epoch#"), ("state", "state"), ("size", "size~"), ("waits", "waits for"))
_OPERATORS = (
    ("operator", "operator"),
    ("windows", "open windows#"),
    ("keys", "keys#"),
    ("state", "state~"),
    ("late", "late events#"),
)
_HISTORY = ("rows_in", "rows_out", "latency_seconds", "watermark_lag_seconds", "state_bytes", "open_windows")


async def pipeline(session: Session, name: str) -> None:
    ui.label(f"Pipeline {name}").classes("text-xl font-bold")
    body = ui.column().classes("w-full")
    with pair():
        line, epochs = chart("h-72"), chart("h-72")
        rows, latency = chart(), chart()
        watermark, windows, state = chart(), chart(), chart()
    title("Epochs that are not delivered everywhere")
    waiting = table(_UNDELIVERED, "epoch", empty="None: every sink has all epochs.")
    title("Windows and state")
    operators = table(_OPERATORS, "operator", empty="No operator of penstock.windows has reported any state.")
    key = f"pipeline/{name}"

    async def update() -> None:
        status = await session.ask(lambda client: client.status())
        history = await session.history(*(f"{key}/{one}" for one in _HISTORY))
        found = next((one for one in status.pipelines if one.name == name), None)
        if found is None:
            raise RequestError(f"there is no pipeline {name!r}", "It appears when Spark has started.")
        undelivered = await session.ask(lambda client: client.epochs(name))
        body.clear()
        with body:
            troubles(str(one) for one in status.blockages if one.pipeline == name and one.is_blocking)
            facts([*pipeline_facts(found, status)])
            ui.link("Its dead letters", link("dead-letters", name=name))
        past = history.epochs.get(name, ())
        show_chart(line, charts.timeline(past, time.time(), found.running_epoch, found.running_seconds))
        show_chart(epochs, charts.epoch_bars(past))
        show_chart(rows, charts.over_time(history, {f"{key}/rows_in": "in", f"{key}/rows_out": "out"}, "rows/s"))
        show_chart(
            latency, charts.over_time(history, {f"{key}/latency_seconds": "latency"}, "latency from arrival", "s")
        )
        lag = {f"{key}/watermark_lag_seconds": "watermark"}
        show_chart(watermark, charts.over_time(history, lag, "watermark behind the clock", "s"))
        open_windows = {f"{key}/open_windows": "open windows"}
        show_chart(windows, charts.over_time(history, open_windows, "open windows"))
        show_chart(state, charts.over_time(history, {f"{key}/state_bytes": "state"}, "state of windows", "B"))
        fill(waiting, [_undelivered_row(one) for one in undelivered])
        fill(operators, [_operator_row(one) for one in status.windows if one.pipeline == name])

    await live(update)


def _undelivered_row(one: EpochStatus) -> dict[str, Any]:
    return {
        "epoch": one.epoch,
        "state": one.state.lower(),
        "size": show_size(one.bytes),
        "waits": "; ".join(map(_waits, one.waiting)),
    }


def _waits(one: Waiting) -> str:
    """Which sink the epoch waits for, and what has happened so far."""
    tried = f", attempt {one.attempts}" if one.attempts > 1 else ""
    later = f", again in {one.retry_seconds:.0f} s" if one.retry_seconds > 0 else ""
    return f"{one.sink}{tried}{later}" + (f": {one.reason}" if one.reason else "")


def _operator_row(one: OperatorStatus) -> dict[str, Any]:
    return {
        "operator": one.operator,
        "windows": one.waiting,
        "keys": one.keys,
        "state": show_size(one.state_bytes),
        "late": one.late_kept + one.late_dropped,
    }


# A sink.

_ROUNDS = (
    ("epoch", "epoch#"),
    ("round", "round"),
    ("size", "size~"),
    ("here", "this sink"),
    ("others", "waits also for"),
)
_VOTERS = (("sink", "sink"), ("part", "takes part"), ("state", "state"), ("reason", "reason"))
_VOTES = {
    "IN ROUND": "asked, has not voted yet",
    "VOTED": "voted yes, waits for the others",
    "REFUSED": "voted no",
    "WAITING": "cannot be reached, asked again later",
    "READY": "ready for the next epoch",
    "CONNECTING": "connecting",
    "DIVERGED": "its data do not match the ledger",
}


async def sink(session: Session, pipeline_name: str, name: str) -> None:
    ui.label(f"Sink {name} of {pipeline_name}").classes("text-xl font-bold")
    body = ui.column().classes("w-full")
    if session.may("deploy"):
        ui.button("Try again now", on_click=lambda: _retry(session, pipeline_name)).props("no-caps outline")
    rows = chart()
    title("Rounds", "Epochs that this sink has not received, oldest first. Each is delivered in a round of its own.")
    rounds = table(_ROUNDS, "epoch", empty="None: it has received every epoch.")
    title(f"Votes of the sinks of {pipeline_name}", "All sinks that vote commit an epoch, or none does.")
    votes = table(_VOTERS, "sink")

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
            blocking = [one for one in status.blockages if one.is_blocking]
            at, of = (pipeline_name, name), f"connector {found.url}"
            troubles(str(one) for one in blocking if one.is_at_sink(*at) or one.link == of)
            facts([*sink_facts(found, status)])
        show_chart(rows, charts.over_time(history, {f"{key}/rows": "rows"}, "delivered, rows/s"))
        lacking = [one for one in undelivered if any(each.sink == name for each in one.waiting)]
        fill(rounds, [_round_row(one, name) for one in lacking])
        fill(votes, [_vote_row(one) for one in status.sinks if one.pipeline == pipeline_name])

    await live(update)


def _round_row(one: EpochStatus, sink_name: str) -> dict[str, Any]:
    return {
        "epoch": one.epoch,
        "round": one.state.lower(),
        "size": show_size(one.bytes),
        "here": "; ".join(_waits(each) for each in one.waiting if each.sink == sink_name),
        "others": ", ".join(each.sink for each in one.waiting if each.sink != sink_name),
    }


def _vote_row(one: SinkStatus) -> dict[str, Any]:
    return {
        "sink": one.sink,
        "part": "votes" if one.votes else "follows the decision",
        "state": _VOTES.get(one.state, one.state.lower()) if one.votes else one.state.lower(),
        "reason": one.reason,
    }


async def _retry(session: Session, pipeline_name: str) -> None:
    if not await confirmed(f"Deliver the next epoch of {pipeline_name} now?", "Try again now"):
        return
    try:
        await session.change(lambda client: client.retry(pipeline_name))
    except PenstockError as error:
        told(error)
    else:
        ui.notify("The next attempt starts now", type="positive")
