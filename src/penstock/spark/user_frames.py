"""Which frames of a traceback are the user's own."""

import importlib.util
import os
import sysconfig
import traceback
from functools import cache
from pathlib import Path

_FRAMEWORKS = ("penstock", "pyspark", "py4j", "pyarrow")
_INSTALLED = "site-packages"


def is_the_users(file: str) -> bool:
    """Neither ours, nor Spark's, nor Python's own."""
    return file.endswith(".py") and not file.startswith(("<", *_framework_folders())) and not _is_pythons(file)


def place_of(error: BaseException) -> str | None:
    """`orders.py:12`, the user's line that was running; None if there is none. What it calls of installed packages is
    passed over, unless all of it is installed.
    """
    frames = [one for one in traceback.extract_tb(error.__traceback__) if is_the_users(one.filename)]
    own = [one for one in frames if _INSTALLED not in one.filename] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else None


def _is_pythons(file: str) -> bool:
    return file.startswith(sysconfig.get_path("stdlib") + os.sep) and _INSTALLED not in file


@cache
def _framework_folders() -> tuple[str, ...]:
    found = (importlib.util.find_spec(name) for name in _FRAMEWORKS)
    return tuple(str(Path(spec.origin).parent) + os.sep for spec in found if spec is not None and spec.origin)
