"""`penstock check`: what pipelines read, where their output goes, and all mistakes. Starts nothing, except Spark's
driver to look at the executors of a cluster.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from penstock.cli.connect import DataOption, JsonOption, WorkerOption
from penstock.cli.executors import check_cluster
from penstock.cli.pipeline_sinks import CheckedSink, SinkOption, bound_to, checked
from penstock.cli.run_setup import AdvertisedOption, ConfOption, conf_of
from penstock.cli.texts import printable
from penstock.core.counts import show_count
from penstock.core.errors import RequestError
from penstock.protocol.api.deployment import PASSTHROUGH
from penstock.protocol.stored.names import Form, Source
from penstock.spark.codecs.codec import name_of
from penstock.spark.run.failures import load_pipelines

if TYPE_CHECKING:
    from penstock.application.config import Loaded
    from penstock.application.config.document import Mistake
    from penstock.protocol.api.deployment import ConnectorSpec, Deployment, End
    from penstock.spark.pipelines import Pipeline

# What drives the watermark of each source, which closes windows.

_NO_STREAMS = "segment"
"""A type of connector without streams: nothing blocks its watermark."""


def watermarks_of_connectors(loaded: "Loaded") -> Iterator[str]:
    """A sentence for each connector whose events reach a pipeline with a function."""
    deployment = loaded.deployment
    for name, spec in deployment.connectors.items():
        functions = {deployment.pipelines[reached].spark for reached in deployment.pipelines_of(name)}
        if functions - {PASSTHROUGH} and spec.type != _NO_STREAMS:
            yield _watermark(spec, own_event_times=loaded.capabilities[name].own_event_times)


def _watermark(spec: "ConnectorSpec", *, own_event_times: bool | None) -> str:
    over = f"watermark of {spec.name}:"
    if spec.event_time is not None:
        over, own_event_times = f"{over} by the field {spec.event_time.field},", True
    if own_event_times is None:
        return f"{over} the worker's clock, unless the connector sets event times"
    if not own_event_times:
        return f"{over} the worker's clock"
    if spec.event_time_ingest:
        return f"{over} the worker's clock, unless programs send event times"
    slowest = f"{over} the slowest stream"
    if spec.idle_timeout_seconds is None:
        return f"{slowest}; a silent stream blocks it (idle_timeout is off)"
    silent = f"{slowest}; one that is silent for {spec.idle_timeout_seconds:g} s is ignored"
    if spec.when_all_idle == "clock":
        return f"{silent}; when all are silent, the worker's clock"
    return f"{silent}; when all are silent, it waits for the next event (when_all_idle is wait)"


def watermarks_of_programs(inputs: Iterable[Sequence[str]]) -> Iterator[str]:
    """One sentence for the sources of a Python file's pipeline: the settings depend on the worker it will run with."""
    sources = [*filter(_is_connector, dict.fromkeys(source for sources in inputs for source in sources))]
    if sources:
        yield (
            f"watermark of {', '.join(sources)}: the slowest stream; a silent stream blocks it "
            "unless the worker has an --idle-timeout"
        )


def _is_connector(source: str) -> bool:
    try:
        return Source.parse(source).form is Form.CONNECTOR
    except RequestError:  # reported when the pipeline is started
        return False


# `penstock check app.yaml`: what would be deployed, or all mistakes in the file.

_WIDTH = 140
"""For output to a file or a pipe, so that no column is cut short."""
SUFFIXES = (".yaml", ".yml")
"""Suffixes of application files."""


def check_application(file: Path, *, as_json: bool) -> None:
    """Raises ConfigErrors; as JSON, mistakes are printed like the rest. Nothing in a `config` is printed: it may be
    secret.
    """
    from penstock.application.config import ConfigErrors, load
    from penstock.application.config.types import KnownTypes

    try:
        loaded = load(file, KnownTypes(), os.environ)
    except ConfigErrors as error:
        if not as_json:
            raise
        found = [{"line": one.place.line, "column": one.place.column, **_mistake(one)} for one in error.mistakes]
        typer.echo(json.dumps({"file": str(file), "mistakes": found}))
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps({"file": str(file), **_as_json(loaded), "mistakes": []}))
        return
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(width=_WIDTH, highlight=False)
    for table in _tables(loaded):
        console.print(table)
    for sentence in watermarks_of_connectors(loaded):
        console.print(escape(printable(sentence)), soft_wrap=True)
    for note in loaded.notes:
        console.print(f"[yellow]note:[/] {escape(printable(note))}", soft_wrap=True)
    console.print(f"[green]{escape(printable(str(file)))} is valid[/]", soft_wrap=True)


def _mistake(one: "Mistake | RequestError") -> dict[str, str]:
    text = str(one) if isinstance(one, RequestError) else one.text
    return {"text": text, "hint": one.hint or ""}


def _as_json(loaded: "Loaded") -> dict[str, Any]:
    return {
        "connectors": [*_connectors(loaded)],
        "pipelines": [*_pipelines(loaded)],
        "links": [*_links(loaded.deployment)],
        "watermarks": [*watermarks_of_connectors(loaded)],
        "notes": [*loaded.notes],
    }


def _tables(loaded: "Loaded") -> Iterator[Table]:
    columns = ("connector", "type", "as a source", "as a sink", "codec", "interceptors")
    yield from _table(columns, _connectors(loaded))
    yield from _table(("pipeline", "function", "settings"), _pipelines(loaded))
    yield from _table(("from", "to"), _links(loaded.deployment))


def _table(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> Iterator[Table]:
    """None without rows."""
    table = Table(*columns)
    for row in rows:
        table.add_row(*(escape(_cell(value)) for value in row.values()))
    if table.row_count:
        yield table


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case Mapping():
            return ", ".join(f"{key}: {one}" for key, one in value.items())
        case list():
            return ", ".join(value)
    return str(value)


def _connectors(loaded: "Loaded") -> Iterator[dict[str, object]]:
    """As a table shows them, from left to right; so are the others."""
    for name, spec in loaded.deployment.connectors.items():
        can = loaded.capabilities[name]
        linked = {end.port for end in _ends(loaded.deployment) if (end.kind, end.name) == ("connector", name)}
        source = can.source.value if can.source is not None and linked & {"out", "err"} else None
        sink = can.sink.value if can.sink is not None and "in" in linked else None
        others = ", ".join(dict.fromkeys(spec.codec_map.values()))
        codecs = [loaded.shown("connector", name, "codec", name_of(spec.codec or ""))]  # its options may be secret
        codecs.append(loaded.shown("connector", name, "codec_map", others))
        chain = [f"in: {one.type}" for one in spec.interceptors_in] + [
            f"out: {one.type}" for one in spec.interceptors_out
        ]
        kind = loaded.shown("connector", name, "type", spec.type)
        codecs = [*filter(None, codecs)]
        yield {"name": name, "type": kind, "source": source, "sink": sink, "codecs": codecs, "interceptors": chain}


def _pipelines(loaded: "Loaded") -> Iterator[dict[str, object]]:
    for name, spec in loaded.deployment.pipelines.items():
        shown = {key: loaded.shown("pipeline", name, key, _plain(value)) for key, value in spec.settings.items()}
        yield {"name": name, "function": loaded.shown("pipeline", name, "spark", spec.spark), "settings": shown}


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _links(deployment: "Deployment") -> Iterator[dict[str, object]]:
    for link in deployment.links:
        yield {"from": _shown(link.source), "to": _shown(link.target)}


def _shown(end: "End") -> str:
    return f"{end.kind}/{end.name}/{end.port}"


def _ends(deployment: "Deployment") -> "Iterator[End]":
    for link in deployment.links:
        yield link.source
        yield link.target


_SPARK = "Spark"


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(
    file: Annotated[
        Path | None, typer.Argument(help="An application (YAML), or a Python file with @pipeline functions.")
    ] = None,
    sink: SinkOption = None,
    master: Annotated[
        str | None,
        typer.Option(
            "--master", metavar="URL", help="Check the executors of this Spark cluster.", rich_help_panel=_SPARK
        ),
    ] = None,
    conf: ConfOption = None,
    worker: WorkerOption = None,
    data: DataOption = None,
    advertised_worker: AdvertisedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what an application or the pipelines of a file read, where they go, and with which guarantee.

    Starts neither a worker nor Spark. Reports all mistakes, and exits
    with 1 if there are any.

    With --master, starts a Spark driver and shows the versions that the
    cluster's executors have, and whether they reach the worker.
    """
    if file is None and master is None:
        raise RequestError("there is nothing to check", "Name a file, or a Spark cluster: --master spark://HOST:PORT")
    if as_json and file is not None and master is not None:
        raise RequestError("--json is for a file or for executors", "Check them one after the other.")
    if file is not None:
        _check_file(file, sink, as_json=as_json)
    if master is not None:
        check_cluster(master, conf_of(conf or []), worker, data, advertised_worker, as_json=as_json)


def _check_file(file: Path, sink: list[str] | None, *, as_json: bool) -> None:
    if file.suffix.lower() in SUFFIXES:
        if sink:
            raise RequestError(
                "--sink is for Python files", "Name a connector in the file, and link the pipeline to it."
            )
        check_application(file, as_json=as_json)
        return
    try:
        pipelines = load_pipelines(file)
    except RequestError as error:
        if not as_json:
            raise
        typer.echo(json.dumps({"file": str(file), "pipelines": [], "mistakes": [_mistake(error)]}))
        raise typer.Exit(1) from None
    found = [(pipeline, checked(pipeline)) for pipeline in bound_to(pipelines, sink or [])]
    mistakes = sum(len(one.mistakes) for _, sinks in found for one in sinks)
    if as_json:
        shown = [_pipeline_as_json(*one) for one in found]
        typer.echo(json.dumps({"file": str(file), "pipelines": shown, "mistakes": []}))
    else:
        console = Console(highlight=False)
        for pipeline, sinks in found:
            console.print(_pipeline(pipeline, sinks), soft_wrap=True)
        if mistakes:
            console.print(show_count(mistakes, "mistake"), style="bold red")
    if mistakes:
        raise typer.Exit(1)


def _pipeline_as_json(pipeline: "Pipeline", sinks: list[CheckedSink]) -> dict[str, Any]:
    return {
        "name": pipeline.name,
        "inputs": {name: [*sources] for name, sources in pipeline.inputs.items()},
        "ports": None if pipeline.outputs is None else [*pipeline.outputs],
        "watermarks": [*watermarks_of_programs(pipeline.inputs.values())],
        "sinks": [_sink_as_json(one) for one in sinks],
    }


def _sink_as_json(sink: CheckedSink) -> dict[str, Any]:
    from penstock.connectors.urls import named

    return {
        "name": sink.name,
        "port": sink.spec.port,
        "to": named(sink.spec.url) if sink.parsed is None else sink.parsed.shown,
        "guarantee": None if sink.parsed is None else sink.parsed.guarantee.value,
        "is_transactional": None if sink.parsed is None else sink.parsed.votes,
        "notes": [] if sink.unseen is None else [f"{sink.unseen}: {sink.unseen.hint}"],
        "mistakes": [_mistake(one) for one in sink.mistakes],
    }


def _pipeline(pipeline: "Pipeline", sinks: list[CheckedSink]) -> RenderableType:
    ports = "those its function returns" if pipeline.outputs is None else ", ".join(pipeline.outputs)
    lines: list[RenderableType] = [Text(pipeline.name, "bold")]
    lines += [Text(f"  input {name}: {', '.join(sources)}") for name, sources in pipeline.inputs.items()]
    lines.append(Text(f"  ports: {ports or 'none'}"))
    lines += [Text(f"  {sentence}") for sentence in watermarks_of_programs(pipeline.inputs.values())]
    if not sinks:
        lines.append(Text("  sinks: none here; add one with penstock sink add"))
    for sink in sinks:
        lines += _sink(sink)
    return Group(*lines)


def _sink(sink: CheckedSink) -> list[RenderableType]:
    from penstock.connectors.urls import named

    what = named(sink.spec.url) if sink.mistakes and sink.parsed is None else _promise(sink)
    lines: list[RenderableType] = [Text(f"  {sink.spec.port} → {sink.name}: {what}")]
    for error in sink.mistakes:
        hint = f" {error.hint}" if error.hint else ""
        lines.append(Padding(Text.assemble(("error: ", "bold red"), f"{error}.{hint}"), (0, 0, 0, 4)))
    return lines


def _promise(sink: CheckedSink) -> str:
    if sink.parsed is None:
        assert sink.unseen is not None
        return f"{sink.unseen}: {sink.unseen.hint}"
    promise = f"{sink.parsed.shown}   {sink.parsed.guarantee.value}{', transactional' if sink.parsed.votes else ''}"
    return promise if sink.unseen is None else f"{promise}; {sink.unseen}: {sink.unseen.hint}"
