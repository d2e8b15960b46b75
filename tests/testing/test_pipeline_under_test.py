"""Which pipeline a test runs, and which sources it feeds."""

from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import RequestError
from penstock.spark import pipeline
from penstock.testing.pipeline_under_test import PipelineUnderTest, under_test

EXAMPLES = Path(__file__).parents[2] / "examples"


def found(given: Any, **options: Any) -> PipelineUnderTest:
    return under_test(given, **{"name": None, "codec": None, "schema": None, "outputs": (), **options})


def summed(orders: Any, payments: Any) -> Any:
    return orders.union(payments)


def test_a_function_reads_a_source_for_each_parameter() -> None:
    run = found(summed, schema={"orders": "id INT"}, codec={"payments": "csv"})
    assert run.pipeline.inputs == {"orders": ("orders",), "payments": ("payments",)}
    assert (run.codings["orders"].codec, run.codings["payments"].codec) == ("json", "csv")
    assert {"out", "err", "late"} <= {*(run.pipeline.outputs or ())}


def test_a_pipeline_keeps_its_sources_but_not_its_sinks() -> None:
    declared = pipeline(inputs={"orders": ["web", "tills"], "payments": "pipeline:bank/out"}, sinks="file:results")
    run = found(declared(summed))
    assert run.pipeline.inputs == {"orders": ("web", "tills"), "payments": ("payments",)}
    assert run.pipeline.sinks == {}
    assert [run.source(name) for name in ("web", "tills", "payments")] == ["web", "tills", "payments"]
    with pytest.raises(RequestError, match="'orders' has several sources"):
        run.source("orders")


def test_an_application_s_file_declares_codecs_and_schemas() -> None:
    run = found(EXAMPLES / "shop.yaml")
    assert run.pipeline.name == "per-shop"
    assert run.source("orders") == run.source("in") == "orders"
    assert run.codings["orders"].schema == "shop STRING, amount DOUBLE"


def test_an_unknown_input_is_refused_with_the_probable_one() -> None:
    with pytest.raises(RequestError, match="no input 'order'") as refused:
        found(summed).source("order")
    assert refused.value.hint == 'Did you mean "orders"?'


@pytest.mark.parametrize(
    ("given", "options", "text"),
    [
        (pipeline(summed), {"schema": "id INT"}, "schema= cannot be used with a @pipeline"),
        (EXAMPLES / "shop.yaml", {"codec": "json"}, "codec= cannot be used with an application's file"),
        (EXAMPLES / "shop.yaml", {"name": "other"}, "has no pipeline 'other'"),
        (summed, {"codec": {"order": "json"}}, "codec= names 'order', which is not an input"),
        (7, {}, "7 is not a pipeline"),
    ],
)
def test_what_does_not_fit_is_refused(given: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        found(given, **options)
