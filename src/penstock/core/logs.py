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
    """Writes to the present sys.stderr: a live table on a terminal replaces it for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # it is closed: there is nowhere to report that
            pass


def set_up_logging() -> None:
    """Send warnings and errors of this process to stderr. This is the handler of last resort: user code that sets up
    logging itself, before or later, takes precedence.
    """
    handler = _Stderr(logging.WARNING)
    handler.setFormatter(_Formatter(_FORMAT))
    logging.lastResort = handler


def log_line(text: str, name: str, level: int = logging.INFO) -> str:
    """What a command reports while it runs, as log lines: for output that is not watched on a terminal."""
    record = logging.LogRecord(name, level, "", 0, text, None, None)
    return _Formatter(_FORMAT).format(record)
