"""Options of charts, from a worker's history. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.protocol.api.history import EpochTimes, WorkerHistory

EPOCHS_SHOWN = 40
_PHASES = ("waiting", "Spark", "delivery")
"""Of an epoch: from the arrival of its first event to the cut, from the cut to the merge, from there to completion."""

_GREY = "#888"
"""Readable on light and on dark."""


_FAINT = "#8883"


def _titled(title: str) -> dict[str, Any]:
    return {
        "animation": False,
        "title": {"text": title, "left": 4, "top": 0, "textStyle": {"color": _GREY, "fontSize": 13}},
        "tooltip": {"trigger": "axis"},
        "legend": {"top": 0, "right": 8, "type": "scroll", "left": "40%", "textStyle": {"color": _GREY}},
        "grid": {"left": 8, "right": 28, "top": 32, "bottom": 4, "containLabel": True},
    }


def over_time(history: WorkerHistory, series: Mapping[str, str], title: str) -> dict[str, Any]:
    """A line for each series that the history has, under the name it is given here."""
    times = [round(time * 1000) for time in history.times]
    lines = [
        {
            "name": title,
            "type": "line",
            "showSymbol": False,
            "sampling": "lttb",
            "data": [[time, value] for time, value in zip(times, history.series[key], strict=True)],
        }
        for key, title in series.items()
        if key in history.series
    ]
    return {
        **_titled(title if lines else f"{title}: nothing yet"),
        "xAxis": {"type": "time", "splitLine": {"show": False}, "axisLabel": {"hideOverlap": True}},
        "yAxis": {"type": "value", "min": 0, "splitLine": {"lineStyle": {"color": _FAINT}}},
        "series": lines,
    }


def epoch_bars(epochs: Sequence[EpochTimes]) -> dict[str, Any]:
    """The last epochs as stacked bars: where the time of each went, in seconds."""
    shown = epochs[-EPOCHS_SHOWN:]
    return {
        **_titled("seconds of each epoch" if shown else "epochs: none complete yet"),
        "tooltip": {"trigger": "axis", "axisPointer": {"type": "shadow"}},
        "xAxis": {"type": "category", "data": [str(one.number) for one in shown]},
        "yAxis": {"type": "value", "splitLine": {"lineStyle": {"color": _FAINT}}},
        "series": [
            {
                "name": name,
                "type": "bar",
                "stack": "epoch",
                "barMaxWidth": 40,
                "data": [phases(one)[number] for one in shown],
            }
            for number, name in enumerate(_PHASES)
        ],
    }


def phases(epoch: EpochTimes) -> tuple[float, float, float]:
    """In seconds, as `_PHASES` names them."""
    merged = epoch.complete if epoch.merged is None else epoch.merged
    arrived = epoch.cut if epoch.arrived is None else min(epoch.arrived, epoch.cut)
    waiting, spark, delivery = epoch.cut - arrived, merged - epoch.cut, epoch.complete - merged
    return round(waiting, 3), round(spark, 3), round(delivery, 3)
