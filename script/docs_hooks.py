"""What the site needs besides the pages in docs/, at build time: MkDocs calls the functions that begin with `on_`.

- Pages link to files outside docs/, as GitHub shows them. Each of these becomes a page of the site.
- The references of the command line and of Python are generated from the code.
- Pictures are drawn by the Mermaid that NiceGUI, a dependency of the dashboard, brings along: nothing is fetched from
  the Internet.
"""

import inspect
import json
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from penstock.cli.app import app
from script.public_api import NAMES, OWN_NAMES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

OUTSIDE = "repository/"
"""The folder of the site for files from outside docs/."""

_LINK = re.compile(r"(\]\()([^)\s:#]+)((?:#[^)\s]*)?\))")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)

_MERMAID_START = 'import { mermaid } from "./index.js";\nwindow.mermaid = mermaid;\n'


def on_config(config: MkDocsConfig) -> None:
    """`connectors/*` in the navigation stands for the generated pages of the connectors."""
    pages = sorted(f"connectors/{page.name}" for page in (DOCS / "connectors").glob("*.md") if page.stem != "README")
    for section in config.nav or []:
        for title, entries in section.items() if isinstance(section, dict) else ():
            section[title] = [page for one in entries for page in (pages if one == "connectors/*" else [one])]


def on_files(files: Files, config: MkDocsConfig) -> None:
    for path in sorted(_outside()):
        files.append(_generated(config, _uri(path), content=_page_of(path), inclusion=InclusionLevel.NOT_IN_NAV))
    files.append(_generated(config, "reference/cli.md", content=cli_reference()))
    files.append(_generated(config, "reference/python.md", content=python_reference()))
    for script in _mermaid().glob("*.js"):
        files.append(_generated(config, f"assets/mermaid/{script.name}", abs_src_path=str(script)))
    files.append(_generated(config, "assets/mermaid/start.mjs", content=_MERMAID_START))


def _generated(config: MkDocsConfig, uri: str, **source: Any) -> File:
    return File.generated(config, uri, **source)


def _mermaid() -> Path:
    spec = find_spec("nicegui")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "elements" / "mermaid" / "dist"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Turn links within the repository into links within the site."""
    uri = page.file.src_uri
    source = DOCS / uri
    if uri.startswith(OUTSIDE):
        source = next((path for path in _outside() if _uri(path) == uri), source)
    return _without_code(markdown, lambda text: _LINK.sub(lambda link: _relinked(link, source, uri), text))


def _without_code(markdown: str, change: Any) -> str:
    parts = _FENCED.split(markdown)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def _relinked(link: re.Match[str], source: Path, uri: str) -> str:
    target = Path(os.path.normpath(source.parent / link[2]))
    if not target.exists():
        return link[0]
    if target.is_relative_to(DOCS):
        page = str((target / "README.md" if target.is_dir() else target).relative_to(DOCS))
    else:
        page = _uri(target)
    return f"{link[1]}{os.path.relpath(page, os.path.dirname(uri) or '.')}{link[3]}"  # noqa: PTH120  of an address


# Files outside docs/.


def _outside() -> set[Path]:
    """The files and folders outside docs/ that pages of the site link to, directly or through others."""
    found: set[Path] = set()
    waiting = sorted(DOCS.rglob("*.md"))
    while waiting:
        for target in _targets(waiting.pop()) - found:
            found.add(target)
            if target.suffix == ".md":
                waiting.append(target)
    return found


def _targets(page: Path) -> set[Path]:
    text = "".join(part for part in _FENCED.split(page.read_text()) if not part.startswith("```"))
    targets = {Path(os.path.normpath(page.parent / link[2])) for link in _LINK.finditer(text)}
    return {target for target in targets if target.exists() and not target.is_relative_to(DOCS)}


def _uri(path: Path) -> str:
    name = str(path.relative_to(ROOT))
    return OUTSIDE + (name if path.suffix == ".md" else f"{name}.md")


def _page_of(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text()
    if path.is_dir():
        return "\n".join([f"# {path.relative_to(ROOT)}\n", *(_block(one) for one in sorted(path.iterdir()))])
    if path.suffix == ".ipynb":
        return "\n\n".join(_cells(path))
    return f"# {path.relative_to(ROOT)}\n\n{_block(path)}"


def _block(path: Path) -> str:
    if path.is_dir():
        return f"- {path.name}/\n"
    kind = {".py": "python", ".yaml": "yaml", ".json": "json"}.get(path.suffix, "text")
    return f"`{path.name}`\n\n````{kind}\n{path.read_text().rstrip()}\n````\n"


def _cells(notebook: Path) -> Iterator[str]:
    for cell in json.loads(notebook.read_text())["cells"]:
        text = "".join(cell["source"])
        yield text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"


# References.


def cli_reference() -> str:
    """Every command with its arguments and options, as in `--help`."""
    command = typer.main.get_command(app)
    return "\n\n".join(["# Commands and their options", "Generated from the code.", *_commands(command, "penstock")])


def _commands(command: Any, name: str) -> Iterator[str]:
    """Typer brings its own click: a group is known by its commands."""
    if hasattr(command, "list_commands"):
        for one in command.list_commands(None):
            yield from _commands(command.get_command(None, one), f"{name} {one}")
        return
    yield f"## {name}"
    yield _plain(inspect.cleandoc(command.help or "")).replace("\b", "")
    rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if rows:
        yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows])


def _row(parameter: Any) -> str:
    names = ", ".join([*parameter.opts, *parameter.secondary_opts]) if parameter.param_type_name == "option" else ""
    shown = names or f"{parameter.metavar or parameter.name.upper()}"
    is_flag = getattr(parameter, "is_flag", False) or parameter.secondary_opts
    kind = parameter.metavar or ("" if is_flag else parameter.name.upper())
    text = _plain(getattr(parameter, "help", None) or "").replace("|", "\\|").replace("\n", " ")
    default = _default(parameter)
    return f"| `{shown}{f' {kind}' if names and kind else ''}` | {text}{default} |"


def _default(parameter: Any) -> str:
    value = parameter.default
    is_shown = isinstance(value, str | int | float | Path) and not isinstance(value, bool) and str(value)
    return f" Default: `{value}`." if is_shown and "Default" not in (getattr(parameter, "help", None) or "") else ""


def _plain(text: str) -> str:
    """Escape or remove what would be markup: `<`, a `#` that begins a line, and rich's `[bold]`."""
    unmarked = re.sub(r"\[/?(?:bold|dim)\]", "", click.unstyle(text)).replace("<", "&lt;")
    return re.sub(r"^#", r"\\#", unmarked, flags=re.MULTILINE)


_PYTHON = (
    "The modules and names that programs, pipelines, connectors and tests import. Everything else may change without "
    "notice. Generated from the code."
)


def python_reference() -> str:
    """The public names. mkdocstrings replaces each line with what it finds in the source."""
    parts = ["# Python API", _PYTHON]
    for module in OWN_NAMES:
        parts += [f"## {module}", f"::: {module}\n    options: {{members: false, show_root_heading: false}}"]
        parts += [f"::: {module}.{name}" for name in _names(module)]
    for module, names in NAMES.items():
        parts += [f"## {module}", *(f"::: {module}.{name}" for name in names)]
    return "\n\n".join(parts)


def _names(module: str) -> list[str]:
    """The names to describe here. Those that `penstock` has too are described there."""
    from importlib import import_module

    listed = [name for name in import_module(module).__all__ if name not in ("__version__", "windows", "dead_letters")]
    return [name for name in listed if module == "penstock" or name not in import_module("penstock").__all__]
