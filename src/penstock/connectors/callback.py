"""`callback:PATH.py:FUNCTION`: a function of the user's, called inside of the worker."""

import base64
import importlib.util
import inspect
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from penstock.connectors.sink_api import Block, SinkLost
from penstock.connectors.threaded import BlockByBlock
from penstock.protocol.stored.event import NO_TIME

# The events of a block as rows: tuples for functions, lines for what takes text.


class Row(NamedTuple):
    id: int
    """Payload bytes before it in the sink's history: the same whenever it is delivered again."""
    event_time_us: int | None
    key: bytes
    value: bytes


class RowFormat(Enum):
    LINES = "lines"
    """The values, each with a newline behind it: for values that have none inside."""
    JSON = "json"
    """An object for each event, each on a line of its own, whatever the values are."""

    def encode(self, block: Block) -> bytes:
        if self is RowFormat.JSON:
            return b"".join(map(_as_json, rows_of(block)))
        return b"\n".join([*block.values.rows(), b""])


def rows_of(block: Block) -> list[Row]:
    times: list[int | None] = [None if time == NO_TIME else time for time in block.times.tolist()]
    rows, message_id = [], block.first_id
    for time, key, value in zip(times, block.keys.rows(), block.values.rows(), strict=True):
        rows.append(Row(message_id, time, key, value))
        message_id += len(value)
    return rows


def _as_json(row: Row) -> bytes:
    line = {"id": row.id, "event_time_us": row.event_time_us} | _text("key", row.key) | _text("value", row.value)
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text(name: str, data: bytes) -> dict[str, str]:
    """As it is, or in base64 under another name where it is no UTF-8."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


log = logging.getLogger(__name__)

Callback = Callable[[str, list[Row]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackOptions:
    path: Path
    function: str


class CallbackSink(BlockByBlock):
    """At least once: the function has returned for every block, and may be called again for one after a crash. It is
    called in a thread that is always the same one while the worker runs.
    """

    def __init__(self, options: CallbackOptions, name: str) -> None:
        super().__init__(_Caller(options), name)


class _Caller:
    """The file is run at the first call, and again after every failure: it may have been mended."""

    def __init__(self, options: CallbackOptions) -> None:
        self._options = options
        self._callback: Callback | None = None
        self._said = ""

    def take(self, name: str, block: Block) -> None:
        try:
            if self._callback is None:
                self._callback = _load(self._options)
            self._callback(name, rows_of(block))
            self._said = ""
        except SinkLost:
            raise
        except Exception as error:
            self._callback = None
            if repr(error) != self._said:  # where it failed: once, however often it does
                log.exception("%s failed", self._options.function)
            self._said = repr(error)
            place = f"{self._options.path}:{self._options.function}"
            raise SinkLost(f"{place} failed: {type(error).__name__}: {error}") from error

    def interrupt(self) -> None:
        """The function is waited for: nobody but its author knows how to end it."""

    def close(self) -> None:
        self._callback = None


def _load(options: CallbackOptions) -> Callback:
    path, name = options.path, options.function
    if not path.is_file():
        raise SinkLost(f"there is no file {path.absolute()}")
    spec = importlib.util.spec_from_file_location(f"penstock_callback_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SinkLost(f"{path} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    callback = getattr(module, name, None)
    if not callable(callback):
        raise SinkLost(f"{path} has no function {name}")
    if inspect.iscoroutinefunction(callback):
        raise SinkLost(f"{path}:{name} is a coroutine function; a plain one is called, in a thread of its own")
    loaded: Callback = callback
    return loaded
