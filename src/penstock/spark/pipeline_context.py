"""The pipeline whose function is being called: its operators read their worker, generation and watermark here.

The runner sets it around each call of the user's function. In a session of one's own:

    with penstock.session(spark, pipeline=generation):
        counts = windows.aggregate(…)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.core.errors import RequestError
from penstock.protocol.stored.dead_letters import DEAD_LETTER_PORTS
from penstock.spark.input_frames import InputFrame, OperatorNote
from penstock.spark.side_outputs import Origin
from penstock.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.run.generation import Generation

_HINT = (
    "Call it in a @pipeline's function. In a Spark session of your own: with penstock.session(spark, pipeline=…): "
    "around the code that builds the frames, with what penstock.begin(…) has returned."
)


@dataclass(slots=True, eq=False)
class PipelineContext:
    options: Mapping[str, str]
    """Of a load of one of its inputs: all loads of a pipeline share one watermark."""
    inputs: list[InputFrame] = field(default_factory=list)
    notes: list[OperatorNote] = field(default_factory=list)
    is_pretended: bool = False
    """Its streams are placeholders, which only serve to see what the function returns. No worker is needed."""
    _side_ports: set[str] = field(default_factory=set)
    _operators: int = 0

    def origin(self) -> Origin:
        options = SourceOptions.parse(self.options)
        assert options.pipeline is not None
        names = options.pipeline, options.generation
        return Origin(options.task_worker, *names, options.tls, options.trial, options.carried)

    def operator(self, name: str, *ports: str) -> str:
        """The operator's name for side outputs, the same whenever the function is called. Those of earlier operators
        leave first. `ports`: through which they leave.
        """
        self._side_ports.update(ports)
        self._operators += 1
        return f"{self._operators:03} {name}"

    def input_of(self, frame: DataFrame) -> InputFrame | None:
        """None unless the frame is an input itself: one that is derived from it is another object."""
        return next((one for one in self.inputs if one.frame is frame), None)

    def renamed(self, frame: DataFrame, of: DataFrame) -> DataFrame:
        """Returns the frame, which is an input under these names and types from now on."""
        found = self.input_of(of)
        if found is not None:
            self.inputs.append(replace(found, frame=frame))
        return frame

    @property
    def side_ports(self) -> tuple[str, ...]:
        """Through which something may leave beside the function's result: both, or none."""
        return DEAD_LETTER_PORTS if self._side_ports else ()


_current: ContextVar[PipelineContext | None] = ContextVar("pipeline", default=None)


def current_pipeline(what: str) -> PipelineContext:
    """Raises RequestError if no pipeline's function is being called."""
    context = _current.get()
    if context is None:
        raise RequestError(f"{what} does not know its pipeline", _HINT)
    return context


@contextmanager
def in_pipeline(context: PipelineContext) -> Iterator[PipelineContext]:
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


@contextmanager
def session(spark: SparkSession, *, pipeline: Generation | str, **options: str) -> Iterator[SparkSession]:
    """Operators that are used inside belong to this pipeline: what `penstock.begin` has returned, or the name of a
    pipeline with the options of one of its loads (`source`, `worker`, …). What `Generation.load` returns is an input of
    it. Raises RequestError.
    """
    given = {"pipeline": pipeline, **options} if isinstance(pipeline, str) else {**pipeline.load_options(), **options}
    if "source" not in given:
        raise RequestError(f"session: the pipeline {pipeline!r} has no source", "Name one that it reads: source=…")
    with in_pipeline(PipelineContext(given, [] if isinstance(pipeline, str) else pipeline.frames)):
        yield spark
