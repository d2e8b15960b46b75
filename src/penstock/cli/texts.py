"""Untrusted text, times, sizes and watermarks as shown on a terminal."""

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime

import typer
from rich.markup import escape
from rich.table import Table

from penstock.core import sizes
from penstock.core.durations import show_seconds
from penstock.core.errors import RequestError
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.stored.event import END_OF_TIME

_LAYOUT = "\n\t\r"
"""Control characters that are allowed in text."""


def printable(text: str) -> str:
    """On one line, without anything that a terminal would interpret as a command."""
    return "".join(repr(each)[1:-1] if _is_control(each) else each for each in text)


def is_plain(text: str) -> bool:
    """Whether a terminal can show it as it is, line by line."""
    return not any(_is_control(each) and each not in _LAYOUT for each in set(text))


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def shortened_in_the_middle(text: str, length: int) -> str:
    """Keeps both ends: names often share their start and differ at the end, or the other way round."""
    if len(text) <= length:
        return text
    end = (length - 1) // 2
    return f"{text[: length - 1 - end]}…{text[len(text) - end :]}"


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc"


# Event times as people read them, in UTC.


def show_time(us: int | None) -> str:
    """Times beyond the calendar as plain numbers."""
    if us is None:
        return ""
    if us == END_OF_TIME:
        return "end of time"
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{us} µs"


def show_clock_time(us: int | None) -> str:
    """Short: the time of day if it is today, else the date and the minute."""
    if us == END_OF_TIME:
        return "end"
    shown = show_time(us)
    today = datetime.now(UTC).strftime("%Y-%m-%d ")
    return shown.removeprefix(today) if shown.startswith(today) else shown[:16]


# Sizes on the command line.


def parse_size(text: str | int) -> int:
    """Bytes, for a typer option."""
    if isinstance(text, int):
        return text
    try:
        return sizes.parse_size(text)
    except RequestError as error:
        raise typer.BadParameter(f"{error}: {error.hint[0].lower()}{error.hint[1:].rstrip('.')}") from None


# Pipelines' watermarks: where each is, what blocks it, and since when.


def watermark_table(pipelines: Sequence[PipelineStatus]) -> Table:
    columns = ("pipeline", "watermark", "blocked by", "its time", "not moved for")
    table = Table(*columns, title="watermarks", title_justify="left", title_style="bold")
    for each in pipelines:
        blocker = each.watermark_blocked_by
        who = "" if blocker is None else printable(blocker.text())
        time = "" if blocker is None else show_time(blocker.time)
        unmoved = show_seconds(each.watermark_unmoved_seconds)
        table.add_row(escape(each.name), show_time(each.watermark) or "not known", escape(who), time, unmoved)
    return table


def show_epoch(epoch: int) -> str:
    return "-" if epoch == NO_EPOCH else str(epoch)
