"""Which pipelines live: kept in memory, for a worker that has just started has heard of none."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["RUNNING", "FAILING", "STOPPED"]


@dataclass(frozen=True, slots=True)
class _Heard:
    at: float
    stopped: bool


class Heartbeats:
    """`clock` counts seconds. Whatever a pipeline's newest generation asks for is a sign of life."""

    def __init__(self, lapse_seconds: float, clock: Callable[[], float]) -> None:
        self._lapse_seconds = lapse_seconds
        self._clock = clock
        self._heard: dict[str, _Heard] = {}

    def beat(self, name: str, *, stopped: bool = False) -> None:
        self._heard[name] = _Heard(self._clock(), stopped)

    def forget(self, name: str) -> None:
        self._heard.pop(name, None)

    def age(self, name: str) -> float | None:
        """Seconds since the last one; None if there was none."""
        heard = self._heard.get(name)
        return None if heard is None else self._clock() - heard.at

    def state(self, name: str) -> State:
        heard = self._heard.get(name)
        if heard is None or heard.stopped:
            return "STOPPED"
        return "RUNNING" if self._clock() - heard.at <= self._lapse_seconds else "FAILING"
