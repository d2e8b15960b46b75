"""The client of a worker's coordinator: what a Spark driver needs to run a pipeline.

with CoordinatorClient("127.0.0.1:7102") as coordinator:
    run = coordinator.start("counts", {"in": InputSpec(["sensors"])}, ["out"], fresh=True)
    start = coordinator.initial("counts", run.generation, "in")
    cut = coordinator.cut("counts", run.generation, "in", start, wait_ms=1000)
"""

from penstock.client.coordinator.client import CoordinatorClient
from penstock.protocol.api.dead_letters import DeadLetter, DeadLetterList, DeadLetterPort, Replayed
from penstock.protocol.api.delivery import EpochStatus, Rewound, SinkSpec, SinkStatus, TableDdl, Waiting
from penstock.protocol.api.pipelines import (
    AtSegments,
    AtTime,
    BucketNumbers,
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
    WatermarkBlocker,
)

__all__ = [
    "AtSegments",
    "AtTime",
    "BucketNumbers",
    "CoordinatorClient",
    "Cut",
    "DeadLetter",
    "DeadLetterList",
    "DeadLetterPort",
    "EpochStatus",
    "InputOffset",
    "InputSpec",
    "Limits",
    "LoadState",
    "Merged",
    "PipelineStatus",
    "Range",
    "Replayed",
    "Rewound",
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
    "WatermarkBlocker",
]
