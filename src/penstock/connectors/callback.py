"""`callback`: a Python function of the user's, called in the worker."""

import importlib.util
import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from penstock.connectors.api import About, Capabilities, Connector, Options, ShownBy
from penstock.connectors.permissions import Permissions
from penstock.connectors.sink_api import Block, NonVotingSink, Row, SinkLost, rows_of
from penstock.connectors.tables import SchemaOf
from penstock.connectors.threaded import BlockByBlock
from penstock.connectors.url_forms import UrlForm, function
from penstock.core.types import Guarantee

log = logging.getLogger(__name__)

Function = Callable[[str, list[Row]], object]


class CallbackOptions(Options):
    """`FUNCTION(name, rows)` is called for each block of an epoch, in a thread of the worker. `name` is
    `PIPELINE:INCARNATION:EPOCH/BLOCK`, and is the same when the block is delivered again. `rows` is a list of tuples
    `(id, event_time_us, key, value)`: `id` is the number of payload bytes before this event, `event_time_us` is None
    for an event without a time. When the function raises an exception, the block is delivered again, and the file is
    loaded again first.

    The function has all rights of the worker. A worker refuses this type unless it was started with
    `--allow-callbacks`; the worker that `penstock run` starts is its user's own, and allows it.
    """

    path: Path
    """The Python file. A relative path starts in the directory where the worker was started."""
    function: Annotated[str, Field(pattern=r"^[^\W\d]\w*$")]
    """The name of the function in it: a plain function, not a coroutine."""


class Callback(Connector[CallbackOptions]):
    """At least once: the function has returned for every block. After a crash it may be called again for some."""

    about = About(
        "callback",
        "Calls a Python function in the worker.",
        CallbackOptions,
        Capabilities(
            sink=Guarantee.AT_LEAST_ONCE,
            takes_epochs=True,
            on_stream_started="Opens every stream.",
            interceptors=frozenset(),
        ),
        example={"path": "alarms.py", "function": "on_rows"},
        url=UrlForm(written="callback:PATH.py:FUNCTION", place=function, fields=("path", "function")),
        shown_by=ShownBy(
            sink="tests/application/test_sink_kills.py::test_every_value_reaches_programs_functions_and_segments",
        ),
    )

    @classmethod
    def check_permitted(cls, options: CallbackOptions, permissions: Permissions) -> None:
        permissions.check_callbacks()
        super().check_permitted(options, permissions)

    def make_sink(self, name: str, schema: SchemaOf) -> NonVotingSink:  # noqa: ARG002
        return BlockByBlock(_Caller(self.options), name)


class _Caller:
    """Loads the file for the first call, and again after every failure: it may have been fixed."""

    def __init__(self, options: CallbackOptions) -> None:
        self._options = options
        self._callback: Function | None = None
        self._logged = ""

    def take(self, name: str, block: Block) -> None:
        try:
            if self._callback is None:
                self._callback = _load(self._options)
            self._callback(name, rows_of(block))
            self._logged = ""
        except SinkLost:
            raise
        except Exception as error:
            self._callback = None
            if repr(error) != self._logged:  # the traceback: once, however often it fails
                log.exception("%s failed", self._options.function)
            self._logged = repr(error)
            place = f"{self._options.path}:{self._options.function}"
            raise SinkLost(f"{place} failed: {type(error).__name__}: {error}") from error

    def interrupt(self) -> None:
        """Does nothing: a running Python function cannot be interrupted."""

    def close(self) -> None:
        self._callback = None


def _load(options: CallbackOptions) -> Function:
    path, name = options.path, options.function
    if not path.is_file():
        raise SinkLost(f"{path.absolute()} not found")
    spec = importlib.util.spec_from_file_location(f"penstock_callback_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SinkLost(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    callback = getattr(module, name, None)
    if not callable(callback):
        raise SinkLost(f"{path} has no function {name}")
    if inspect.iscoroutinefunction(callback):
        raise SinkLost(f"{path}:{name} is a coroutine function: use a plain function, which is called in a thread")
    loaded: Function = callback
    return loaded
