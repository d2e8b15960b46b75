"""`penstock connectors` and `penstock schema`: what an application's file may contain."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.connect import JsonOption
from penstock.core.errors import RequestError

if TYPE_CHECKING:
    from penstock.application.config.types import KnownTypes
    from penstock.application.type_pages import TypePage

_WIDTH = 140
"""For output to a file or a pipe, so that no column is cut short."""


def register(app: typer.Typer) -> None:
    app.command("connectors")(connectors)
    app.command("schema")(schema)


def connectors(
    name: Annotated[str | None, typer.Argument(metavar="[TYPE]", help="Only this one, with its options.")] = None,
    write_docs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a page of documentation for each type.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the types of connectors and interceptors, what they promise, and the options of one."""
    from penstock.application.config.types import KnownTypes
    from penstock.application.type_pages import page_of, write_pages

    types = KnownTypes()
    if write_docs is not None:
        typer.echo(f"{len(write_pages(types, write_docs))} pages in {write_docs}")
        return
    pages = [page_of(types, name)] if name else list(_pages(types))
    if as_json:
        typer.echo(json.dumps([asdict(page) for page in pages], indent=2))
        return
    console = _console()
    if name is None:
        console.print(_list([page for page in pages if page.ports]))
        console.print(_interceptors([page for page in pages if not page.ports]))
        console.print("The options of one: penstock connectors TYPE", style="dim")
    else:
        _show(console, pages[0])


def _pages(types: "KnownTypes") -> "Iterator[TypePage]":
    """A broken package is reported, and does not hide the others."""
    from penstock.application.type_pages import page_of

    for name in (*types.names(), *types.interceptors()):
        try:
            yield page_of(types, name)
        except RequestError as error:
            typer.echo(f"{error}. {error.hint}", err=True)


def schema(
    api: Annotated[bool, typer.Option("--api", help="The worker's HTTP API instead, as OpenAPI 3.1.")] = False,
) -> None:
    """Print the JSON schema of an application's file, for editors.

    In VS Code and others with yaml-language-server: penstock schema >
    penstock.schema.json, and in the first line of the file:
    # yaml-language-server: $schema=penstock.schema.json
    """
    from penstock.application.config import schema
    from penstock.application.config.types import KnownTypes
    from penstock.worker import openapi

    found = openapi.document() if api else schema.schema(KnownTypes())
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=_WIDTH, highlight=False)


def _list(pages: "list[TypePage]") -> Table:
    table = Table("type", "ports", "as a source", "as a sink", "")
    for page in pages:
        promises = (page.facts.get(role, "") for role in ("as a source", "as a sink"))
        table.add_row(page.name, " ".join(page.ports), *promises, escape(page.text))
    return table


def _interceptors(pages: "list[TypePage]") -> Table:
    table = Table("interceptor", "")
    for page in pages:
        table.add_row(page.name, escape(page.text))
    return table


def _show(console: Console, page: "TypePage") -> None:
    console.print(f"[bold]{page.name}[/]: {escape(page.text)}")
    if page.install:
        console.print(f"It needs: {escape(page.install)}")
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    if page.ports:
        facts.add_row("ports", ", ".join(page.ports))
    for word, fact in page.facts.items():
        facts.add_row(word, escape(fact))
    console.print(facts)
    if page.of_options:
        console.print(escape(page.of_options))
    if page.options:
        console.print(_options(page))
    console.print(page.example.rstrip(), markup=False, soft_wrap=True)


def _options(page: "TypePage") -> Table:
    table = Table("option", "value", "default", "")
    for one in page.options:
        default = "required" if one.required else one.default
        table.add_row(escape(one.name), escape(one.values), escape(default), escape(one.text))
    return table
