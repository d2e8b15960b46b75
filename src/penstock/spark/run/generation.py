"""One start of a pipeline: the options that tie Spark's loads and its sink to it, and its heartbeat."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.client.coordinator import CoordinatorClient, InputSpec, Limits, Starting
from penstock.client.credentials import default_worker
from penstock.client.segments.failures import RETRY_SECONDS
from penstock.core.errors import Fenced, PenstockError, RequestError
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import QueryFailure, Started
from penstock.spark.carried import advertised_address
from penstock.spark.input_frames import InputFrame
from penstock.spark.pipelines import Start, limits_of, sources_of, starting_of
from penstock.spark.run.checkpoints import (
    Checkpoint,
    LocalCheckpoint,
    adopt_moved,
    incarnation_of,
    is_fresh,
    local_path,
)
from penstock.spark.run.query_probe import QueryProbe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

NO_LIMITS = Limits()

HEARTBEAT_SECONDS = 3.0
"""A few may be lost before the worker reports the pipeline as failing."""

_REPORT_SECONDS_MAX = 10.0
"""For one report to the worker, in the background: the next one follows soon."""

_LAST_REPORT_SECONDS_MAX = 2.0
"""An unreachable worker does not keep a driver from ending: the heartbeat lapses by itself."""


@dataclass(frozen=True, slots=True)
class _Failure:
    text: str
    failures: int
    restart_at: float | None
    hint: str

    def reported(self, *, is_over: bool) -> QueryFailure:
        """As of now. `is_over`: the driver ends, and restarts nothing."""
        if self.restart_at is None or is_over:
            return QueryFailure(self.text, self.failures, None, self.hint)
        return QueryFailure(self.text, self.failures, max(0.0, self.restart_at - time.monotonic()), self.hint)


@dataclass(frozen=True, slots=True)
class Mirroring:
    """Where a checkpoint on this machine is mirrored, and by whom."""

    store: str | None = None
    """The URL of the worker's bucket; None: nowhere."""
    checkpoint: str | None = None
    """Set for Spark's own sinks, where the source mirrors it. Otherwise our sink does before the merge, and gets the
    location from Spark."""

    def by_sink(self) -> dict[str, str]:
        return {} if self.store is None else {"store": self.store}

    def by_source(self) -> dict[str, str]:
        is_due = self.store is not None and self.checkpoint is not None
        return {"store": self.store or "", "checkpoint": self.checkpoint or ""} if is_due else {}


NOT_MIRRORED = Mirroring()


@dataclass(frozen=True, slots=True)
class ExecutorAccess:
    """How the tasks of a Spark cluster reach the worker."""

    advertised: str
    """Its HTTP address, as executors reach it."""
    carries_token: bool = True
    """False: executors have a token file of their own, which PENSTOCK_TOKEN_FILE names in their environment."""

    def options(self) -> dict[str, str]:
        carries = {} if self.carries_token else {"carriesToken": "false"}
        return {"advertisedWorker": self.advertised, **carries}


class Generation:
    """From `begin` until `stop`, or until a newer generation takes over: then `fenced` is set.

    `input` and `output` return the options for Spark. A background thread sends the worker heartbeats, reports a
    failure of the query and, for Spark's own sinks, which epochs are committed.
    """

    def __init__(
        self,
        name: str,
        worker: str,
        number: int,
        inputs: Mapping[str, Sequence[str]],
        mirroring: Mirroring = NOT_MIRRORED,
        executors: ExecutorAccess | None = None,
    ) -> None:
        """`executors`: set if tasks do not run on this machine."""
        self.name = name
        self.is_restored = False
        """Whether the checkpoint on this machine was restored from the worker's bucket."""
        self._mirroring = mirroring
        self._executors = executors
        self.number = number
        self.fenced: Fenced | None = None
        self.frames: list[InputFrame] = []
        """What `load` has returned."""
        self._worker = worker
        self._inputs = inputs
        self._committed = self._reported = NO_EPOCH
        self._ended = self._failed = self._abandoned = False
        self._failure: _Failure | None = None
        self._probe: QueryProbe | None = None
        self._news = 0
        """Counts what is to be reported before the next heartbeat is due."""
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._report_until_stopped, name=f"heartbeat of {name}", daemon=True)
        self._thread.start()

    def input(self, name: str, *, min_partitions: int | None = None) -> dict[str, str]:
        """For `spark.readStream.format("penstock").options(**…)`."""
        if name not in self._inputs:
            raise RequestError(f"{self.name} has no input {name!r}", f"It has: {', '.join(self._inputs)}.")
        options = (
            self._options() | {"input": name, "source": ",".join(self._inputs[name])} | self._mirroring.by_source()
        )
        return options if min_partitions is None else options | {"minPartitions": str(min_partitions)}

    def load(self, spark: SparkSession, name: str, **options: str) -> DataFrame:
        """The stream of an input, with these further options of a load. In `penstock.session`, windows on this very
        frame are fused with its reader where that is possible.
        """
        given = {**self.input(name), **options}
        frame = spark.readStream.format("penstock").options(**given).load()
        self.frames.append(InputFrame(frame, given, frame.schema))
        return frame

    def load_options(self) -> dict[str, str]:
        """Of the load of its first input."""
        return self.input(next(iter(self._inputs)))

    def output(self) -> dict[str, str]:
        """For `frame.writeStream.format("penstock").options(**…)`."""
        return self._options() | self._mirroring.by_sink()

    def _options(self) -> dict[str, str]:
        options = {"worker": self._worker, "pipeline": self.name, "generation": str(self.number)}
        return options if self._executors is None else options | self._executors.options()

    def describe(
        self, schemas: Mapping[str, Sequence[tuple[str, str]]], *, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        """Report the fields of the output ports' rows, for SQL sinks: before the query can end an epoch."""
        with CoordinatorClient(self._worker, retry_seconds) as coordinator:
            coordinator.describe(self.name, self.number, schemas)

    def watch(self, probe: QueryProbe) -> None:
        """Heartbeats report what this probe finds out, until the query fails or the generation is stopped."""
        self._unwatch()
        self._probe = probe

    def _unwatch(self) -> None:
        if self._probe is not None:
            self._probe.stop()
            self._probe = None

    def committed(self, epoch: int) -> None:
        """Spark has committed all epochs up to this one. Returns at once. If the source mirrors the checkpoint, its
        next request reports that, once the commit is mirrored.
        """
        with self._wake:
            if epoch > self._committed and not self._mirroring.by_source():
                self._committed = epoch
                self._news += 1
                self._wake.notify()

    def failed(self, text: str, failures: int, restart_at: float | None, hint: str = "") -> None:
        """The query has failed, so many times in a row. `restart_at`: when it is restarted, by `time.monotonic`; None:
        never. The worker gets to know that now, and for as long as this generation is not stopped. Returns at once.
        """
        self._unwatch()
        with self._wake:
            self._failed, self._failure = True, _Failure(text, failures, restart_at, hint)
            self._news += 1
            self._wake.notify()

    def stop(self, *, failed: bool = False) -> None:
        """Report to the worker that the pipeline has stopped normally, or has `failed`. May be called again."""
        self._unwatch()
        with self._wake:
            self._ended = True
            self._failed = failed
            self._failure = self._failure if failed else None
            self._wake.notify()
        self._thread.join(_REPORT_SECONDS_MAX + _LAST_REPORT_SECONDS_MAX)

    def abandon(self) -> None:
        """Another process reports from now on: nothing is reported at the end."""
        self._abandoned = True
        self._unwatch()
        with self._wake:
            self._ended = True
            self._wake.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(failed=error is not None)

    # In the background.

    def _report_until_stopped(self) -> None:
        with CoordinatorClient(self._worker, 0, timeout_seconds=_REPORT_SECONDS_MAX) as coordinator:
            while self.fenced is None and not self._ended:
                reported = self._news
                self._report(coordinator)
                with self._wake:
                    self._wake.wait_for(lambda: self._ended or self._news > reported, HEARTBEAT_SECONDS)  # noqa: B023
        if self.fenced is None and not self._abandoned:
            with CoordinatorClient(self._worker, 0, timeout_seconds=_LAST_REPORT_SECONDS_MAX) as coordinator:
                self._report(coordinator)

    def _report(self, coordinator: CoordinatorClient) -> None:
        """If this fails, the next heartbeat reports the same."""
        epoch, ended, failure, probe = self._committed, self._ended, self._failure, self._probe
        try:
            if epoch > self._reported:
                coordinator.complete(self.name, self.number, epoch)
                self._reported = epoch
            coordinator.heartbeat(
                self.name,
                self.number,
                stopped=ended and not self._failed,
                failed=self._failed,
                failure=None if failure is None else failure.reported(is_over=ended),
                query=None if probe is None else probe.report(),
            )
        except Fenced as error:
            self.fenced = error
        except PenstockError as error:
            log.info("%s: cannot reach the worker: %s", self.name, error)


def is_outdated(checkpoint: Checkpoint, name: str, worker: str, *, retry_seconds: float = RETRY_SECONDS) -> bool:
    """Whether the pipeline was reset after the checkpoint was created: then no query can continue from it. Only a reset
    that this worker knows of counts: the checkpoint may belong to a pipeline of the same name at another worker.
    """
    incarnation = incarnation_of(checkpoint)
    if incarnation is None:
        return False
    with CoordinatorClient(worker, retry_seconds) as coordinator:
        known = {one.name: one for one in coordinator.pipelines()}.get(name)
    return known is not None and known.is_reset and incarnation < known.incarnation


def move_outdated_aside(
    checkpoint: Checkpoint, name: str, worker: str, *, retry_seconds: float = RETRY_SECONDS
) -> str | None:
    """Returns the new location, or None if it was not moved. Called before the pipeline is restarted: a crash in
    between changes nothing.
    """
    is_moved = is_outdated(checkpoint, name, worker, retry_seconds=retry_seconds)
    return checkpoint.move_aside() if is_moved else None


def start_generation(
    name: str,
    worker: str,
    inputs: Mapping[str, Sequence[str]],
    outputs: Sequence[str],
    *,
    starting: Starting = "earliest",
    limits: Limits = NO_LIMITS,
    checkpoint: str | None = None,
    fresh: bool | None = None,
    executors: ExecutorAccess | None = None,
    retry_seconds: float = RETRY_SECONDS,
) -> Generation:
    """Fences older generations. `checkpoint`: its location, if it is known. If it is on this machine and the worker has
    a bucket, and the pipeline has gone on elsewhere since, it is restored from there. `fresh`: whether Spark has
    planned no batch there, if the caller knows. `executors`: set if tasks run elsewhere; then the checkpoint is on a
    file system that they share, and is not mirrored: what they have just written, this machine may see later. Raises
    RequestError, Unavailable when no worker answers for `retry_seconds`, and as `restored_if_needed`.
    """
    specs = {key: InputSpec(sources, starting) for key, sources in inputs.items()}
    if fresh is None and checkpoint is not None:
        fresh = is_fresh(checkpoint)
    with CoordinatorClient(worker, retry_seconds) as coordinator:
        started = coordinator.start(name, specs, outputs, limits, fresh=fresh)
    mirroring = Mirroring(started.store, None if outputs else checkpoint) if executors is None else NOT_MIRRORED
    generation = Generation(name, worker, started.generation, inputs, mirroring, executors)
    if checkpoint is not None:
        _restore_if_needed(generation, checkpoint, started, is_mirrored=executors is None or bool(outputs))
    return generation


def _restore_if_needed(generation: Generation, checkpoint: str, started: Started, *, is_mirrored: bool) -> None:
    """After the start: the ledger's checkpoint is final then, because older generations are fenced. `is_mirrored`: the
    ledger gets to know of later checkpoints, by their manifests or, from merges, that there is none.
    """
    if started.store is None or not started.manifest:
        return
    from penstock.spark.run.checkpoint_mirror import restored_if_needed  # here: other drivers do not need it

    try:
        if not is_mirrored:
            raise RequestError(
                f"the checkpoint of {generation.name} is mirrored in the worker's bucket, which a Spark cluster does "
                "not do, and with a sink of Spark's the worker could not know that a later one exists",
                f"Run it with a local master, or start it from scratch: penstock pipeline reset {generation.name}",
            )
        generation.is_restored = restored_if_needed(checkpoint, started)
    except BaseException:
        generation.stop(failed=True)
        raise


def begin(
    name: str,
    *,
    worker: str | None = None,
    inputs: Mapping[str, str | Sequence[str]],
    outputs: Sequence[str] = ("out",),
    starting: Start = "earliest",
    max_bytes_per_epoch: int | str | None = None,
    max_rows_per_epoch: int | None = None,
    checkpoint: str | Path | None = None,
    advertised_worker: str | None = None,
) -> Generation:
    """Start a pipeline in your own Spark session, and fence its older generations.

    `worker` is its HTTP address; by default PENSTOCK_WORKER, else the worker on ./penstock-data, else 127.0.0.1:7102.
    `inputs` names the sources of each load. `outputs`: the ports of the sink; [] for Spark's own sinks, whose epochs
    `penstock.spark.watch` reports as complete. With `checkpoint`, a query that has lost its checkpoint is refused here
    rather than in its first batch, and a local checkpoint from before a reset is moved aside. If the worker has a
    bucket, a local checkpoint is mirrored there, and restored from there if it is lost, or older than what another
    machine has committed. `advertised_worker`: for a session on a Spark cluster, the worker's HTTP address as executors
    reach it; tasks then get the token of this process, and a checkpoint is not mirrored. Raises RequestError, and
    Unavailable when no worker answers.
    """
    worker = worker or default_worker()
    if checkpoint is not None and (folder := local_path(str(checkpoint))) is not None:
        move_outdated_aside(LocalCheckpoint(folder), name, worker)
        adopt_moved(str(folder))
    return start_generation(
        name,
        worker,
        {key: sources_of(given) for key, given in inputs.items()},
        outputs,
        starting=starting_of(starting),
        limits=limits_of(max_bytes_per_epoch, max_rows_per_epoch),
        checkpoint=None if checkpoint is None else str(checkpoint),
        executors=None if advertised_worker is None else ExecutorAccess(advertised_address(advertised_worker)),
    )
