"""`penstock.display`: the newest rows of a stream, in a notebook or a terminal, updated with every batch."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.core.errors import PenstockError, RequestError, Unavailable
from penstock.spark.run.failures import exception_text, failure_of
from penstock.spark.run.session import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_MAX = 1000
"""Rows that are kept and shown: a notebook with more of them becomes slow."""

_CELL_CHARACTERS_MAX = 80
_WAIT_SECONDS_MAX = 120.0
_LOOK_SECONDS = 0.1


class NewestRows:
    """A table of rows, which notebooks show as HTML and terminals as text."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], count: int) -> None:
        self._columns = columns
        self._rows = [[_text(value) for value in row] for row in rows]
        self._caption = f"the newest {len(rows):,} of {count:,} rows" if rows else "no rows yet"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self._columns)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self._rows)
        return f"<table><caption>{self._caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def __repr__(self) -> str:
        lines = [[*self._columns], *self._rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self._columns))]
        shown = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join([*(line.rstrip() for line in shown), f"({self._caption})"])


def _text(value: Any) -> str:
    """In one line, and not too long. Bytes that are text are shown as text."""
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode(errors="backslashreplace")
    text = " ".join(str(value).split())
    return text if len(text) <= _CELL_CHARACTERS_MAX else text[: _CELL_CHARACTERS_MAX - 1] + "…"


class LiveFrame:
    """A streaming DataFrame whose newest rows are shown until `stop`. A context manager."""

    def __init__(self, frame: DataFrame, rows: int, show: Callable[[NewestRows], None]) -> None:
        self._columns = frame.columns
        self._newest: deque[Sequence[Any]] = deque(maxlen=rows)
        self._count = 0
        self._show = show
        self._changed = threading.Condition()
        show(self.table)
        self.query = frame.writeStream.foreachBatch(self._take).start()

    @property
    def table(self) -> NewestRows:
        with self._changed:
            return NewestRows(self._columns, [*self._newest], self._count)

    @property
    def count(self) -> int:
        """How many rows have arrived."""
        return self._count

    def wait_for(self, count: int, seconds_max: float = _WAIT_SECONDS_MAX) -> None:
        """Returns when this many rows have arrived. Raises RequestError if the query fails, Unavailable if it takes too
        long.
        """
        deadline = time.monotonic() + seconds_max
        with self._changed:
            while not self._changed.wait_for(lambda: self._count >= count, _LOOK_SECONDS):
                if not self.query.isActive:
                    raise self._ended()
                if time.monotonic() > deadline:
                    raise Unavailable(f"{self._count:,} rows have arrived in {seconds_max:g} s, not {count:,}")

    def stop(self) -> None:
        """The last table stays. Idempotent."""
        self.query.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _take(self, batch: DataFrame, _: int) -> None:
        """Called by Spark, on a thread of its own. Only the newest rows leave the JVM."""
        count = batch.count()
        newest = batch.tail(self._newest.maxlen or 1) if count else []
        if newest:
            with self._changed:
                self._newest.extend(newest)
                self._count += count
                self._changed.notify_all()
            self._show(self.table)

    def _ended(self) -> PenstockError:
        exception = exception_text(self.query)
        if exception is None:
            return RequestError("the query was stopped", "Call penstock.display again.")
        failure = failure_of(exception)
        return RequestError(f"the query has failed\n{failure.text}", failure.hint)


def display(frame: DataFrame, rows: int = 10) -> LiveFrame:
    """Show the newest rows of a streaming DataFrame, updated with every batch: as a table in a notebook, as text in a
    terminal. It starts a query of its own, and returns at once; call `stop` on what it returns. Raises RequestError.
    """
    if not frame.isStreaming:
        raise RequestError("display() shows streams, and this DataFrame is not one", "Use frame.show().")
    if is_remote(frame.sparkSession):
        raise RequestError(
            "display() needs a Spark driver in this process, and this is a session of Spark Connect",
            "Use a session of your own: penstock.spark.run.session.build_session(name).",
        )
    if not 1 <= rows <= ROWS_MAX:
        raise RequestError(f"{rows} rows cannot be shown", f"Choose 1 to {ROWS_MAX}.")
    return LiveFrame(frame, rows, _notebook() or _print)


def _notebook() -> Callable[[NewestRows], None] | None:
    """What updates the output of the current cell; None outside a notebook."""
    try:
        from IPython import get_ipython
        from IPython.display import display as show
    except ImportError:
        return None
    if getattr(get_ipython(), "kernel", None) is None:
        return None
    handle: Any = show(display_id=True)  # type: ignore[no-untyped-call]
    update: Callable[[NewestRows], None] = handle.update
    return update


def _print(table: NewestRows) -> None:
    print(table, flush=True)  # noqa: T201  what it is for
