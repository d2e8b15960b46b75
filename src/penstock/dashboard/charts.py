"""Options of charts, from a worker's history. Pure.

Series differ in colour, in the shape of their symbols and in their dashes, so they can be read without colours. Times
are UTC, as everywhere on the pages.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from penstock.core.sizes import size_unit
from penstock.protocol.api.history import EpochTimes, WorkerHistory

EPOCHS_SHOWN = 40
TIMELINE_EPOCHS = 12
_PHASES = ("until the cut", "Spark", "delivery")
"""Of an epoch: from the arrival of its first event to the cut, from the cut to the merge, from there to completion."""
_MERGE = "merge"
"""A mark: then the epoch is committed."""

_NOT_KEPT = "not kept: the worker has more series than its history has room for"

_GREY = "#848484"
"""A contrast of about 4.5 to 1, on the light page and on the dark one."""
_SHORTEST_SPAN_MS = 60_000
"""Of an axis of time."""
_MINUTES_SPAN = 900.0
"""A longer axis shows no seconds."""
_FAINT = "#8883"
_COLOURS = ("#3b82c4", "#d97706", "#0d9f6e", "#b5489b", "#8a7f2c", "#64748b")
"""Readable on both pages, and distinct for the colour-blind."""
_DASHES = ("solid", "dashed", "dotted")
_SYMBOLS = ("circle", "rect", "triangle", "diamond")
_PATTERNS: tuple[dict[str, Any] | None, ...] = (
    {"symbol": "rect", "dashArrayX": [2, 4], "dashArrayY": [2, 4], "rotation": 0.8, "color": "#0005"},
    None,
    {"symbol": "line", "dashArrayX": [1, 0], "dashArrayY": [2, 5], "rotation": -0.8, "color": "#0007"},
)
"""The pattern on the bars of each phase: dots, plain, lines."""


def _framed(title: str) -> dict[str, Any]:
    return {
        "animation": False,
        "useUTC": True,
        "color": list(_COLOURS),
        "title": {"text": title, "left": 4, "top": 0, "textStyle": {"color": _GREY, "fontSize": 13}},
        "tooltip": {"trigger": "axis", "confine": True},
        "legend": {"top": 22, "left": 0, "type": "scroll", "textStyle": {"color": _GREY}, "pageTextStyle": {}},
        "grid": {"left": 8, "right": 28, "top": 52, "bottom": 4, "containLabel": True},
    }


def _axis(kind: str, **more: Any) -> dict[str, Any]:
    label = {"color": _GREY, "hideOverlap": True, **more.pop("label", {})}
    return {
        "type": kind,
        "axisLabel": label,
        "axisLine": {"lineStyle": {"color": _GREY}},
        "splitLine": {"show": kind == "value", "lineStyle": {"color": _FAINT}},
        **more,
    }


def _nothing(title: str, why: str) -> dict[str, Any]:
    style = {"color": _GREY, "fontSize": 12}
    return {"title": {**_framed(title)["title"], "subtext": why, "itemGap": 9, "subtextStyle": style}, "series": []}


def over_time(history: WorkerHistory, series: Mapping[str, str], title: str, unit: str = "") -> dict[str, Any]:
    """A line for each series that the history has, under the name given here. The title shows the unit; for bytes, the
    unit fits the largest value. Series for which the worker has no room are counted.
    """
    found = {name: history.series[key] for key, name in series.items() if key in history.series}
    most = max((value for values in found.values() for value in values if value is not None), default=0.0)
    scale, unit = size_unit(most) if unit == "B" else (1, unit)
    times = [round(time * 1000) for time in history.times]
    styles = zip(found.items(), cycle(_DASHES), cycle(_SYMBOLS), strict=False)
    lines = [
        {
            "name": name,
            "type": "line",
            "symbol": symbol,
            "showSymbol": len(times) == 1,  # no line goes through it
            "lineStyle": {"type": dash},
            "sampling": "lttb",
            "data": [[time, _scaled(value, scale)] for time, value in zip(times, values, strict=True)],
        }
        for (name, values), dash, symbol in styles
    ]
    shown = f"{title}, {unit}" if unit else title
    not_kept = len({*series}.intersection(history.not_kept))
    if not lines:
        return _nothing(title, _NOT_KEPT if not_kept else "nothing in the last hour")
    if not_kept:
        shown += f" ({not_kept:,} more are not kept)"
    options = _framed(shown)
    options["legend"]["show"] = len(lines) > 1
    options["grid"]["top"] = 52 if len(lines) > 1 else 30
    axis = _axis("time", label={"formatter": "{HH}:{mm}" if _span(history) > _MINUTES_SPAN else "{HH}:{mm}:{ss}"})
    if times:  # the chart would choose a day or more around a single sample
        axis["min"] = min(times[0], times[-1] - _SHORTEST_SPAN_MS)
    return {**options, "xAxis": axis, "yAxis": _axis("value", min=0), "series": lines}


def _span(history: WorkerHistory) -> float:
    return history.times[-1] - history.times[0] if history.times else 0.0


def _scaled(value: float | None, scale: float) -> float | None:
    return value if value is None or scale == 1 else round(value / scale, 2)


def epoch_bars(epochs: Sequence[EpochTimes]) -> dict[str, Any]:
    """The last epochs as stacked bars: where the time of each went, in seconds."""
    shown = epochs[-EPOCHS_SHOWN:]
    if not shown:
        return _nothing("where the time of an epoch goes", "no epoch is complete yet")
    return {
        **_framed("where the time of an epoch goes, s"),
        "tooltip": {"trigger": "axis", "confine": True, "axisPointer": {"type": "shadow"}},
        "xAxis": _axis("category", data=[str(one.number) for one in shown]),
        "yAxis": _axis("value"),
        "series": _stacked([phases(one) for one in shown]),
    }


def timeline(
    epochs: Sequence[EpochTimes], now: float, running: int | None, running_seconds: float | None
) -> dict[str, Any]:
    """The last epochs and the one that Spark is processing, each on a line from the arrival of its first event to its
    completion, with a mark at the merge. Time runs from left to right; the right edge is now.
    """
    past = epochs[-TIMELINE_EPOCHS:]
    shown = [(str(one.number), max(0.0, now - one.complete), phases(one)) for one in past]
    if running is not None:
        shown.append((f"{running} runs", 0.0, (0.0, round(running_seconds or 0.0, 3), 0.0)))
    if not shown:
        return _nothing("the last epochs", "none yet")
    gap = {
        "name": "",
        "type": "bar",
        "stack": "epoch",
        "silent": True,
        "itemStyle": {"color": "transparent"},
        "tooltip": {"show": False},
        "data": [round(since, 3) for _, since, _ in shown],
    }
    merges = {
        "name": _MERGE,
        "type": "scatter",
        "symbol": "diamond",
        "symbolSize": 11,
        "itemStyle": {"color": _GREY, "borderColor": "#fff", "borderWidth": 1},
        "data": [[round(max(0.0, now - one.merged), 3), str(one.number)] for one in past if one.merged is not None],
    }
    options = _framed("the last epochs, seconds ago")
    options["legend"]["data"] = [*_PHASES, _MERGE]
    return {
        **options,
        "tooltip": {"trigger": "item", "confine": True},
        "xAxis": _axis("value", inverse=True),
        "yAxis": _axis("category", data=[name for name, _, _ in shown], inverse=True, position="left"),
        "series": [gap, *reversed(_stacked([each for *_, each in shown])), merges],
    }


def _stacked(times: Sequence[tuple[float, float, float]]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "type": "bar",
            "stack": "epoch",
            "barMaxWidth": 40,
            "barMinHeight": 2,
            "itemStyle": {"color": colour, **({"decal": pattern} if pattern else {})},
            "data": [each[number] for each in times],
        }
        for number, (name, colour, pattern) in enumerate(zip(_PHASES, _COLOURS, _PATTERNS, strict=False))
    ]


def phases(epoch: EpochTimes) -> tuple[float, float, float]:
    """In seconds, as `_PHASES` names them."""
    merged = epoch.complete if epoch.merged is None else epoch.merged
    arrived = epoch.cut if epoch.arrived is None else min(epoch.arrived, epoch.cut)
    waiting, spark, delivery = epoch.cut - arrived, merged - epoch.cut, epoch.complete - merged
    return round(waiting, 3), round(spark, 3), round(delivery, 3)
