"""The applications in `examples/`, which the wheel contains: `penstock init --example NAME` writes one of them.

An example is a file NAME.yaml, which begins with a comment: a paragraph about what it does, and the commands that show
it, indented. Everything else that is called NAME belongs to it: its functions, data, schemas.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion

_FOLDER = "examples/"
"""Examples are written for the directory above it. What is written by `init` runs where it is."""

_SUFFIX = ".yaml"


class ExampleApp(NamedTuple):
    name: str
    about: str
    """The paragraph about what it does."""
    commands: tuple[str, ...]
    """What to type, and remarks on it; for the directory that the files are in."""
    files: tuple[Traversable, ...]

    def texts(self) -> dict[str, str]:
        """By the names of its files; with a README."""
        found = {each.name: each.read_text(encoding="utf-8").replace(_FOLDER, "") for each in self.files}
        commands = "\n".join(f"    {one}".rstrip() for one in self.commands)
        return found | {"README.md": f"# {self.name}\n\n{self.about}\n\n{commands}\n"}


def example_apps() -> list[ExampleApp]:
    """By name."""
    found = {each.name: each for each in _folder().iterdir() if each.is_file()}
    names = sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX))
    return [_app(name, [found[each] for each in sorted(found) if each.partition(".")[0] == name]) for name in names]


def example_app(name: str) -> ExampleApp:
    """Raises RequestError if there is none."""
    known = {app.name: app for app in example_apps()}
    if name not in known:
        raise RequestError(
            f"there is no example {name!r}", suggestion(name, known) or "List them: penstock init --list"
        )
    return known[name]


def _folder() -> Traversable:
    """In the wheel, or beside the sources."""
    package = files("penstock")
    inside = package.joinpath("examples")
    return inside if inside.is_dir() else Path(str(package)).parents[1] / "examples"


def _app(name: str, of: list[Traversable]) -> ExampleApp:
    (config,) = (each for each in of if each.name == name + _SUFFIX)
    comment: list[str] = []
    for line in config.read_text(encoding="utf-8").replace(_FOLDER, "").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.removeprefix("#"))
    about = [line.strip() for line in comment if line.strip() and not line.startswith("  ")]
    commands = [line.strip() for line in comment if line.startswith("  ")]
    return ExampleApp(name, " ".join(about), tuple(commands), tuple(of))
