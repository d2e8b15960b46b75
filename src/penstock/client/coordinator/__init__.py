"""The client of a worker's coordinator: what a Spark driver needs to run a pipeline.

with CoordinatorClient("127.0.0.1:7102") as coordinator:
    run = coordinator.start("counts", {"in": InputSpec(["sensors"])}, ["out"], fresh=True)
    start = coordinator.initial("counts", run.generation, "in")
    cut = coordinator.cut("counts", run.generation, "in", start, wait_ms=1000)
"""

from penstock.client.coordinator.client import CoordinatorClient
from penstock.coordinator.dead_letter_messages import LetterInfo, LetterList, LetterPort, Replayed
from penstock.coordinator.delivery_messages import EpochStatus, SinkSpec, SinkStatus, TableDdl, Waiting
from penstock.coordinator.messages import (
    AtSegments,
    AtTime,
    Cut,
    InputOffset,
    InputSpec,
    Limits,
    LoadState,
    Merged,
    PipelineStatus,
    Range,
    Running,
    Segments,
    Splits,
    Staged,
    Started,
    Starting,
    WatermarkHeld,
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
    "LetterInfo",
    "LetterList",
    "LetterPort",
    "Limits",
    "LoadState",
    "Merged",
    "PipelineStatus",
    "Range",
    "Replayed",
    "Running",
    "Segments",
    "SinkSpec",
    "SinkStatus",
    "Splits",
    "Staged",
    "Started",
    "Starting",
    "TableDdl",
    "Waiting",
    "WatermarkHeld",
    "starting_as_json",
    "starting_from_json",
]
