"""Names of a package that are imported on first use.

`dir()` and completion list them anyway, and type checkers see them through imports under TYPE_CHECKING.
"""

from collections.abc import Mapping
from importlib import import_module

SPARK_EXTRA = "pip install 'penstock-streams[spark]'"


def lazy_name(package: str, homes: Mapping[str, str], name: str) -> object:
    """The `name` of a `package`, for its `__getattr__`. `homes` maps each name to `module:attribute`, or to a module.

    Raises AttributeError for an unknown name, and ImportError with the pip command if Spark is not installed.
    """
    home = homes.get(name)
    if home is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
    module, _, attribute = home.partition(":")
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("penstock"):
            raise
        raise ImportError(
            f"{package}.{name} needs {error.name}, which is not installed: {SPARK_EXTRA}", name=error.name
        ) from error
    return getattr(found, attribute) if attribute else found
