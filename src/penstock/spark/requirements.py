"""What must be installed to run pipelines."""

from collections.abc import Sequence
from importlib.util import find_spec

from penstock.core.errors import RequestError

NEEDED = ("pyspark", "pyarrow")


def check_installed(needed: Sequence[str] = NEEDED) -> None:
    """Raises RequestError that says what to do."""
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise RequestError(f"pipelines need {names}, not installed here", "pip install 'penstock-streams[spark]'")
