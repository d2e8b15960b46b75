"""Event times as people read them, in UTC."""

from datetime import UTC, datetime

from penstock.protocol.stored.layout import END_OF_TIME


def show_time(us: int | None) -> str:
    """Those beyond the calendar as they are."""
    if us is None:
        return ""
    if us == END_OF_TIME:
        return "end of time"
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{us} µs"


def show_clock_time(us: int | None) -> str:
    """Short: the time of day for today's, else the date and the minute."""
    if us == END_OF_TIME:
        return "end"
    shown = show_time(us)
    today = datetime.now(UTC).strftime("%Y-%m-%d ")
    return shown.removeprefix(today) if shown.startswith(today) else shown[:16]
