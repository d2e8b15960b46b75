"""The pipeline that a test names, in the form that the Spark runner takes, and the sources that it reads."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.application.config.loading import load
from penstock.application.config.types import KnownTypes
from penstock.application.functions import Coded, pipeline_of, planned_pipeline, user_function
from penstock.application.plan import OUT, Plan, plan_of
from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion
from penstock.protocol.api.deployment import PipelineSpec
from penstock.protocol.stored.dead_letters import DEAD_LETTER_PORTS
from penstock.protocol.stored.names import Form, Source, check_pipeline_name
from penstock.spark.codecs.codec import AS_IT_IS, Coding, Outlet
from penstock.spark.pipelines import Pipeline, pipeline

if TYPE_CHECKING:
    from types import ModuleType

    from penstock.protocol.api.deployment import ConnectorSpec

PerInput = str | Mapping[str, str] | None
"""The same for all inputs, or by input."""


@dataclass(frozen=True, slots=True, eq=False)
class PipelineUnderTest:
    pipeline: Pipeline
    """Without sinks: the test looks at what leaves the pipeline."""
    codings: Mapping[str, Coding]
    """By source; a source whose events are not decoded may be absent."""
    connectors: Mapping[str, ConnectorSpec]
    """By source: the connectors of an application in whose place the test sends."""
    module: ModuleType
    """The user's, with the function."""

    def source(self, given: str) -> str:
        """The source of an input, or one of the sources by its own name. Raises RequestError."""
        inputs = self.pipeline.inputs
        if len(inputs.get(given, ())) == 1:
            return inputs[given][0]
        sources = [source for several in inputs.values() for source in several]
        if given in sources:
            return given
        if given in inputs:
            raise RequestError(
                f"the input {given!r} has several sources", f"Name the source: {', '.join(inputs[given])}."
            )
        raise RequestError(f"the pipeline has no input {given!r}", suggestion(given, [*inputs, *sources], "It has"))


def under_test(
    given: Pipeline | Callable[..., Any] | str | Path,
    *,
    name: str | None,
    codec: PerInput,
    schema: PerInput,
    outputs: Sequence[str],
) -> PipelineUnderTest:
    """Raises RequestError."""
    if isinstance(given, str | Path):
        _refuse_with("an application's file", codec=codec, schema=schema, outputs=outputs)
        return _of_application(Path(given), name)
    if isinstance(given, Pipeline):
        _refuse_with("a @pipeline", codec=codec, schema=schema, outputs=outputs)
        return _of_pipeline(given)
    return _of_function(given, name, codec, schema, outputs)


def _refuse_with(what: str, **given: object) -> None:
    for name, value in given.items():
        if value:
            raise RequestError(f"{name}= cannot be used with {what}", "It is declared there already.")


def _of_pipeline(given: Pipeline) -> PipelineUnderTest:
    """An input that reads a segment or another pipeline gets a source of its own, with the input's name."""
    inputs = {name: tuple(_as_connector(source, name) for source in sources) for name, sources in given.inputs.items()}
    return PipelineUnderTest(replace(given, inputs=inputs, sinks={}, trigger_ms=None), {}, {}, _module(given.function))


def _as_connector(source: str, name: str) -> str:
    return source if Source.parse(source).form is Form.CONNECTOR else name


def _of_application(file: Path, name: str | None) -> PipelineUnderTest:
    deployment = load(file, KnownTypes(), os.environ, leaves_unset=True).deployment
    found = [*deployment.pipelines] if name is None else [name]
    if len(found) != 1 or found[0] not in deployment.pipelines:
        what = "several pipelines" if name is None else f"no pipeline {name!r}"
        raise RequestError(f"{file} has {what}", f"Name one of them: pipeline=… ({', '.join(deployment.pipelines)}).")
    plan, made = plan_of(deployment, found[0]), pipeline_of(deployment, found[0])
    codings = {source: coding for by_source in plan.codings.values() for source, coding in by_source.items()}
    connectors = {source: deployment.connectors[source] for source in codings if source in deployment.connectors}
    user = made.function.function.module if isinstance(made.function, Coded) else sys.modules[__name__]
    return PipelineUnderTest(replace(made, sinks={}, trigger_ms=None), codings, connectors, user)


def _of_function(
    given: Callable[..., Any], name: str | None, codec: PerInput, schema: PerInput, outputs: Sequence[str]
) -> PipelineUnderTest:
    """As an application runs it, each parameter linked to a connector of its name."""
    if not callable(given):
        raise RequestError(f"{given!r} is not a pipeline", "Pass a function, a @pipeline, or an application's file.")
    declared = pipeline(name=name or getattr(given, "__name__", "").strip("<>") or "tested")(given)
    codings = {key: _coding(key, codec, schema) for key in declared.inputs}
    _check_keys("codec", codec, codings)
    _check_keys("schema", schema, codings)
    ports = (OUT, *DEAD_LETTER_PORTS, *(check_pipeline_name(port, "port") for port in outputs))
    plan = Plan(
        PipelineSpec(name=declared.name, id=declared.name, instance="01", spark=declared.name),
        {key: (key,) for key in codings},
        {key: {key: coding} for key, coding in codings.items()},
        {port: Outlet(port, ((port, "json"),)) for port in ports},
    )
    module = _module(given)
    made = planned_pipeline(plan, Coded(user_function(given, module), plan.outlets), {})
    return PipelineUnderTest(made, codings, {}, module)


def _coding(key: str, codec: PerInput, schema: PerInput) -> Coding:
    named, ddl = (given if isinstance(given, str | None) else given.get(key) for given in (codec, schema))
    return Coding(key, named or (AS_IT_IS if ddl is None else "json"), schema=ddl)


def _check_keys(what: str, given: PerInput, inputs: Mapping[str, object]) -> None:
    for key in given if isinstance(given, Mapping) else ():
        if key not in inputs:
            raise RequestError(f"{what}= names {key!r}, which is not an input", suggestion(key, inputs))


def _module(function: Callable[..., Any]) -> ModuleType:
    found = inspect.getmodule(function)
    return sys.modules[__name__] if found is None else found
