"""The reference of connector types and interceptors: on the terminal, and as pages of the documentation."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from inspect import cleandoc
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from penstock.application.config.schema import Option, options_of
from penstock.application.config.types import Types
from penstock.connectors.api import About, Capabilities, ShownBy
from penstock.connectors.urls import written
from penstock.core.errors import RequestError

_PAUSES = {
    "stream": "one stream at a time",
    "session": "all streams of one connection together",
    "whole": "the whole connector",
}
_INDEX = "README.md"
_OF_TESTS = "A class is the type's conformance suite, from `penstock.testing.conformance`."
_NO_EDIT = "<!-- Written by `penstock connectors --write-docs docs/connectors`: change the connector's own file. -->"


@dataclass(frozen=True, slots=True)
class TypePage:
    name: str
    text: str
    ports: tuple[str, ...]
    facts: dict[str, str]
    """Its guarantees and properties, by short labels."""
    options: tuple[Option, ...]
    of_options: str
    """What applies to all options."""
    example: str = ""
    """A connector in YAML."""
    install: str = ""
    shown_by: ShownBy = field(default_factory=ShownBy)


def page_of(types: Types, name: str) -> TypePage:
    """For a connector type, or else an interceptor. Raises RequestError for an unknown name."""
    if name in types.interceptors() and name not in types.names():
        interceptor = types.interceptor(name)
        options = interceptor.options
        facts = _ways(types, name, options)
        return TypePage(name, interceptor.text, (), facts, tuple(options_of(options)), _of_options(options))
    about = types.about(name)
    can = about.capabilities
    return TypePage(
        name=name,
        text=about.text,
        ports=_ports(can),
        facts=dict(_facts(can)) | _url(about),
        options=tuple(options_of(about.options)),
        of_options=_of_options(about.options),
        example=_example(about),
        install=f"pip install 'penstock-streams[{about.extra}]'" if about.extra else "",
        shown_by=about.shown_by,
    )


def _of_options(model: type[BaseModel]) -> str:
    """The model's own docstring, not an inherited one, with its paragraphs."""
    paragraphs = cleandoc(model.__dict__.get("__doc__") or "").split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in paragraphs)


def _ways(types: Types, name: str, options: type[BaseModel]) -> dict[str, str]:
    """Where the interceptor can be used, unless that depends on a required option."""
    if any(field.is_required() for field in options.model_fields.values()):
        return {}
    return {"used under": ", ".join(sorted(types.directions(name, options())))}


def _ports(can: Capabilities) -> tuple[str, ...]:
    return (*(("out", "err") if can.source is not None else ()), *(("in",) if can.sink is not None else ()))


def _facts(can: Capabilities) -> Iterator[tuple[str, str]]:
    if can.source is not None:
        yield "as a source", f"{can.source.value}"
        yield "a stream", "resumes where it was" if can.resumes else "ends with its connection"
        yield "pauses", _PAUSES.get(can.pauses.value, str(can.pauses.value))
    if can.sink is not None:
        yield "as a sink", f"{can.sink.value}{', transactional' if can.votes else ''}"
        yield "on stream-started", can.on_stream_started
    if can.is_linked:
        yield "replies", "go to the connection that the event came from"
    if can.every_worker:
        yield "in a cluster", "one worker listens, or all with `listen: every-worker`"
    yield "interceptors", ", ".join(sorted(can.interceptors)) or "none"
    yield "codec", "must be named" if can.has_codec else "need not be named"


def _url(about: About) -> dict[str, str]:
    """The form of a sink of the type on the command line."""
    can = about.capabilities
    if can.sink is None or can.is_linked:
        return {}
    implied = ", ".join(f"`{name}: {value}`" for name, value in about.url.implied.items())
    return {"as a sink's URL": f"`{written(about)}`" + (f", with {implied} by default" if implied else "")}


def _example(about: About) -> str:
    connector: dict[str, Any] = {"id": f"my-{about.name}", "type": about.name}
    connector |= {"config": dict(about.example)} if about.example else {}
    connector |= {"codec": "json"} if about.capabilities.has_codec else {}
    written: str = yaml.safe_dump({"connector": [connector]}, sort_keys=False, allow_unicode=True)
    return written


def url_options(about: About) -> list[Option]:
    """The options that are allowed in the query of a sink's URL, under their names there."""
    form = about.url
    return [
        Option(form.prefix + one.name, one.values, str(form.implied.get(one.name, one.default)), one.required, one.text)
        for one in options_of(about.options)
        if one.name not in form.fields
    ]


def pages(types: Types) -> dict[str, str]:
    """The documentation's files, by name."""
    found = [page_of(types, name) for name in sorted(types.names())]
    chains = [page_of(types, name) for name in sorted(types.interceptors())]
    return {_INDEX: _index(found, chains)} | {f"{page.name}.md": markdown(page) for page in found}


def write_pages(types: Types, folder: Path) -> list[Path]:
    """Removes the pages of types that no longer exist. Raises RequestError, without changing anything, if a file that
    was written by hand is in the place of a page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = {folder / name: text for name, text in pages(types).items()}
    for path in written:
        if path.exists() and not _is_ours(path):
            raise RequestError(f"{path} already exists and was not generated by this command", "Choose another folder.")
    for stale in set(folder.glob("*.md")) - written.keys():
        if _is_ours(stale):
            stale.unlink()
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    return [*written]


def _is_ours(path: Path) -> bool:
    return path.is_file() and _NO_EDIT in path.read_text(encoding="utf-8", errors="replace")


def markdown(page: TypePage) -> str:
    lines = [f"# {page.name}", "", _NO_EDIT, "", page.text, ""]
    lines += [f"Ports: {', '.join(f'`{port}`' for port in page.ports)}.", ""]
    lines += [f"It needs `{page.install}`.", ""] if page.install else []
    lines += ["| | |", "|---|---|", *(f"| {word} | {_cell(fact)} |" for word, fact in page.facts.items()), ""]
    lines += ["## Options", "", *([page.of_options, ""] if page.of_options else []), *_option_lines(page), ""]
    lines += ["## Example", "", "```yaml", page.example.rstrip(), "```", ""]
    return "\n".join(lines)


def _option_lines(page: TypePage) -> list[str]:
    if not page.options:
        return ["It has none."]
    rows = [f"| `{one.name}` | {_cell(one.values)} | {_default(one)} | {_cell(one.text)} |" for one in page.options]
    return ["| option | value | default | |", "|---|---|---|---|", *rows]


def _default(option: Option) -> str:
    if option.required:
        return "**required**"
    return f"`{option.default}`" if option.default else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _shown(page: TypePage, port: str, test: str) -> str:
    guarantee = page.facts.get(port, "")
    return f"{guarantee}: `{test}`" if test else guarantee


def _index(found: list[TypePage], interceptors: list[TypePage]) -> str:
    head = "\n".join(
        ["# Types of connectors", "", _NO_EDIT, "", "| type | as a source | as a sink | |", "|---|---|---|---|"]
    )
    shown = [
        f"| [{page.name}]({page.name}.md) | {_shown(page, 'as a source', page.shown_by.source)} "
        f"| {_shown(page, 'as a sink', page.shown_by.sink)} |"
        for page in found
    ]
    rows = [
        f"| [{page.name}]({page.name}.md) | {page.facts.get('as a source', '')} | {page.facts.get('as a sink', '')} "
        f"| {_cell(page.text)} |"
        for page in found
    ]
    lines = [head, *rows, "", "# Guarantees and their tests", "", _OF_TESTS, ""]
    lines += ["| type | as a source | as a sink |", "|---|---|---|", *shown, "", "# Interceptors", ""]
    for page in interceptors:
        ways = [f"Use it under `{way}`." for way in filter(None, [page.facts.get("used under")])]
        lines += [f"## {page.name}", "", " ".join([page.text, *ways, page.of_options]).rstrip(), ""]
        lines += [*_option_lines(page), ""]
    return "\n".join(lines)
