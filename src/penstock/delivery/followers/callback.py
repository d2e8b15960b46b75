"""`callback:PATH.py:FUNCTION`: a function of the user's, called inside of the worker."""

import importlib.util
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.delivery.block import Block
from penstock.delivery.followers.block_by_block import BlockByBlock
from penstock.delivery.followers.rows import Row, rows_of
from penstock.delivery.sink import SinkLost

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
