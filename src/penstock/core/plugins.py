"""Types by name: Penstock's own, and those that other packages offer by entry points."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Generic, TypeVar, cast

from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion

T = TypeVar("T")


class NotInstalled(RequestError):
    """A package that a type needs is missing here. It may be installed where it runs."""


def needed(module: str, what: str, extra: str) -> ModuleType:
    """The module, imported. Raises NotInstalled, with the command that brings it. `what` needs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise NotInstalled(
            f"{what} needs {module.partition('.')[0]}, which is not installed here",
            f"Install it where it runs: pip install 'penstock-streams[{extra}]'",
        ) from None


@dataclass
class Registry(Generic[T]):
    """Nothing is imported before it is needed. Penstock's own names take precedence over those of other packages."""

    what: str
    """For errors: `connector type`."""
    own: Mapping[str, str]
    """Name → `module:Class`."""
    group: str
    """The group of entry points."""
    found: dict[str, type[T]] = field(default_factory=dict)

    def names(self) -> list[str]:
        return sorted({*self.own, *self._foreign})

    def get(self, name: str) -> type[T]:
        """Raises RequestError if the name is unknown, or its package is broken."""
        if name not in self.found:
            self.found[name] = self._load(name)
        return self.found[name]

    @cached_property
    def _foreign(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def _load(self, name: str) -> type[T]:
        if name in self.own:
            module, _, attribute = self.own[name].partition(":")
            return cast("type[T]", getattr(import_module(module), attribute))
        if name not in self._foreign:
            raise self._unknown(name)
        try:
            loaded = self._foreign[name].load()
            if not hasattr(loaded, "about"):
                raise TypeError(f"{self._foreign[name].value} is not a valid {self.what}")
            return cast("type[T]", loaded)
        except Exception as error:  # a third party's module can raise anything when it is imported
            package = self._foreign[name].dist
            raise RequestError(
                f"the {self.what} {name} cannot be loaded: {str(error) or type(error).__name__}",
                f"Install it again: pip install {package.name if package is not None else name}",
            ) from error

    def _unknown(self, name: str) -> RequestError:
        return RequestError(f"unknown {self.what} {name!r}", suggestion(name, self.names()))
