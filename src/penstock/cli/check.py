"""`penstock check`: what pipelines read, where they go, and all that is wrong; nothing is started."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from penstock.cli.check_application import SUFFIXES, check_application
from penstock.cli.check_windows import windows_over_programs
from penstock.cli.pipeline_sinks import CheckedSink, SinkOption, bound_to, checked
from penstock.core.errors import RequestError
from penstock.spark.user_code import load_pipelines

if TYPE_CHECKING:
    from penstock.spark.pipelines import Pipeline


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(
    file: Annotated[
        Path, typer.Argument(help="An application (YAML), or a Python file with functions that are a @pipeline.")
    ],
    sink: SinkOption = None,
) -> None:
    """Show what an application or the pipelines of a file read, where they go, and with which guarantee.

    Nothing is started, neither worker nor Spark. Ends with 1 if anything
    is wrong, and says all of it.
    """
    if file.suffix.lower() in SUFFIXES:
        if sink:
            raise RequestError(
                "--sink is for Python files", "Name a connector in the file, and link the pipeline to it."
            )
        check_application(file)
        return
    console = Console(highlight=False)
    mistakes = 0
    for pipeline in bound_to(load_pipelines(file), sink or []):
        sinks = checked(pipeline)
        mistakes += sum(len(one.mistakes) for one in sinks)
        console.print(_pipeline(pipeline, sinks), soft_wrap=True)
    if mistakes:
        console.print(f"{mistakes} {'mistake' if mistakes == 1 else 'mistakes'}", style="bold red")
        raise typer.Exit(1)


def _pipeline(pipeline: "Pipeline", sinks: list[CheckedSink]) -> RenderableType:
    ports = "what its function gives" if pipeline.outputs is None else ", ".join(pipeline.outputs)
    lines: list[RenderableType] = [Text(pipeline.name, "bold")]
    lines += [Text(f"  input {name}: {', '.join(sources)}") for name, sources in pipeline.inputs.items()]
    lines.append(Text(f"  ports: {ports or 'none'}"))
    lines += [Text(f"  {sentence}") for sentence in windows_over_programs(pipeline.inputs.values())]
    if not sinks:
        lines.append(Text("  sinks: none here; it can be bound later: penstock sink add"))
    for sink in sinks:
        lines += _sink(sink)
    return Group(*lines)


def _sink(sink: CheckedSink) -> list[RenderableType]:
    from penstock.delivery.urls.spec import named

    what = named(sink.spec.url) if sink.mistakes and sink.parsed is None else _promise(sink)
    lines: list[RenderableType] = [Text(f"  {sink.spec.port} → {sink.name}: {what}")]
    for error in sink.mistakes:
        hint = f" {error.hint}" if error.hint else ""
        lines.append(Padding(Text.assemble(("error: ", "bold red"), f"{error}.{hint}"), (0, 0, 0, 4)))
    return lines


def _promise(sink: CheckedSink) -> str:
    if sink.parsed is None:
        assert sink.unseen is not None
        return f"{sink.unseen}, so it is not looked at: {sink.unseen.hint}"
    return f"{sink.parsed.shown}   {sink.parsed.guarantee.value}, {'votes' if sink.parsed.votes else 'follows'}"
