"""The pipelines of an application: users' functions, named `file.py:function`, each version of a file loaded as its own
module; what surrounds them on Spark; and the form that the Spark runner takes.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.application.plan import OUT, Plan, Types, plan_of, starting_in
from penstock.connectors.registry import CONNECTORS
from penstock.core.durations import parse_duration_ms
from penstock.core.errors import RequestError
from penstock.protocol.api.delivery import SinkSpec
from penstock.protocol.api.deployment import (
    PASSTHROUGH,
    Deployment,
    PipelineSpec,
    port_for,
)
from penstock.spark import codecs
from penstock.spark.codecs.codec import AS_IT_IS, Branch, Outlet, branches
from penstock.spark.pipeline_context import current_pipeline
from penstock.spark.pipelines import Pipeline, limits_of
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
    return user_function(found, module)


def user_function(call: Callable[..., Any], module: ModuleType) -> UserFunction:
    return UserFunction(call, module, _sole(call))


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

    branches: Sequence[Branch]
    outlets: Mapping[str, Outlet]

    def __call__(self, **inputs: DataFrame) -> Any:
        from penstock.spark.codecs.batch_decoder import Decoder
        from penstock.spark.codecs.decoder import numbered
        from penstock.spark.codecs.outputs import passed
        from penstock.spark.outputs import Encoded

        (frame,) = inputs.values()
        left = passed(numbered(frame, Decoder(self.branches, PASSING_COLUMNS)), self.outlets, OUT)
        return Encoded(left.frame, {}, left.plan)


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """A user's function between the codecs of its sources and those of its sinks."""

    function: UserFunction
    outlets: Mapping[str, Outlet]

    def __call__(self, **inputs: DataFrame) -> Any:
        from pyspark.sql import DataFrame
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        from penstock.spark.codecs.outputs import leave, received, schemas, united
        from penstock.spark.outputs import Encoded

        context = current_pipeline("the function of an application")
        frames = {port: context.renamed(received(_arrived(one), port), of=one) for port, one in inputs.items()}
        left = self.function.call(**{self.function.parameter(port): frame for port, frame in frames.items()})
        match left:
            case DataFrame():
                port = None if "port" in left.columns else OUT
                rows = leave(left, self.outlets, port)
                return Encoded(rows.frame, schemas(left, self.outlets, port), rows.plan)
            case Mapping() if left and all(isinstance(frame, DataFrame) for frame in left.values()):
                rows = united([leave(frame, self.outlets, self._known(port, frame)) for port, frame in left.items()])
                port_schemas = [schemas(frame, self.outlets, port).items() for port, frame in left.items()]
                return Encoded(rows.frame, dict(chain.from_iterable(port_schemas)), rows.plan)
            case DataStreamWriter():
                raise RequestError(
                    "the function returns a DataStreamWriter, which an application cannot use",
                    "Return a DataFrame, and link the port to a connector.",
                )
        raise RequestError(
            f"the function returns {type(left).__name__}", "Return a DataFrame, or a dict from ports to DataFrames."
        )

    def _known(self, port: str, frame: DataFrame) -> str:
        if "port" in frame.columns:
            raise RequestError(
                f"the rows for the port {port!r} have a column `port` of their own",
                "Drop or rename it: it would be lost.",
            )
        if port not in self.outlets:
            raise RequestError(
                f"the function returns rows for the port {port!r}",
                f"Available: {', '.join(self.outlets)}; see outputs:.",
            )
        return port


def _arrived(frame: DataFrame) -> DataFrame:
    """The frame as the user's function gets it: the metadata where its JSON was."""
    from pyspark.sql import functions

    if "metadata_json" not in frame.columns:
        return frame
    names = [name if name != "metadata_json" else "metadata" for name in frame.columns]
    parsed = frame.withColumn("metadata_json", functions.try_parse_json(frame["metadata_json"]))
    return parsed.toDF(*names)


# The pipelines of a deployment, in the form that the Spark runner takes.


def pipelines_of(deployment: Deployment, types: Types = CONNECTORS) -> list[Pipeline]:
    """In the deployment's order. Imports the users' files. Raises RequestError at the user's line."""
    return [pipeline_of(deployment, name, types) for name in deployment.pipelines]


def pipeline_of(deployment: Deployment, name: str, types: Types = CONNECTORS) -> Pipeline:
    """One of them."""
    plan = plan_of(deployment, name, types)
    sinks = {sink: SinkSpec(port, connector) for sink, (port, connector) in deployment.sink_names(name).items()}
    return planned_pipeline(plan, _function(plan), sinks)


def planned_pipeline(plan: Plan, function: Callable[..., Any], sinks: Mapping[str, SinkSpec]) -> Pipeline:
    """The plan's pipeline, with this function between its codecs."""
    return Pipeline(
        name=plan.spec.name,
        function=function,
        inputs=plan.sources,
        decoding=_decoding(plan),
        columns=_columns(plan.spec),
        outputs=_ports(plan.outlets),
        sinks=sinks,
        **_settings(plan.spec),
    )


def _columns(spec: PipelineSpec) -> tuple[str, ...]:
    """The columns that the source loads: metadata as JSON, which becomes a VARIANT."""
    if spec.spark == PASSTHROUGH:
        return PASSING_COLUMNS
    given = spec.settings.get("columns")
    return FUNCTION_COLUMNS if given is None else tuple("metadata_json" if n == "metadata" else n for n in given)


def _ports(outlets: Mapping[str, Outlet]) -> tuple[str, ...]:
    """All possible ports, linked or not, so that sinks with other codecs can be bound while the pipeline runs."""
    named = [port_for(port, codec) for codec in (None, *codecs.names()) for port in outlets]
    configured = [port for outlet in outlets.values() for port, _ in outlet.targets]
    return tuple(dict.fromkeys([*named, *configured]))


def _function(plan: Plan) -> Callable[..., Any]:
    if plan.spec.spark == PASSTHROUGH:
        return Passing(branches(plan.codings["in"]), plan.outlets)
    return Coded(load_function(plan.spec.spark, plan.spec.code), plan.outlets)


def _decoding(plan: Plan) -> dict[str, tuple[Branch, ...]]:
    """An input whose events are all bytes is not decoded."""
    found = {port: tuple(branches(codings)) for port, codings in plan.codings.items()}
    return {port: given for port, given in found.items() if any(one.codec != AS_IT_IS for one in given)}


def _settings(spec: PipelineSpec) -> dict[str, Any]:
    given = spec.settings
    return {
        "mode": given.get("mode", "append"),
        "trigger_ms": parse_duration_ms(given["trigger"]) if "trigger" in given else None,
        "starting": starting_in(given.get("starting", "earliest")),
        "limits": limits_of(given.get("max_bytes_per_epoch"), given.get("max_rows_per_epoch")),
    }
