"""Users' functions by `file.py:function`, each version of a file loaded as a module of its own."""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.core.errors import RequestError
from penstock.spark.pipelines import Pipeline
from penstock.spark.run.user_code import shown_at_the_users_line


@dataclass(frozen=True, slots=True, eq=False)
class UserFunction:
    call: Callable[..., Any]
    module: ModuleType
    sole: str | None
    """The parameter that the port `in` stands for."""

    def parameter(self, port: str) -> str:
        return self.sole if port == "in" and self.sole is not None else port


def load_function(spark: str, code: str) -> UserFunction:
    """Runs the file, unless this version of it was run already. Its folder is put on the path of modules, as for a
    program. Raises RequestError at the user's line.
    """
    file, _, name = spark.rpartition(":")
    module = _module(Path(file), code)
    found = getattr(module, name, None)
    if isinstance(found, Pipeline):
        found = found.function
    if not callable(found):
        raise RequestError(f"{file} has no function {name!r}", "Write spark: file.py:function.")
    return UserFunction(found, module, _sole(found))


def _module(path: Path, code: str) -> ModuleType:
    name = f"{path.stem}_{code[:12]}" if code else path.stem
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise RequestError(f"there is no Python file {path}", "It must be where penstock run is started.")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with shown_at_the_users_line(f"{path} cannot be loaded"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _sole(function: Callable[..., Any]) -> str | None:
    """The only parameter that must be given, or the only one that there is."""
    parameters = inspect.signature(function).parameters.values()
    required = [one.name for one in parameters if one.default is one.empty]
    named = required or [one.name for one in parameters]
    return named[0] if len(named) == 1 else None
