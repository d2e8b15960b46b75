"""What a deployment's pipelines become for the runner, and which of them a change concerns: without Spark."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.application.deployments import pipeline_changes
from penstock.application.functions import load_function, pipeline_of
from penstock.application.plan import plan_of
from penstock.core.errors import RequestError
from penstock.protocol.api.delivery import SinkSpec
from penstock.protocol.api.deployment import PASSTHROUGH, SYSTEM_STREAMS, Deployment, PipelineSpec
from penstock.protocol.api.pipelines import AtSegments, AtTime
from penstock.spark.codecs.codec import Outlet
from tests.application.deployments import connector, deployed, link, pipeline

pytest.importorskip("pyspark")

IN, OUT = link("connector/a/out", "pipeline/p/in"), link("pipeline/p/out", "connector/b/in")


def app(*more: object, a: str | None = "json", b: str | None = "json", **settings: object) -> Deployment:
    parts = (connector("a", codec=a), connector("b", codec=b), pipeline("p", settings=settings), IN, OUT, *more)
    return deployed(*parts)  # type: ignore[arg-type]


def targets(deployment: Deployment, port: str = "out") -> tuple[tuple[str, str], ...]:
    return plan_of(deployment, "p").outlets[port].targets


def changed(old: Deployment, new: Deployment) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = pipeline_changes(old, new)
    return found.stop, found.start


def test_a_pipeline_reads_what_is_linked_to_it() -> None:
    more = (
        link("connector/a/err", "pipeline/p/in"),
        link("pipeline/q/late", "pipeline/p/in"),
        link(f"connector/{SYSTEM_STREAMS}/out", "pipeline/p/in"),
        pipeline("q"),
    )
    made = pipeline_of(app(*more), "p")
    assert made.inputs == {"in": ("a", "a.err", "pipeline:q/late", "system.streams")}
    codings = plan_of(app(*more), "p").codings["in"]
    assert {name: coding.codec for name, coding in codings.items()} == {
        "a": "json",
        "a.err": "binary",
        "pipeline:q/late": "binary",
        "system.streams": "json",
    }


def test_sinks_are_bound_by_their_connectors_names() -> None:
    files = connector("files", "file", config={"mode": "write", "path": "results"}, codec="json")
    made = pipeline_of(
        app(files, link("pipeline/p/out", "connector/files/in"), link("pipeline/p/err", "connector/b/in")), "p"
    )
    assert made.sinks["b"] == SinkSpec("out", "b")
    assert made.sinks["b.err"] == SinkSpec("err", "b")
    assert made.sinks["files"] == SinkSpec("out", "files")


def test_every_port_that_there_can_be_is_declared() -> None:
    made = pipeline_of(app(outputs=["big"]), "p")
    assert made.outputs is not None
    assert {"out", "err", "late", "big", "out.csv", "out.msgpack", "out.string", "big.msgpack"} <= set(made.outputs)
    assert not {port for port in made.outputs if port.startswith(("err.", "late."))}


def test_a_sink_s_port_depends_on_its_own_codec_alone() -> None:
    assert app(b="json").sink_names("p") == {"b": ("out", "b")}
    assert app(b="msgpack").sink_names("p") == {"b": ("out.msgpack", "b")}
    both = app(connector("c", codec="csv"), link("pipeline/p/out", "connector/c/in"), b="msgpack")
    assert both.sink_names("p") == {"b": ("out.msgpack", "b"), "c": ("out.csv", "c")}


def test_the_port_itself_holds_rows_only_if_somebody_wants_them() -> None:
    assert targets(app(b="json")) == (("out", "json"),)
    assert targets(app(b="binary")) == (("out", "binary"),)
    assert targets(app(b="msgpack")) == (("out.msgpack", "msgpack"),)
    read = app(pipeline("q"), link("pipeline/p/out", "pipeline/q/in"), b="msgpack")
    assert targets(read) == (("out", "binary"), ("out.msgpack", "msgpack"))
    assert targets(app(), "late") == (("late", "binary"),)


def test_replies_have_their_content_type() -> None:
    web = connector("web", "http-server", config={"port": 1}, codec="json")
    made = plan_of(app(web, link("pipeline/p/out", "connector/web/in")), "p")
    assert made.outlets["out"] == Outlet("out", (("out", "json"),), adds_content_type=True)
    assert not plan_of(app(), "p").outlets["out"].adds_content_type


def test_settings_are_taken_over() -> None:
    made = pipeline_of(app(trigger="10s", starting="2026-01-01T00:00:00+00:00", max_bytes_per_epoch=5), "p")
    assert (made.trigger_ms, made.starting, made.limits.bytes) == (10_000, AtTime(1767225600_000_000), 5)
    assert pipeline_of(app(starting={"connector/a/0": 7}), "p").starting == AtSegments({"connector/a/0": 7})


def test_a_function_gets_the_columns_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def mine(frame):\n    return frame\n")

    def columns(**settings: object) -> tuple[str, ...]:
        made = app()
        spec = replace(made.pipelines["p"], spark=f"{tmp_path}/mine.py:mine", settings=settings)
        return pipeline_of(replace(made, pipelines={"p": spec}), "p").columns

    assert columns(columns=["key", "metadata"]) == ("key", "metadata_json")
    assert set(columns()) > {"key", "value", "content_type", "metadata_json"}


def test_replies_have_the_codec_of_what_they_reply_to_if_all_sinks_of_their_port_do() -> None:
    web = connector("web", "http-server", config={"port": 1}, codec="json", codec_map={"text/csv": "csv"})
    alone = app(web, link("pipeline/p/out", "connector/web/in"), b="msgpack")
    assert plan_of(alone, "p").outlets["out"].codec_maps == {"out": (("text/csv", "csv"),)}
    shared = app(web, link("pipeline/p/out", "connector/web/in"), b="json")
    assert plan_of(shared, "p").outlets["out"].codec_maps == {}


def test_a_pipeline_whose_query_would_be_the_same_runs_on() -> None:
    old = app(pipeline("q"), link("connector/a/out", "pipeline/q/in"))
    more = replace(
        old,
        connectors={**old.connectors, "c": connector("c", codec="json")},
        links=(*old.links, link("pipeline/p/out", "connector/c/in")),
    )
    assert changed(old, more) == ((), ()), "another sink in the same codec is bound by the worker"
    moved = replace(old, connectors={**old.connectors, "b": connector("b", codec="json", quota_bytes=5)})
    assert changed(old, moved) == ((), ())


def test_only_what_differs_is_restarted() -> None:
    old = app(pipeline("q"), link("connector/a/out", "pipeline/q/in"))
    assert changed(old, app()) == (("q",), ())
    assert changed(app(), old) == ((), ("q",))
    coded = replace(old, connectors={**old.connectors, "b": connector("b", codec="msgpack")})
    assert changed(old, coded) == ((), ("p",))
    relinked = replace(old, links=(*old.links, link("connector/b/out", "pipeline/q/in")))
    assert changed(old, relinked) == ((), ("q",))
    spec = replace(old.pipelines["q"], settings={"trigger": "1s"})
    assert changed(old, replace(old, pipelines={**old.pipelines, "q": spec})) == ((), ("q",))


def function(folder: Path, body: str, name: str = "double") -> PipelineSpec:
    file = folder / "mine.py"
    file.write_text(body)
    return PipelineSpec(
        name="p", id="p", instance="01", spark=f"{file}:{name}", code=f"{hash(body) & 0xFFFFFFFFFF:012x}"
    )


def test_a_changed_file_is_reloaded_and_the_same_one_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    first = function(tmp_path, "runs = []\nruns.append(1)\ndef double(frame): return [frame, frame]\n")
    one, same = load_function(first.spark, first.code), load_function(first.spark, first.code)
    assert one.module is same.module
    assert one.call("x") == ["x", "x"]
    second = function(tmp_path, "def double(frame, more=1): return [frame, more]\n")
    other = load_function(second.spark, second.code)
    assert other.call("x") == ["x", 1]
    assert (other.sole, other.parameter("in"), other.parameter("more")) == ("frame", "frame", "more")


def test_mistakes_in_the_file_are_shown_at_their_line(tmp_path: Path) -> None:
    broken = function(tmp_path, "def double(frame): ...\n1 / 0\n")
    with pytest.raises(RequestError, match=r'mine.py", line 2'):
        load_function(broken.spark, broken.code)
    empty = function(tmp_path, "x = 1\n")
    with pytest.raises(RequestError, match="has no function 'double'"):
        load_function(empty.spark, empty.code)


def test_passthrough_needs_no_file() -> None:
    assert app().pipelines["p"].spark == PASSTHROUGH
    assert pipeline_of(app(), "p").name == "p"
