"""`@pipeline(sinks=…)`: which sinks a pipeline is declared with, and under which names."""

import pytest

from penstock.core.errors import RequestError
from penstock.protocol.api.delivery import SinkSpec
from penstock.spark import pipeline
from penstock.spark.pipelines import Declared, check_ports, sinks_of


def test_sinks_are_declared_as_a_url_a_list_of_urls_or_urls_by_name() -> None:
    assert sinks_of({"out": "file:a", "late": ["file:b", "stdout:"], "bad": {"letters": "sqlite:c?table=t"}}) == {
        "letters": SinkSpec("bad", "sqlite:c?table=t"),
        "file": SinkSpec("out", "file:a"),
        "file-2": SinkSpec("late", "file:b"),
        "stdout": SinkSpec("late", "stdout:"),
    }


@pytest.mark.parametrize("declared", ["file:a", ["file:a"], {"out": "file:a"}])
def test_a_sink_declared_without_a_port_is_for_the_default_port(declared: Declared) -> None:
    assert sinks_of(declared) == {"file": SinkSpec("out", "file:a")}


def test_an_explicit_name_is_not_used_for_another_sink() -> None:
    assert sinks_of({"out": "file:a", "late": {"file": "file:b"}}) == {
        "file": SinkSpec("late", "file:b"),
        "file-2": SinkSpec("out", "file:a"),
    }


def test_the_same_sink_twice_is_one() -> None:
    assert sinks_of({"out": ["file:a", "file:a"]}) == {"file": SinkSpec("out", "file:a")}


@pytest.mark.parametrize(
    "declared",
    [
        {"o u t": "file:a"},
        {"out": {"no/name": "file:a"}},
        {"out": {"a": "file:a"}, "late": {"a": "file:b"}},
        {"out": [5]},
        {"out": 5},
        5,
    ],
)
def test_an_invalid_sink_is_refused_where_it_is_declared(declared: dict[str, object]) -> None:
    with pytest.raises(RequestError) as caught:
        pipeline(sinks=declared)(lambda lines: lines)  # type: ignore[arg-type]
    assert caught.value.hint


def test_a_port_that_the_pipeline_does_not_have_is_reported_with_the_nearest() -> None:
    check_ports({"a": SinkSpec("out", "stdout:")}, ["out"])
    with pytest.raises(RequestError, match="'a' is bound to port 'uot'") as caught:
        check_ports({"a": SinkSpec("uot", "stdout:")}, ["late", "out"])
    assert caught.value.hint == 'Did you mean "out"?'
    with pytest.raises(RequestError) as caught:
        check_ports({"a": SinkSpec("out", "stdout:")}, [])
    assert "own writer" in caught.value.hint
