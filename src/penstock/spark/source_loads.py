"""Where a load's epochs begin and end: asked of the coordinator, for a pipeline or for nobody."""

import os
import socket
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from penstock.client.coordinator import CoordinatorClient, Cut, InputOffset, InputSpec, Limits, LoadState, Segments
from penstock.spark.generation import Generation
from penstock.spark.source_options import SourceOptions


class Load(Protocol):
    """One `readStream.…load()` of a running query, on the driver. Not for several threads."""

    def initial(self) -> InputOffset:
        """Where the first epoch begins."""

    def cut(self, start: InputOffset, upto: Segments | None, limits: Limits | None, wait_ms: int) -> Cut:
        """Where the epoch that begins at `start` ends; `start` itself when nothing new came in `wait_ms`."""

    def reading(self, start: InputOffset, end: InputOffset) -> Segments:
        """Spark reads a range that it has not just asked for, or that has segments which `start` does not name. Gives
        where it begins in all of them.
        """

    def stop(self) -> None: ...


class AnonymousLoad:
    """Of no pipeline: nothing is registered or held back, and the same start may get another end."""

    def __init__(self, options: SourceOptions, coordinator: CoordinatorClient) -> None:
        self._options = options
        self._coordinator = coordinator

    def initial(self) -> InputOffset:
        return InputOffset(self._coordinator.resolve(self._options.sources, self._options.starting))

    def cut(self, start: InputOffset, upto: Segments | None, limits: Limits | None, wait_ms: int) -> Cut:
        sources = self._options.sources
        ends = self._coordinator.cut_sources(sources, start.segments, upto=upto, limits=limits, wait_ms=wait_ms)
        return Cut(start if ends == start.segments else InputOffset(ends))

    def reading(self, start: InputOffset, end: InputOffset) -> Segments:  # noqa: ARG002  a Load
        return start.segments

    def stop(self) -> None:
        pass


class PipelineLoad:
    """An input of a pipeline, whose ledger holds the cuts. Without a generation among the options it begins one, and
    keeps it alive: all loads of this driver that name the same pipeline begin the same one.

    Spark reads a DataFrame that is joined with itself by two loads of the same input: `_load` tells them apart. `upto`:
    where a query that is to end by itself ends.
    """

    def __init__(
        self, options: SourceOptions, coordinator: CoordinatorClient, pipeline: str, upto: Segments | None
    ) -> None:
        self._coordinator = coordinator
        self._name = pipeline
        self._input = options.input
        self._state = _state(options)
        self._load = uuid4().hex
        self._begun: Generation | None = None
        if options.generation is None:
            self._begun = _begin(options, coordinator, pipeline)
            self._generation = self._begun.number
        else:
            self._generation = options.generation
        try:
            coordinator.attach(pipeline, self._generation, self._input, self._load, options.sources, upto=upto)
        except BaseException:
            self.stop()
            raise

    def initial(self) -> InputOffset:
        return self._coordinator.initial(self._name, self._generation, self._input)

    def cut(self, start: InputOffset, upto: Segments | None, limits: Limits | None, wait_ms: int) -> Cut:
        return self._coordinator.cut(
            self._name,
            self._generation,
            self._input,
            start,
            load=self._load,
            upto=upto,
            limits=limits,
            wait_ms=wait_ms,
            state=self._state,
        )

    def reading(self, start: InputOffset, end: InputOffset) -> Segments:
        return self._coordinator.reading(self._name, self._generation, self._input, start, end)

    def stop(self) -> None:
        if self._begun is not None:
            self._begun.stop()


def _state(options: SourceOptions) -> LoadState | None:
    if options.buckets is None:
        return None
    return "reported" if options.reports else "unreported"


def begin_load(options: SourceOptions, coordinator: CoordinatorClient, upto: Segments | None) -> Load:
    if options.pipeline is None:
        return AnonymousLoad(options, coordinator)
    return PipelineLoad(options, coordinator, options.pipeline, upto)


def _begin(options: SourceOptions, coordinator: CoordinatorClient, pipeline: str) -> Generation:
    """The outputs are not known here: the sink's are, when it merges."""
    request = f"{driver_identity()}/{pipeline}"
    inputs = {options.input: InputSpec(options.sources, options.starting)}
    started = coordinator.start(pipeline, inputs, None, request=request)
    return Generation(pipeline, options.worker, started.generation, {options.input: options.sources})


def driver_identity() -> str:
    """The same in all source processes of one driver, another one for any other driver, or if it is started again.

    They are children of one process, which is known by its number and by when it began.
    """
    parent = os.getppid()
    try:
        began = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:  # no such files here, or it has ended and taken us with it
        began = "?"
    return f"{socket.gethostname()}/{parent}/{began}"
