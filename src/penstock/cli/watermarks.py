"""Pipelines' watermarks as people see them: where each is, what holds it back, and since when."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from penstock.cli.texts import printable
from penstock.cli.times import show_time
from penstock.coordinator.messages import PipelineStatus


def watermark_table(pipelines: Sequence[PipelineStatus]) -> Table:
    columns = ("pipeline", "watermark", "held back by", "its time", "not moved for")
    table = Table(*columns, title="watermarks", title_justify="left", title_style="bold")
    for each in pipelines:
        held = each.watermark_held
        who = "" if held is None else printable(held.text())
        time = "" if held is None else show_time(held.time)
        unmoved = show_seconds(each.watermark_unmoved_seconds)
        table.add_row(escape(each.name), show_time(each.watermark) or "not known", escape(who), time, unmoved)
    return table


def show_seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
