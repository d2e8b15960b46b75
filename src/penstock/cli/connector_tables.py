"""How people see the connectors of an application: what each does, and who keeps its streams from sending."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from penstock.cli.sizes import show_size

_COLOURS = {"connected": "green", "disconnected": "red", "failed": "red", "paused": "yellow", "draining": "yellow"}


def connector_table(connectors: Sequence[dict[str, Any]], application: dict[str, Any]) -> Table:
    title = f"application, revision {application['revision']}: {application['state']}"
    columns = ("connector", "type", "state", "streams", "waiting", "in", "out", "letters", "held", "guarantee")
    table = Table(*columns, title=title, title_justify="left", title_style="bold")
    for one in connectors:
        state = "paused" if one["paused"] else one["state"]
        shown = f"[{_COLOURS.get(state, 'default')}]{state}[/]"
        counts = (f"{one[key]:,}" for key in ("streams", "waiting_streams", "events_in", "events_out", "letters"))
        table.add_row(
            *(escape(one["name"]), escape(one["type"]), shown, *counts),
            *(show_size(one["held_bytes"]), _guarantee(one["guarantee"])),
        )
    return table


def connector_troubles(connectors: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences: what is wrong with a connector, and who holds which stream."""
    return [sentence for one in connectors for sentence in _sentences(one)]


def _sentences(one: dict[str, Any]) -> Iterator[str]:
    if one["reason"]:
        yield f"connector {one['name']} is {one['state']}: {one['reason']}"
    if one["takes"] and one["takes"] not in one["reason"]:
        yield f"connector {one['name']} takes nothing: {one['takes']}"
    for closed in one["closed_streams"]:
        stream = f"stream #{closed['stream_id']} of {closed['connector']}"
        yield f"connector {one['name']} has closed {stream}: {closed['why']}"
    if (more := one["closed_count"] - len(one["closed_streams"])) > 0:
        yield f"connector {one['name']} has closed {more:,} more streams"
    for held in one["held_streams"]:
        yield f"stream {held['stream']} of {one['name']} waits: {held['why']}"
    if (more := one["waiting_streams"] - len(one["held_streams"])) > 0:
        yield f"and {more:,} more streams of {one['name']}"


def _guarantee(guarantee: dict[str, str]) -> str:
    return ", ".join(f"{port}: {promise}" for port, promise in guarantee.items())
