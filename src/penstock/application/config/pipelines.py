"""Checks a pipeline of the file and its function for one instance, and creates its part of the deployment."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from penstock.application.config.document import Document
from penstock.application.config.lint import Item, validated
from penstock.application.config.sections import PipelineSection
from penstock.application.config.window_use import uses_windows
from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion
from penstock.protocol.api.deployment import PASSTHROUGH, PipelineSpec
from penstock.spark.source.schema import COLUMNS

# The parameters of a pipeline's function, read from its file without running it.

FUNCTION_HINT = "Write spark: file.py:function, the file beside this one, or spark: system::passthrough."


@dataclass(frozen=True, slots=True)
class Function:
    file: Path
    name: str
    digest: str
    """A digest of the file's contents."""
    parameters: tuple[str, ...] | None
    """None: it is defined in a way that only running the file would show."""
    required: tuple[str, ...] = ()
    """Parameters without a default."""
    uses_windows: bool = False
    """As far as its file shows."""

    @property
    def ports(self) -> frozenset[str] | None:
        """Its inputs; `in` is an alias of the only required parameter."""
        if self.parameters is None:
            return None
        return frozenset(self.parameters) | ({"in"} if self.sole is not None else frozenset())

    @property
    def sole(self) -> str | None:
        """The parameter that `in` is an alias of."""
        named = self.required or self.parameters or ()
        return named[0] if len(named) == 1 else None

    def port(self, written: str) -> str:
        """The one name of an input: `in` if it is the only one."""
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
        raise RequestError(f"{path} is not valid Python: {_where(error)}") from None
    return _function(tree, path, name, sha256(source).hexdigest())


def _missing(path: Path) -> str:
    others = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
    return suggestion(path.name, others) if others else FUNCTION_HINT


def _where(error: Exception) -> str:
    return f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)


def _function(tree: ast.Module, path: Path, name: str, digest: str) -> Function:
    definitions = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name]
    if not definitions:
        others = _names(tree)
        if name not in others and "*" not in others:
            raise RequestError(f'{path.name} has no function "{name}"', suggestion(name, others))
        return Function(path, name, digest, None)
    arguments = definitions[-1].args
    if arguments.vararg or arguments.kwarg:
        raise RequestError(f'{path.name}: "{name}" takes any arguments', "Use a separate parameter for each input.")
    return Function(path, name, digest, *_parameters(arguments), uses_windows(tree, name))


def _parameters(arguments: ast.arguments) -> tuple[tuple[str, ...], tuple[str, ...]]:
    positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    required = positional[: len(positional) - len(arguments.defaults)]
    named = [each.arg for each in arguments.kwonlyargs]
    without = [
        each.arg for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default
    ]
    return (*positional, *named), (*required, *without)


def _names(tree: ast.Module) -> set[str]:
    """All names that the module's top-level statements define."""
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


FUNCTION_COLUMNS = (*COLUMNS, "content_type", "metadata")
"""The columns of an event that a function can get."""

OUTPUTS = ("out", "err", "late")
"""The ports that every pipeline has."""


@dataclass(frozen=True, slots=True)
class CheckedPipeline:
    spec: PipelineSpec
    function: Function | None
    """None: it is built in."""
    item: Item | None

    @property
    def outputs(self) -> tuple[str, ...]:
        return (*OUTPUTS, *self.spec.settings.get("outputs", ()))

    @property
    def inputs(self) -> frozenset[str] | None:
        """None: only running its file would show them."""
        return frozenset({"in"}) if self.function is None else self.function.ports

    @property
    def required(self) -> frozenset[str]:
        """Inputs that must be linked."""
        if self.function is None or self.function.sole is not None:
            return frozenset({"in"})
        return frozenset(self.function.required)

    def port(self, written: str) -> str:
        return written if self.function is None else self.function.port(written)


def passthrough(name: str, instance: str) -> CheckedPipeline:
    """The built-in one."""
    return CheckedPipeline(PipelineSpec(name=name, id=PASSTHROUGH, instance=instance, spark=PASSTHROUGH), None, None)


def check_pipeline(
    document: Document, item: Item, value: Mapping[str, Any], name: str, instance: str
) -> CheckedPipeline | None:
    """None if a mistake leaves nothing to deploy."""
    section = validated(document, PipelineSection, value, item.path, (), item.what)
    spark = value.get("spark")
    function: Function | None = None
    try:
        if isinstance(spark, str) and spark != PASSTHROUGH:
            function = _pipeline_function(spark, Path(document.file).absolute().parent)
    except RequestError as error:
        _complain(document, item, error)
        return None
    if section is None:
        return None
    _check_outputs(document, item, section)
    _check_columns(document, item, section)
    return CheckedPipeline(_spec(section, function, name, instance), function, item)


def _complain(document: Document, item: Item, error: RequestError) -> None:
    where = (*item.path, "spark")
    if document.is_outside(where):
        document.complain(where, f"{item.what}: {document.written[where]} does not name a function", FUNCTION_HINT)
    else:
        document.complain(where, f"{item.what}: {error}", error.hint)


def _pipeline_function(spark: str, folder: Path) -> Function:
    if spark.startswith("system"):
        raise RequestError(f'unknown pipeline "{spark}"', suggestion(spark, [PASSTHROUGH]))
    return find_function(spark, folder)


def _check_outputs(document: Document, item: Item, section: PipelineSection) -> None:
    for index, port in enumerate(section.outputs):
        if port in OUTPUTS or port in section.outputs[:index] or port == "in":
            text = (
                f'{item.what}: the port "{port}" already exists' if port != "in" else f'{item.what}: "in" is an input'
            )
            document.complain(
                (*item.path, "outputs", index), text, "List only the ports besides out, err and late, each once."
            )


def _check_columns(document: Document, item: Item, section: PipelineSection) -> None:
    if section.columns is None:
        return
    where = (*item.path, "columns")
    if section.spark == PASSTHROUGH:
        text = f"{item.what}: {PASSTHROUGH} passes whole events on"
        document.complain(where, text, "Leave columns out.")
    for index, name in enumerate(section.columns):
        if name not in FUNCTION_COLUMNS:
            document.complain(
                (*where, index), f'{item.what}: unknown column "{name}"', suggestion(name, FUNCTION_COLUMNS)
            )
    if not section.columns:
        document.complain(where, f"{item.what}: no columns are named", f"Available: {', '.join(FUNCTION_COLUMNS)}.")


def _spec(section: PipelineSection, function: Function | None, name: str, instance: str) -> PipelineSpec:
    return PipelineSpec(
        name=name,
        id=section.id,
        instance=instance,
        spark=PASSTHROUGH if function is None else f"{function.file}:{function.name}",
        code="" if function is None else function.digest,
        settings=section.settings,
    )
