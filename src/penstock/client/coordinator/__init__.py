"""The client of a worker's coordinator: what a Spark driver needs to run a pipeline.

with CoordinatorClient("127.0.0.1:7102") as coordinator:
    run = coordinator.start("counts", {"in": InputSpec(["sensors"])}, ["out"], fresh=True)
    start = coordinator.initial("counts", run.generation, "in")
    cut = coordinator.cut("counts", run.generation, "in", start, wait_ms=1000)
"""

from penstock.client.coordinator.client import CoordinatorClient
from penstock.protocol.api.dead_letters import DeadLetter, DeadLetterPort, Replayed
from penstock.protocol.api.delivery import EpochStatus, Rewound, SinkSpec, SinkStatus, Waiting
from penstock.protocol.api.pipelines import (
    AtSegments,
    AtTime,
    BucketNumbers,
    Cut,
    InputOffset,
    InputSpec,
    Limits,
    LoadState,
    PipelineStatus,
    Range,
    Running,
    Segments,
    Staged,
    Started,
    Starting,
    WatermarkBlocker,
)
from penstock.protocol.api.side_outputs import MissingPart, ReaderPlan, Registration, SideKey

__all__ = [
    "AtSegments",
    "AtTime",
    "BucketNumbers",
    "CoordinatorClient",
    "Cut",
    "DeadLetter",
    "DeadLetterPort",
    "EpochStatus",
    "InputOffset",
    "InputSpec",
    "Limits",
    "LoadState",
    "MissingPart",
    "PipelineStatus",
    "Range",
    "ReaderPlan",
    "Registration",
    "Replayed",
    "Rewound",
    "Running",
    "Segments",
    "SideKey",
    "SinkSpec",
    "SinkStatus",
    "Staged",
    "Started",
    "Starting",
    "Waiting",
    "WatermarkBlocker",
]
