"""The last data that `penstock top` has from a worker. It finds the worker again after an interruption."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from penstock.cli.connect import address_to_read
from penstock.client.coordinator import CoordinatorClient, EpochStatus
from penstock.core.errors import PenstockError, Unavailable
from penstock.protocol.api.history import EpochTimes, WorkerHistory
from penstock.protocol.api.status import WorkerStatus

_ANSWER_SECONDS_MAX = 5.0
"""Short, because a person is waiting, and the next attempt comes soon anyway."""

HISTORY_SECONDS = 5.0
"""The worker takes no samples in between."""

_NO_HISTORY = WorkerHistory(seconds=HISTORY_SECONDS, times=(), series={}, epochs={})


@dataclass(frozen=True, slots=True)
class Place:
    """What a page is about. An epoch's `name` is its number; an epoch or a sink also has a `pipeline`."""

    kind: Literal["overview", "source", "pipeline", "epoch", "sink"] = "overview"
    name: str = ""
    pipeline: str = ""

    @property
    def series(self) -> tuple[str, ...]:
        """The series of the worker's history that its page shows."""
        match self.kind:
            case "source":
                return (f"source/{self.name}/events", f"source/{self.name}/bytes")
            case "pipeline":
                names = ("rows_in", "rows_out", "lag_bytes", "latency_seconds")
                return tuple(f"pipeline/{self.name}/{one}" for one in names)
            case "epoch":
                return (f"pipeline/{self.pipeline}/latency_seconds",)
            case "sink":
                return (f"sink/{self.pipeline}/{self.name}/rows",)
            case "overview":
                return ()

    @property
    def epochs_of(self) -> str:
        """The pipeline whose epochs its page shows; empty if it shows none."""
        return self.name if self.kind == "pipeline" else self.pipeline


@dataclass(frozen=True, slots=True)
class Seen:
    """`status` is None until a worker has answered. `problem` is why it does not answer now."""

    place: Place = field(default_factory=Place)
    address: str = ""
    note: str = ""
    """A note if it is not the worker on this directory."""
    status: WorkerStatus | None = None
    history: WorkerHistory = _NO_HISTORY
    undelivered: tuple[EpochStatus, ...] = ()
    """Of the place's pipeline."""
    newest: int | None = None
    """The highest event time of the place's source that pipelines have read, in microseconds."""
    at: float = 0.0
    """When the worker last answered, by `time.monotonic`."""
    problem: str = ""

    def about(self, place: Place) -> "Seen":
        """The same for another page, without what belongs to this one."""
        if place == self.place:
            return self
        return replace(self, place=place, history=_NO_HISTORY, undelivered=(), newest=None)

    def past(self) -> list[EpochTimes]:
        """The last epochs of the place's pipeline that are complete, newest first."""
        return [*reversed(self.history.epochs.get(self.place.epochs_of, ()))]


class Feed:
    """Used by one thread. `seen` keeps the last data while the worker is away."""

    def __init__(self, worker: str | None, data: Path | None) -> None:
        self._named = worker, data
        self._client: CoordinatorClient | None = None
        self._asked_history: tuple[Place, float] | None = None
        self.seen = Seen()

    def look(self, place: Place) -> Seen:
        """Ask the worker again, for the page about `place`. Never raises a PenstockError: it becomes `problem`."""
        try:
            client = self._found()
            self.seen = self._ask(client, self.seen.about(place))
        except PenstockError as error:
            if isinstance(error, Unavailable):
                self.close()  # it may come back on another port
            self.seen = replace(self.seen.about(place), problem=f"{error}. {error.hint}" if error.hint else str(error))
        return self.seen

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _found(self) -> CoordinatorClient:
        if self._client is None:
            address, note = address_to_read(*self._named)
            self.seen = replace(self.seen, address=address, note=note)
            self._client = CoordinatorClient(address, 0, timeout_seconds=_ANSWER_SECONDS_MAX)
        return self._client

    def _ask(self, client: CoordinatorClient, seen: Seen) -> Seen:
        place, status, now = seen.place, client.status(), time.monotonic()
        known = {one.name for one in status.pipelines}
        undelivered = tuple(client.epochs(place.epochs_of)) if place.epochs_of in known else ()
        is_source = place.kind == "source" and place.name in status.sources
        newest = client.streams(place.name).newest if is_source else None
        history = seen.history
        if place.series and (not history.times or self._is_due(place, now)):
            history, self._asked_history = client.history(place.series), (place, now)
        return replace(seen, status=status, history=history, undelivered=undelivered, newest=newest, at=now, problem="")

    def _is_due(self, place: Place, now: float) -> bool:
        asked = self._asked_history
        return asked is None or asked[0] != place or now - asked[1] >= HISTORY_SECONDS
