"""A pipeline of the file for one instance: its keys and its function checked, and what is deployed of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.config.deployment import PASSTHROUGH, PipelineSpec
from penstock.config.functions import FUNCTION_HINT, Function, find_function
from penstock.config.lint import validated
from penstock.config.mistakes import nearest
from penstock.config.models import PipelineSection
from penstock.config.sections import Item
from penstock.config.yaml_document import Document
from penstock.core.errors import RequestError

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
        """None: only running its file would show."""
        return frozenset({"in"}) if self.function is None else self.function.ports

    @property
    def required(self) -> frozenset[str]:
        """Inputs that something must be linked to."""
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
    """None if there is a mistake that leaves nothing to deploy."""
    section = validated(document, PipelineSection, value, item.path, (), item.what)
    spark = value.get("spark")
    function: Function | None = None
    try:
        if isinstance(spark, str) and spark != PASSTHROUGH:
            function = _function(spark, Path(document.file).absolute().parent)
    except RequestError as error:
        _complain(document, item, error)
        return None
    if section is None:
        return None
    _check_outputs(document, item, section)
    return CheckedPipeline(_spec(section, function, name, instance), function, item)


def _complain(document: Document, item: Item, error: RequestError) -> None:
    where = (*item.path, "spark")
    if document.is_outside(where):
        document.complain(where, f"{item.what}: {document.written[where]} stands for no function", FUNCTION_HINT)
    else:
        document.complain(where, f"{item.what}: {error}", error.hint)


def _function(spark: str, folder: Path) -> Function:
    if spark.startswith("system"):
        raise RequestError(f'there is no pipeline "{spark}"', nearest(spark, [PASSTHROUGH]))
    return find_function(spark, folder)


def _check_outputs(document: Document, item: Item, section: PipelineSection) -> None:
    for index, port in enumerate(section.outputs):
        if port in OUTPUTS or port in section.outputs[:index] or port == "in":
            text = (
                f'{item.what}: the port "{port}" is there already' if port != "in" else f'{item.what}: "in" is an input'
            )
            document.complain((*item.path, "outputs", index), text, "Name those beside out, err and late.")


def _spec(section: PipelineSection, function: Function | None, name: str, instance: str) -> PipelineSpec:
    return PipelineSpec(
        name=name,
        id=section.id,
        instance=instance,
        spark=PASSTHROUGH if function is None else f"{function.file}:{function.name}",
        code="" if function is None else function.digest,
        settings=section.settings,
    )
