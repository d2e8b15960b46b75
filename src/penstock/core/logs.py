"""Log lines, alike in every process: `2026-03-01T09:30:00.250Z WARNING penstock.store.spares: what happened`.

Much of what is logged comes from peers: names, paths, error texts. None of it can forge a line, because control
characters are escaped and what follows a line is indented; and none can fill the disk, because lines are cut, lines of
one kind are limited, and files rotate. Values that a configuration refers to as secrets are in no line.
"""

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Protocol, TypeAlias
from weakref import WeakSet

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

QUOTED_CHARS_MAX = 300
"""Of a peer's text: enough for any sentence."""
LINE_CHARS_MAX = 4000
TRACEBACK_CHARS_MAX = 16_000

LINES_PER_WINDOW = 20
WINDOW_SECONDS = 10.0
"""So many lines of one kind are written in so much time; the rest is counted."""
KINDS_MAX = 500
"""Kinds that are counted one by one. Messages are templates, so there are few; beyond that they share one count."""

FILE_BYTES_MAX = 10 << 20
FILES_KEPT = 3
"""A log takes no more than 40 MiB: the file itself, and three older ones."""


def quoted(text: object, chars_max: int = QUOTED_CHARS_MAX) -> str:
    """A peer's text for a log line or a status: in quotes, without control characters, cut."""
    whole = str(text)
    shown = escaped(whole[:chars_max]).replace('"', '\\"')
    return f'"{shown}"' if len(whole) <= chars_max else f'"{shown}…" ({len(whole)} characters)'


def one_line(text: object, chars_max: int = LINE_CHARS_MAX) -> str:
    """A sentence that may have a peer's text in it: without control characters, cut."""
    whole = str(text)
    shown = escaped(whole[:chars_max])
    return shown if len(whole) <= chars_max else f"{shown}… ({len(whole)} characters)"


def escaped(text: str) -> str:
    """Without anything that ends a line or controls a terminal."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


_ExceptionInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class _Times(logging.Formatter):
    """Times as ISO 8601 writes them, in UTC: the lines of several processes and machines can be sorted together."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        at = datetime.fromtimestamp(record.created, UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class HidesSecrets(Protocol):
    def text(self, text: str) -> str:
        """The same text without the secrets that this object knows."""
        ...


_hiding: WeakSet[HidesSecrets] = WeakSet()
_hiding_lock = Lock()


def hide_in_logs(secrets: HidesSecrets) -> None:
    """Pass every line through it, as long as it exists: libraries log errors, too, and know of no secrets."""
    with _hiding_lock:
        _hiding.add(secrets)


class _Formatter(_Times):
    """One line for each record, whatever a peer has put into it, and without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        with _hiding_lock:
            known = [*_hiding]
        for secrets in known:
            text = secrets.text(text)
        return text

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return one_line(super().formatMessage(record))

    def formatException(self, ei: _ExceptionInfo) -> str:  # noqa: N802
        """Indented: the text of an exception may be a peer's, and look like a line."""
        text = super().formatException(ei)
        if len(text) > TRACEBACK_CHARS_MAX:
            text = f"{text[: TRACEBACK_CHARS_MAX // 2]}\n…\n{text[-TRACEBACK_CHARS_MAX // 2 :]}"
        return "\n".join(f"    {escaped(line)}" for line in text.splitlines())


_Kind: TypeAlias = tuple[str, int, str]


@dataclass(slots=True)
class _Window:
    began: float
    lines: int = 0
    left_out: int = 0


class LineLimit:
    """Limits the lines of each kind: of one logger, level and message template."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[_Kind, _Window] = {}
        self._over: deque[tuple[_Kind, int]] = deque()

    def admits(self, record: logging.LogRecord) -> bool:
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
        """A line for each kind of which some were left out, in a window that is over."""
        lines = [_left_out(kind, count) for kind, count in self._over]
        self._over.clear()
        return lines

    def _close(self, now: float) -> None:
        """They are in the order in which they began."""
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
    """Writes to the present sys.stderr: a live table on a terminal replaces it for a while."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._limit = LineLimit()

    def emit(self, record: logging.LogRecord) -> None:
        admitted = self._limit.admits(record)
        try:
            for one in [*self._limit.left_out(), *([record] if admitted else [])]:
                sys.stderr.write(f"{self.format(one)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # it is closed: there is nowhere to report that
            pass


class _LogFile(RotatingFileHandler):
    """A file that rotates. Standard output and error of the process, if they go to the same file, rotate with it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, encoding="utf-8", errors="replace")
        self._limit = LineLimit()

    def emit(self, record: logging.LogRecord) -> None:
        admitted = self._limit.admits(record)
        for one in [*self._limit.left_out(), *([record] if admitted else [])]:
            super().emit(one)

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


def set_up_logging(file: Path | None = None) -> None:
    """Send warnings and errors of this process to stderr, or to a file that rotates. This is the handler of last
    resort: user code that sets up logging itself, before or later, takes precedence.
    """
    handler: logging.Handler = _Stderr(logging.WARNING) if file is None else _LogFile(file)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_Formatter(_FORMAT))
    logging.lastResort = handler


def log_line(text: str, name: str, level: int = logging.INFO) -> str:
    """What a command reports while it runs, as log lines: for output that is not watched on a terminal. An error in the
    user's code keeps its lines.
    """
    record = logging.LogRecord(name, level, "", 0, text, None, None)
    return _Times(_FORMAT).format(record)
