"""Log lines, in the same format in every process: `2026-03-01T09:30:00.250Z WARNING penstock.store.spares: what
happened`.

Much of what is logged comes from peers: names, paths, error texts. A peer cannot forge a line, because control
characters are escaped and continuation lines are indented; and it cannot fill the disk, because lines are truncated,
lines of one kind are limited, and files rotate. Values that a configuration marks as secrets are never logged.
"""

import json
import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from logging.handlers import RotatingFileHandler
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import NamedTuple, Protocol, TypeAlias
from weakref import ref

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

QUOTED_CHARS_MAX = 300
"""How much of a peer's text is logged: enough for any sentence."""
LINE_CHARS_MAX = 4000
TRACEBACK_CHARS_MAX = 16_000

LINES_PER_WINDOW = 20
WINDOW_SECONDS = 10.0
"""At most this many lines of one kind are written per window; the rest is only counted."""
KINDS_MAX = 500
"""Kinds that are counted separately. Messages are templates, so there are few; any beyond this share one count."""

audit_log = logging.getLogger("penstock.audit")
"""The audit log, a line for each administrative action: who, from where, what, and the outcome."""

FILE_BYTES_MAX = 10 << 20
FILES_KEPT = 3
"""A log takes no more than 40 MiB: the file itself, and three older ones."""


def quoted(text: object, chars_max: int = QUOTED_CHARS_MAX) -> str:
    """A peer's text for a log line or a status: quoted, without control characters, truncated."""
    whole = _without_secrets(str(text))
    shown = escaped(whole[:chars_max]).replace('"', '\\"')
    return f'"{shown}"' if len(whole) <= chars_max else f'"{shown}…" ({len(whole)} characters)'


def one_line(text: object, chars_max: int = LINE_CHARS_MAX) -> str:
    """A sentence that may contain a peer's text: without control characters, truncated."""
    whole = _without_secrets(str(text))
    shown = escaped(whole[:chars_max])
    return shown if len(whole) <= chars_max else f"{shown}… ({len(whole)} characters)"


def escaped(text: str) -> str:
    """The text without anything that ends a line or controls a terminal."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


# Values that must never be logged. Checked for every line, because libraries log errors too, unaware of secrets.


class KnowsSecrets(Protocol):
    @property
    def hidden_in_logs(self) -> Mapping[str, str]:
        """The replacement for each secret text. The texts are in lower case, and matched case-insensitively."""
        ...


class _Secrets(NamedTuple):
    """Immutable, and replaced as a whole: several threads may be formatting lines at the same time."""

    holders: tuple[ref[KnowsSecrets], ...] = ()
    shown_instead: Mapping[str, str] = {}
    pattern: re.Pattern[str] | None = None


_secrets = _Secrets()
_secrets_lock = Lock()


def hide_in_logs(holder: KnowsSecrets) -> None:
    """Hide these texts as long as the holder exists."""
    global _secrets  # noqa: PLW0603
    with _secrets_lock:
        living = [one for known in _secrets.holders if (one := known()) is not None and one is not holder]
        shown_instead = {text: shown for one in (*living, holder) for text, shown in one.hidden_in_logs.items()}
        _secrets = _Secrets(tuple(map(ref, (*living, holder))), shown_instead, any_of(shown_instead))


def any_of(texts: Collection[str]) -> re.Pattern[str] | None:
    """A pattern that finds the longest of the texts, ignoring case."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE) if longest_first else None


def _without_secrets(text: str) -> str:
    known = _secrets
    if known.pattern is None:
        return text
    return known.pattern.sub(lambda found: known.shown_instead.get(found[0].lower(), "…"), text)


_ExceptionInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class _Times(logging.Formatter):
    """Times in ISO 8601 and UTC, so that lines of several processes and machines can be sorted together."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        at = datetime.fromtimestamp(record.created, UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Formatter(_Times):
    """One line per record, whatever text a peer has put into it, and without secrets."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: _ExceptionInfo) -> str:  # noqa: N802
        """Indented, because the text of an exception may come from a peer and look like a log line."""
        text = _without_secrets(super().formatException(ei))
        if len(text) > TRACEBACK_CHARS_MAX:
            text = f"{text[: TRACEBACK_CHARS_MAX // 2]}\n…\n{text[-TRACEBACK_CHARS_MAX // 2 :]}"
        return "\n".join(f"    {escaped(line)}" for line in text.splitlines())


class _JsonFormatter(_Formatter):
    """One JSON object per record, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        shown = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": one_line(record.getMessage()),
        }
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return json.dumps(shown, ensure_ascii=False)


_Kind: TypeAlias = tuple[str, int, str]


@dataclass(slots=True)
class _Window:
    began: float
    lines: int = 0
    left_out: int = 0


class LineLimit:
    """Limits the lines of each kind: the same logger, level and message template."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[_Kind, _Window] = {}
        self._over: deque[tuple[_Kind, int]] = deque()

    def admits(self, record: logging.LogRecord) -> bool:
        if record.name == audit_log.name and record.levelno == logging.INFO:
            return True  # the audit log is always complete
        now = self._clock()
        self._close(now)
        kind = (record.name, record.levelno, str(record.msg))
        if kind not in self._windows and len(self._windows) >= KINDS_MAX:
            kind = ("penstock", record.levelno, "other lines")
        window = self._windows.setdefault(kind, _Window(now))
        if window.lines >= LINES_PER_WINDOW:
            window.left_out += 1
            return False
        window.lines += 1
        return True

    def left_out(self) -> list[logging.LogRecord]:
        """One line for each kind that exceeded its limit in a window that is now over."""
        lines = [_left_out(kind, count) for kind, count in self._over]
        self._over.clear()
        return lines

    def _close(self, now: float) -> None:
        """Windows are ordered by their start."""
        while self._windows:
            kind, window = next(iter(self._windows.items()))
            if now - window.began < WINDOW_SECONDS:
                break
            del self._windows[kind]
            if window.left_out:
                self._over.append((kind, window.left_out))


def _left_out(kind: _Kind, count: int) -> logging.LogRecord:
    name, level, template = kind
    text, values = "%d more lines like %s were left out within %.0f s", (count, quoted(template, 100), WINDOW_SECONDS)
    return logging.LogRecord(name, level, "", 0, text, values, None)


class _Stderr(logging.Handler):
    """Writes to the current sys.stderr: a live table on a terminal replaces it temporarily."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._limit = LineLimit()

    def emit(self, record: logging.LogRecord) -> None:
        admitted = self._limit.admits(record)
        try:
            for one in [*self._limit.left_out(), *([record] if admitted else [])]:
                sys.stderr.write(f"{self.format(one)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # stderr is closed: there is nowhere to report that
            pass


class _LogFile(RotatingFileHandler):
    """A rotating file. If the process's stdout or stderr go to the same file, they rotate with it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, encoding="utf-8", errors="replace")
        self._limit = LineLimit()

    def emit(self, record: logging.LogRecord) -> None:
        admitted = self._limit.admits(record)
        for one in [*self._limit.left_out(), *([record] if admitted else [])]:
            super().emit(one)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """The file cannot be written, most likely because the disk is full: write the line to stderr instead."""
        with suppress(OSError, ValueError):  # there is nowhere to report that
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()

    def doRollover(self) -> None:  # noqa: N802
        same = [fd for fd in (1, 2) if self._is_ours(fd)]
        super().doRollover()
        assert self.stream is not None
        for fd in same:
            os.dup2(self.stream.fileno(), fd)

    def _is_ours(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), Path(self.baseFilename).stat())
        except OSError:  # closed
            return False


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(Enum):
    TEXT = "text"
    JSON = "json"


def set_up_logging(
    file: Path | None = None, level: LogLevel = LogLevel.WARNING, form: LogFormat = LogFormat.TEXT
) -> None:
    """Send what Penstock logs in this process, and others' warnings, to stderr or to a file that rotates. This is the
    handler of last resort: user code that sets up logging itself, before or later, takes precedence.
    """
    handler: logging.Handler = _Stderr(logging.NOTSET) if file is None else _LogFile(file)
    handler.setFormatter(_JsonFormatter() if form is LogFormat.JSON else _Formatter(_FORMAT))
    logging.lastResort = handler
    set_log_level(level)


def set_log_level(level: LogLevel) -> None:
    """Set the level of Penstock's loggers. The audit log is written at every level."""
    logging.getLogger("penstock").setLevel(level.name)
    audit_log.setLevel(logging.INFO)


def log_line(text: str, name: str, level: int = logging.INFO, form: LogFormat = LogFormat.TEXT) -> str:
    """Log what a command reports while it runs, for output that does not go to a terminal. Tracebacks of the user's
    code keep their line breaks.
    """
    record = logging.LogRecord(name, level, "", 0, text, None, None)
    return (_JsonFormatter() if form is LogFormat.JSON else _Times(_FORMAT)).format(record)
