"""What a pipeline's function takes, read from its file without running it."""

import ast
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from penstock.config.mistakes import nearest
from penstock.core.errors import RequestError

FUNCTION_HINT = "Write spark: file.py:function, the file beside this one, or spark: system::passthrough."


@dataclass(frozen=True, slots=True)
class Function:
    file: Path
    name: str
    digest: str
    """Of the file."""
    parameters: tuple[str, ...] | None
    """None: it is made in a way that only running the file would show."""
    required: tuple[str, ...] = ()
    """Those without a default."""

    @property
    def ports(self) -> frozenset[str] | None:
        """Its inputs: `in` is the only parameter that must be given."""
        if self.parameters is None:
            return None
        return frozenset(self.parameters) | ({"in"} if self.sole is not None else frozenset())

    @property
    def sole(self) -> str | None:
        """The parameter that `in` stands for."""
        named = self.required or self.parameters or ()
        return named[0] if len(named) == 1 else None

    def port(self, written: str) -> str:
        """One name for one input: `in` where it is the only one."""
        return "in" if self.sole is not None and written == self.sole else written


def find_function(spark: str, folder: Path) -> Function:
    """Raises RequestError."""
    file, colon, name = spark.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise RequestError(f'"{spark}" names no function', FUNCTION_HINT)
    path = (folder / file).absolute()
    try:
        source = path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}", _missing(path)) from None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise RequestError(f"{path} is no Python: {_where(error)}") from None
    return _function(tree, path, name, sha256(source).hexdigest())


def _missing(path: Path) -> str:
    others = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
    return nearest(path.name, others) if others else FUNCTION_HINT


def _where(error: Exception) -> str:
    return f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)


def _function(tree: ast.Module, path: Path, name: str, digest: str) -> Function:
    definitions = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name]
    if not definitions:
        others = _names(tree)
        if name not in others and "*" not in others:
            raise RequestError(f'{path.name} has no function "{name}"', nearest(name, others))
        return Function(path, name, digest, None)
    arguments = definitions[-1].args
    if arguments.vararg or arguments.kwarg:
        raise RequestError(f'{path.name}: "{name}" takes any arguments', "Give each input a parameter of its own.")
    return Function(path, name, digest, *_parameters(arguments))


def _parameters(arguments: ast.arguments) -> tuple[tuple[str, ...], tuple[str, ...]]:
    positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    required = positional[: len(positional) - len(arguments.defaults)]
    named = [each.arg for each in arguments.kwonlyargs]
    without = [
        each.arg for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default
    ]
    return (*positional, *named), (*required, *without)


def _names(tree: ast.Module) -> set[str]:
    """All that the module's own lines name."""
    found: set[str] = set()
    for node in tree.body:
        found |= set(_named(node))
    return found


def _named(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [each.asname or each.name for each in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets: list[Any] = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [each.id for each in targets if isinstance(each, ast.Name)]
    return ["*"] if isinstance(node, ast.If | ast.Try | ast.With | ast.For) else []
