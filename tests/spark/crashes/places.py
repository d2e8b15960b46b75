"""The points of an epoch at which a part can be killed."""

from dataclasses import dataclass, replace
from enum import Enum
from itertools import product

from tests.spark.crashes.tripwire import Wire


class Victim(Enum):
    DRIVER = "driver"
    WORKER = "worker"


class Window(Enum):
    BEFORE_OFFSET_LOG = "before the offset log"
    AFTER_OFFSET_LOG = "after the offset log"
    IN_WRITE = "in write"
    AFTER_REGISTRATION = "after a registration of side outputs"
    BEFORE_MERGE = "before the merge"
    AFTER_MERGE = "after the merge"
    BEFORE_COMMIT_LOG = "before the commit log"
    AFTER_COMMIT_LOG = "after the commit log"


@dataclass(frozen=True, slots=True)
class Place:
    victim: Victim
    window: Window
    pipeline: str

    def __str__(self) -> str:
        return f"{self.victim.value} {self.window.value} of {self.pipeline}"


def wire(place: Place) -> Wire | None:
    """Where the proxy must trip; None for points that are detected in files or segments."""
    match place.window:
        case Window.BEFORE_OFFSET_LOG:
            return Wire(place.pipeline, "cut", answered=True)
        case Window.AFTER_REGISTRATION:
            return Wire(place.pipeline, "side-register", answered=True)
        case Window.BEFORE_MERGE:
            return Wire(place.pipeline, "merge", answered=False)
        case Window.AFTER_MERGE:
            return Wire(place.pipeline, "merge", answered=True)
        case Window.BEFORE_COMMIT_LOG:
            return Wire(place.pipeline, "merge", answered=True, passes=True)
        case _:
            return None


def every_place(pipelines: tuple[str, ...]) -> list[Place]:
    """Each window of each victim once, with the pipelines in turn. Only windows have side outputs."""
    pairs = product(Window, Victim)
    places = [Place(victim, window, pipelines[n % len(pipelines)]) for n, (window, victim) in enumerate(pairs)]
    return [replace(one, pipeline="windowed") if one.window is Window.AFTER_REGISTRATION else one for one in places]
