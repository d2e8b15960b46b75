"""Event times as people read them."""

from datetime import UTC, datetime


def show_time(us: int | None) -> str:
    """Those beyond the calendar as they are."""
    if us is None:
        return ""
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{us} µs"
