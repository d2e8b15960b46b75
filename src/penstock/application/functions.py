"""Users' functions, named `file.py:function`; each version of a file is loaded as its own module."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.application.plan import OUT
from penstock.core.errors import RequestError
from penstock.spark.codecs.codec import Coding, Outlet, branches
from penstock.spark.pipelines import Pipeline
from penstock.spark.run.failures import shown_at_the_users_line
from penstock.spark.source.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, eq=False)
class UserFunction:
    call: Callable[..., Any]
    module: ModuleType
    sole: str | None
    """The parameter that the port `in` feeds."""

    def parameter(self, port: str) -> str:
        return self.sole if port == "in" and self.sole is not None else port


def load_function(spark: str, code: str) -> UserFunction:
    """Runs the file, unless this version of it has run already. Its folder is added to `sys.path`, as for a program.
    Raises RequestError at the user's line.
    """
    file, _, name = spark.rpartition(":")
    module = _module(Path(file), code)
    found = getattr(module, name, None)
    if isinstance(found, Pipeline):
        found = found.function
    if not callable(found):
        raise RequestError(f"{file} has no function {name!r}", "Write spark: file.py:function.")
    return UserFunction(found, module, _sole(found))


def _module(path: Path, code: str) -> ModuleType:
    name = f"{path.stem}_{code[:12]}" if code else path.stem
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise RequestError(f"Python file {path} not found", "It must be where penstock run is started.")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with shown_at_the_users_line(f"{path} cannot be loaded"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _sole(function: Callable[..., Any]) -> str | None:
    """The only parameter without a default, or else the only parameter."""
    parameters = inspect.signature(function).parameters.values()
    required = [one.name for one in parameters if one.default is one.empty]
    named = required or [one.name for one in parameters]
    return named[0] if len(named) == 1 else None


# What a pipeline of an application does on Spark: decode, call the user's function, encode; or just pass events on.


FUNCTION_COLUMNS = (*COLUMNS, "content_type", "metadata_json")
PASSING_COLUMNS = (*COLUMNS, "content_type")
"""The columns that sources load: of the metadata, only what is needed."""


@dataclass(frozen=True, slots=True, eq=False)
class Passing:
    """`system::passthrough`: events leave unchanged, or in the codec of their sinks. What its codec cannot decode is a
    dead letter.
    """

    codings: Mapping[str, Coding]
    outlets: Mapping[str, Outlet]

    def __call__(self, **inputs: DataFrame) -> DataFrame:
        from penstock.spark.codecs.decoder import decode
        from penstock.spark.codecs.outputs import passed

        (frame,) = inputs.values()
        return passed(decode(frame, branches(self.codings)), self.outlets, OUT)


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """A user's function between the codecs of its sources and those of its sinks."""

    function: UserFunction
    codings: Mapping[str, Mapping[str, Coding]]
    """By input and source."""
    outlets: Mapping[str, Outlet]

    def __call__(self, **inputs: DataFrame) -> Any:
        from pyspark.sql import DataFrame
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        from penstock.spark.codecs.outputs import attributes, leave, schemas
        from penstock.spark.outputs import Encoded

        frames = {port: self._arrived(port, frame) for port, frame in inputs.items()}
        given = frozenset(text for frame in frames.values() for text in attributes(frame).values())
        left = self.function.call(**{self.function.parameter(port): frame for port, frame in frames.items()})
        match left:
            case DataFrame():
                port = None if "port" in left.columns else OUT
                return Encoded(leave(left, self.outlets, port, given), schemas(left, self.outlets, port))
            case Mapping() if left and all(isinstance(frame, DataFrame) for frame in left.values()):
                ports = [leave(frame, self.outlets, self._known(port, frame), given) for port, frame in left.items()]
                united = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), ports)
                port_schemas = [schemas(frame, self.outlets, port).items() for port, frame in left.items()]
                return Encoded(united, dict(chain.from_iterable(port_schemas)))
            case DataStreamWriter():
                raise RequestError(
                    "the function returns a DataStreamWriter, which an application cannot use",
                    "Return a DataFrame, and link the port to a connector.",
                )
        raise RequestError(
            f"the function returns {type(left).__name__}", "Return a DataFrame, or a dict from ports to DataFrames."
        )

    def _arrived(self, port: str, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        from penstock.spark.codecs.decoder import decode

        parsed = frame.withColumn("metadata", functions.try_parse_json(frame["metadata_json"])).drop("metadata_json")
        return decode(parsed, branches(self.codings[port])).public()

    def _known(self, port: str, frame: DataFrame) -> str:
        if "port" in frame.columns:
            raise RequestError(
                f"the rows for the port {port!r} have a column `port` of their own",
                "Drop or rename it: it would be lost.",
            )
        if port not in self.outlets:
            raise RequestError(
                f"the function returns rows for the port {port!r}",
                f"There are: {', '.join(self.outlets)}; see outputs:.",
            )
        return port
