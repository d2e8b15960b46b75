"""Log lines, alike in every process: `2026-03-01T09:30:00.250Z WARNING penstock.store.spares: what happened`."""

import logging
import sys
from datetime import UTC, datetime

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Formatter(logging.Formatter):
    """Times as ISO 8601 writes them, in UTC: the lines of several processes and machines can be sorted together."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        at = datetime.fromtimestamp(record.created, UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Stderr(logging.Handler):
    """Writes to what sys.stderr is at the time: a live table on a terminal takes its place for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # it is closed: there is nowhere to say so
            pass


def set_up_logging() -> None:
    """Of this process: warnings and errors go to stderr. This is the handler of last resort: users' code that sets up
    logging itself, before or later, has its way.
    """
    handler = _Stderr(logging.WARNING)
    handler.setFormatter(_Formatter(_FORMAT))
    logging.lastResort = handler


def log_line(text: str, name: str, level: int = logging.INFO) -> str:
    """What a command reports while it runs, as it stands in a log: for output that nobody watches on a terminal."""
    record = logging.LogRecord(name, level, "", 0, text, None, None)
    return _Formatter(_FORMAT).format(record)
