"""How long the starts of pipelines took: DATA/starts.json, so that a start can be told how long it will take."""

import json
import logging
from pathlib import Path

from penstock.coordinator.heartbeats import DEFAULT_START_SECONDS

log = logging.getLogger(__name__)

_FILE = "starts.json"

_PIPELINES_MAX = 1000
"""Pipelines that are remembered; the one measured longest ago goes first."""


class StartTimes:
    """An estimate, and no more: a file that cannot be read or written is as none."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._seconds = _read(self._path)

    def seconds(self, name: str) -> float:
        """Its last start; of one that was never measured, the longest of the others: most of a start is Spark's."""
        return self._seconds.get(name) or max(self._seconds.values(), default=DEFAULT_START_SECONDS)

    def keep(self, name: str, seconds: float) -> None:
        self._seconds.pop(name, None)
        self._seconds[name] = round(seconds, 1)
        while len(self._seconds) > _PIPELINES_MAX:
            del self._seconds[next(iter(self._seconds))]
        partial = self._path.with_suffix(".tmp")
        try:
            partial.write_text(json.dumps(self._seconds) + "\n")
            partial.replace(self._path)
        except OSError as error:
            log.warning("%s is not written: %s", self._path, error)


def _read(path: Path) -> dict[str, float]:
    try:
        return {str(name): float(seconds) for name, seconds in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
