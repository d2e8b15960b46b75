"""The client of a worker's coordinator: what a Spark driver needs to run a pipeline.

with CoordinatorClient("127.0.0.1:7102") as coordinator:
    run = coordinator.start("counts", {"in": InputSpec(["sensors"])}, ["out"], fresh=True)
    start = coordinator.initial("counts", run.generation, "in")
    cut = coordinator.cut("counts", run.generation, "in", start, wait_ms=1000)
"""

from penstock.client.coordinator.client import CoordinatorClient
from penstock.coordinator.delivery_messages import EpochStatus, SinkSpec, SinkStatus, Waiting
from penstock.coordinator.messages import (
    AtSegments,
    AtTime,
    Cut,
    InputOffset,
    InputSpec,
    Limits,
    Merged,
    PipelineStatus,
    Range,
    Segments,
    Splits,
    Staged,
    Started,
    Starting,
    starting_as_json,
    starting_from_json,
)

__all__ = [
    "AtSegments",
    "AtTime",
    "CoordinatorClient",
    "Cut",
    "EpochStatus",
    "InputOffset",
    "InputSpec",
    "Limits",
    "Merged",
    "PipelineStatus",
    "Range",
    "Segments",
    "SinkSpec",
    "SinkStatus",
    "Splits",
    "Staged",
    "Started",
    "Starting",
    "Waiting",
    "starting_as_json",
    "starting_from_json",
]
