"""The pipelines of a deployment, in the form that the Spark runner takes."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.application.functions import FUNCTION_COLUMNS, PASSING_COLUMNS, Coded, Passing, load_function
from penstock.application.plan import Plan, Types, plan_of, starting_in
from penstock.connectors.registry import CONNECTORS
from penstock.core.durations import parse_duration_ms
from penstock.protocol.api.delivery import SinkSpec
from penstock.protocol.api.deployment import (
    PASSTHROUGH,
    Deployment,
    PipelineSpec,
    port_for,
)
from penstock.spark.codecs.codec import CODECS, Outlet
from penstock.spark.pipelines import Pipeline, limits_of


def pipelines_of(deployment: Deployment, types: Types = CONNECTORS) -> list[Pipeline]:
    """In the deployment's order. Imports the users' files. Raises RequestError at the user's line."""
    return [pipeline_of(deployment, name, types) for name in deployment.pipelines]


def pipeline_of(deployment: Deployment, name: str, types: Types = CONNECTORS) -> Pipeline:
    """One of them."""
    plan = plan_of(deployment, name, types)
    return Pipeline(
        name=name,
        function=_function(plan),
        inputs=plan.sources,
        columns=PASSING_COLUMNS if plan.spec.spark == PASSTHROUGH else FUNCTION_COLUMNS,
        outputs=_ports(plan.outlets),
        sinks={sink: SinkSpec(port, connector) for sink, (port, connector) in deployment.sink_names(name).items()},
        **_settings(plan.spec),
    )


def _ports(outlets: Mapping[str, Outlet]) -> tuple[str, ...]:
    """All possible ports, linked or not, so that sinks with other codecs can be bound while the pipeline runs."""
    return tuple(dict.fromkeys(port_for(port, codec) for codec in (None, *CODECS) for port in outlets))


def _function(plan: Plan) -> Callable[..., Any]:
    if plan.spec.spark == PASSTHROUGH:
        return Passing(plan.codings["in"], plan.outlets)
    return Coded(load_function(plan.spec.spark, plan.spec.code), plan.codings, plan.outlets)


def _settings(spec: PipelineSpec) -> dict[str, Any]:
    given = spec.settings
    return {
        "mode": given.get("mode", "append"),
        "trigger_ms": parse_duration_ms(given["trigger"]) if "trigger" in given else None,
        "starting": starting_in(given.get("starting", "earliest")),
        "limits": limits_of(given.get("max_bytes_per_epoch"), given.get("max_rows_per_epoch")),
    }
