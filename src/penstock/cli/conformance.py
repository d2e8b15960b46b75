"""`penstock conformance source`: plays a worker, and reports what a source client does wrong."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.status import Status
from rich.table import Table
from rich.text import Text

from penstock.cli.texts import printable
from penstock.client.source.failures import parse_address
from penstock.core.errors import RequestError
from penstock.testing.source_conformance.play import TIMEOUT_SECONDS, Outcome, Verdict
from penstock.testing.source_conformance.rules import PAGE, Finding
from penstock.testing.source_conformance.scenarios import Scenario, chosen
from penstock.testing.source_conformance.stage import Client, Stage

ADDRESS = "{address}"
"""The worker's address replaces it in the program's command."""

KILL_SECONDS = 2.0
"""How long a program may take to exit after SIGTERM."""

_MARKS: dict[Outcome, tuple[str, str]] = {
    "passed": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "skipped": ("·", "dim"),
}

app = typer.Typer(help="Test a client of the connector protocol.", no_args_is_help=True)


def register(commands: typer.Typer) -> None:
    commands.add_typer(app, name="conformance")


@app.callback()
def group() -> None:
    pass


@app.command("source")
def source(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND …]", help=f"The program, started for each scenario; {ADDRESS} is its worker's address."
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the worker listens; port 0 takes a free one.")
    ] = "127.0.0.1:7100",
    scenario: Annotated[
        list[str] | None, typer.Option("--scenario", "-s", metavar="NAME", help="Only this one; may be repeated.")
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the scenarios.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that the program may go without progress.")
    ] = TIMEOUT_SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Test a source client, in any language: play a worker, and report what the client does wrong.

    The program sends 200 messages or more in one or more streams, ends the
    streams, and exits when everything is acknowledged. If you name it after
    --, the command starts it once for each scenario; otherwise start it
    yourself. Exits with 1 if a scenario fails.
    """
    scenarios = chosen(scenario or [])
    if list_them:
        _list(scenarios, as_json=as_json)
        return
    if command and shutil.which(command[0]) is None:
        raise RequestError(f"{command[0]}: command not found", "Give the program's path, or add its directory to PATH.")
    verdicts = asyncio.run(_perform(scenarios, listen, timeout, command, as_json=as_json))
    failed = sum(verdict.outcome == "failed" for verdict in verdicts)
    if as_json:
        typer.echo(json.dumps([verdict_document(verdict) for verdict in verdicts], indent=2))
    else:
        skipped = sum(verdict.outcome == "skipped" for verdict in verdicts)
        also = f", {skipped} skipped" if skipped else ""
        typer.echo(f"{len(verdicts) - failed - skipped} passed, {failed} failed{also}")
    raise typer.Exit(1 if failed else 0)


def _list(scenarios: Sequence[Scenario], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([{"name": one.name, "shows": one.shows} for one in scenarios], indent=2))
        return
    table = Table("scenario", "the worker", box=None, pad_edge=False)
    for one in scenarios:
        table.add_row(one.name, Text(one.shows))
    Console().print(table)


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """As `--json` prints it."""
    document = asdict(verdict)
    document["findings"] = [
        {
            "text": finding.text,
            "warning": finding.is_warning,
            "connection": finding.connection,
            "rule": finding.rule and finding.rule.title,
            "sentence": finding.rule and finding.rule.sentence,
            "section": finding.rule and f"{PAGE}, {finding.rule.section}",
        }
        for finding in verdict.findings
    ]
    return document


async def _perform(
    scenarios: Sequence[Scenario], listen: str, patience: float, command: list[str] | None, *, as_json: bool
) -> list[Verdict]:
    screen = Console(stderr=True)
    console = Console(highlight=False)
    verdicts = []
    with Stage(parse_address(listen), patience) as stage, screen.status("") as status:
        if not command:
            screen.print(f"Start the program once for each scenario; its worker is {stage.address}.", markup=False)
        for scenario in scenarios:
            verdict = await stage.perform(scenario, _program(command), _progress(status, scenario))
            verdicts.append(verdict)
            if not as_json:
                _print(console, scenario, verdict)
    return verdicts


def _progress(status: Status, scenario: Scenario) -> Any:
    return lambda awaits: status.update(Text(f"{scenario.name}: awaiting {awaits}"))


def _program(command: list[str] | None) -> Client | None:
    if not command:
        return None

    async def run(address: str) -> None:
        arguments = [each.replace(ADDRESS, address) for each in command]
        process = await asyncio.create_subprocess_exec(*arguments)
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                await _stop(process)
        if status != 0:  # right after an ERROR; otherwise the verdict names it
            raise RequestError(f"exit status {status}")

    return run


async def _stop(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(KILL_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _print(console: Console, scenario: Scenario, verdict: Verdict) -> None:
    mark, style = _MARKS[verdict.outcome]
    note = "the client does not announce MIGRATE" if verdict.outcome == "skipped" else scenario.shows
    console.print(Text.assemble((mark, style), " ", (scenario.name, "bold"), "  ", (note, "dim")), soft_wrap=True)
    for finding in verdict.findings:
        console.print(Padding(_described(finding), (0, 0, 0, 4)), soft_wrap=True)


def _described(finding: Finding) -> Text:
    where = "" if finding.connection is None else f"connection {finding.connection}: "
    level = ("warning: ", "yellow") if finding.is_warning else ("error: ", "bold red")
    lines = Text.assemble(level, where, printable(finding.text))
    if finding.rule is not None:
        lines.append(f"\n{finding.rule.title}: “{finding.rule.sentence}” ({PAGE}, {finding.rule.section})", "dim")
    return lines
