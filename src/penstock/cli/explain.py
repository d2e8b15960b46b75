"""`penstock explain`: the flow of an application, how pipelines read their inputs, and which of their windows the
readers compute themselves.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from penstock.cli.check import SUFFIXES
from penstock.cli.connect import JsonOption
from penstock.cli.flow_drawing import Step, drawn
from penstock.cli.pipeline_sinks import CheckedSink, checked
from penstock.cli.run_setup import conf_of
from penstock.cli.run_summary import is_own_port
from penstock.cli.texts import printable
from penstock.cli.waiting import waiting
from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion
from penstock.spark.run.failures import load_pipelines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.application.config import Loaded
    from penstock.spark.codecs.codec import Branch
    from penstock.spark.input_frames import OperatorNote
    from penstock.spark.pipelines import Pipeline

_MASTER = "local[1]"
"""Nothing is computed: Spark only looks at what the functions return."""


@dataclass(frozen=True, slots=True)
class Input:
    sources: tuple[str, ...]
    columns: tuple[str, ...]
    """Of the event itself."""
    codecs: tuple[str, ...]
    """Which decode its events, with their schemas."""


@dataclass(frozen=True, slots=True)
class Windows:
    name: str
    input: str | None
    fused: bool
    reason: str | None
    """Why its readers do not compute it."""
    columns: tuple[str, ...]
    """What readers decode and read for it, if it is fused."""
    where: str | None
    select: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Explained:
    pipeline: str
    inputs: Mapping[str, Input]
    windows: tuple[Windows, ...]
    sinks: Mapping[str, str]
    """Name → the port that it is bound to."""
    ports: tuple[str, ...]
    """Without ports that repeat another port in a different codec."""
    about: Mapping[str, str]
    """Type and guarantee of its sources and sinks by name, if the file declares them."""


def register(commands: typer.Typer) -> None:
    commands.command("explain")(explain)


def explain(
    file: Annotated[Path, typer.Argument(help="An application (YAML), or a Python file with @pipeline functions.")],
    pipeline: Annotated[list[str] | None, typer.Argument(help="Only these pipelines.", show_default=False)] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A Spark setting of the run; may be repeated.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw the flow from sources to sinks with its guarantees, and show what is fused with the readers.

    Then for each pipeline: what it reads and decodes, and for each of its
    windows whether the readers compute it, or why not. Calls the functions,
    as penstock run does before it starts anything. Needs Spark, and no worker.
    """
    settings = conf_of(conf or [])
    known, about = contents_of(file)
    pipelines = chosen(known, pipeline or [])
    with _session(settings) as spark:
        found = [explained(spark, one, about.get(one.name, about[""])) for one in pipelines]
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found]))
        return
    console = Console(highlight=False)
    for line in drawn([*map(_step, found)]):
        console.print(printable(line), markup=False, soft_wrap=True)
    for one in found:
        console.print()
        for line in _lines(one):
            console.print(line, soft_wrap=True)


@contextmanager
def _session(conf: Mapping[str, str]) -> "Iterator[SparkSession]":
    from penstock.spark.run.driver import spark_driver
    from penstock.spark.run.java import check_installed, use_java

    check_installed()
    use_java()
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        warehouse = {"spark.sql.warehouse.dir": str(Path(folder) / "warehouse")}
        log = Path(folder) / "spark.log"
        with ExitStack() as stack:
            with waiting("starting Spark …") as waits_for:
                driver = spark_driver(
                    "penstock explain",
                    _MASTER,
                    {**warehouse, **conf},
                    log,
                    report=lambda what: waits_for(f"starting Spark: waiting for {what}"),
                )
                session = stack.enter_context(driver).session
            yield session


def contents_of(file: Path) -> "tuple[list[Pipeline], dict[str, Mapping[str, str]]]":
    """The pipelines, and type and guarantee of their sources and sinks, by name: of one pipeline, or of all under "".
    Raises RequestError for a file with mistakes.
    """
    if file.suffix.lower() not in SUFFIXES:
        pipelines = load_pipelines(file)
        return pipelines, {
            "": {},
            **{one.name: {each.name: _about(each) for each in checked(one)} for one in pipelines},
        }
    from penstock.application.config import load
    from penstock.application.config.types import KnownTypes
    from penstock.application.functions import pipelines_of

    loaded = load(file, KnownTypes(), os.environ)
    about = {name: about_connector(loaded, name) for name in loaded.deployment.connectors}
    errors = {f"{name}.err": "what it could not read" for name in loaded.deployment.connectors}
    return pipelines_of(loaded.deployment), {"": about | errors}


def _about(sink: CheckedSink) -> str:
    """Mistakes in a sink are not reported here: penstock check does that."""
    if sink.parsed is None:
        return "unknown: see penstock check"
    votes = ", transactional" if sink.parsed.votes else ""
    return f"{sink.parsed.shown}, {sink.parsed.guarantee.value}{votes}"


def about_connector(loaded: "Loaded", name: str) -> str:
    """Its type, and the guarantee of the ports that are linked."""
    can = loaded.capabilities[name]
    ends = [end for link in loaded.deployment.links for end in (link.source, link.target)]
    linked = {end.port for end in ends if (end.kind, end.name) == ("connector", name)}
    source = can.source.value if can.source is not None and "out" in linked else ""
    sink = can.sink.value if can.sink is not None and "in" in linked else ""
    promises = [f"{source} as a source", f"{sink} as a sink"] if source and sink else [source or sink]
    votes = ["transactional"] if sink and can.votes else []
    kind = loaded.shown("connector", name, "type", loaded.deployment.connectors[name].type)
    return ", ".join(filter(None, (kind, *promises, *votes)))


def _step(found: Explained) -> Step:
    sources = [source for one in found.inputs.values() for source in one.sources]
    return Step(found.pipeline, fused_note(found.windows), sources, found.ports, found.sinks, found.about)


def fused_note(windows: Sequence[Windows]) -> str:
    """In a few words; the list that follows gives the reasons."""
    fused = sum(one.fused for one in windows)
    if not windows:
        return ""
    if fused == len(windows):
        return "windows fused with the readers"
    return f"{fused} of {len(windows)} windows fused with the readers" if fused else "windows not fused"


def chosen(pipelines: "Sequence[Pipeline]", names: Sequence[str]) -> "list[Pipeline]":
    known = [one.name for one in pipelines]
    for name in names:
        if name not in known:
            raise RequestError(f"pipeline {name!r} not found in the file", suggestion(name, known, "It has"))
    return [one for one in pipelines if not names or one.name in names]


def explained(spark: "SparkSession", pipeline: "Pipeline", about: Mapping[str, str]) -> Explained:
    """Raises RequestError at the user's line."""
    from penstock.spark.run.attempt import plan_of

    planned = plan_of(spark, pipeline)
    inputs = {
        name: Input(sources, pipeline.columns, tuple(map(_codec, pipeline.decoding.get(name, ()))))
        for name, sources in pipeline.inputs.items()
    }
    sinks = {name: spec.port for name, spec in pipeline.sinks.items()}
    named = [*(source for one in inputs.values() for source in one.sources), *sinks]
    return Explained(
        pipeline.name,
        inputs,
        tuple(map(_windows, planned.operators)),
        sinks,
        tuple(port for port in planned.ports if is_own_port(port) or port in sinks.values()),
        {name: about[name] for name in named if name in about},
    )


def _codec(branch: "Branch") -> str:
    of = " and ".join(filter(None, (branch.source, branch.content_type)))
    return f"{branch.codec or 'none'}{f' for {of}' if of else ''}{f': {branch.schema}' if branch.schema else ''}"


def _windows(note: "OperatorNote") -> Windows:
    is_fused = note.not_fused is None
    return Windows(note.operator, note.input, is_fused, note.not_fused, note.columns, note.where, dict(note.select))


def _lines(found: Explained) -> Iterator[str]:
    yield f"[bold]{_shown(found.pipeline)}[/]"
    for name, one in found.inputs.items():
        yield f"  input {_shown(name)}: {_shown(', '.join(one.sources))}"
        yield f"    columns: {_shown(', '.join(one.columns))}"
        for codec in one.codecs:
            yield f"    decoded by {_shown(codec)}"
    for windows in found.windows:
        over = f" of {_shown(windows.input)}" if windows.input else ""
        if windows.reason is None:
            yield f"  windows {_shown(windows.name)}{over}: [green]fused[/]"
            yield f"    readers compute partial results from {_shown(', '.join(windows.columns))}"
        else:
            yield f"  windows {_shown(windows.name)}{over}: [yellow]not fused[/]: {_shown(windows.reason)}"
        if windows.where is not None:
            yield f"    where {_shown(windows.where)}"
        for name, text in windows.select.items():
            yield f"    select {_shown(name)}: {_shown(text)}"


def _shown(text: str) -> str:
    return escape(printable(text))
