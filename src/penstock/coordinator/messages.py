"""What the coordinator is asked and what it answers, as both sides of its HTTP routes write it in JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self, TypeAlias

from penstock.core.errors import RequestError
from penstock.core.types import NO_EPOCH
from penstock.protocol.stored.names import Form, Source

NUMBER_MAX = 2**63 - 1
"""Of what is counted here, in bytes or otherwise: what the ledger and Spark can hold."""

Segments: TypeAlias = Mapping[str, int]
"""Segment → offset."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """From the first record on whose highest event time is not below this one."""

    timestamp_us: int


@dataclass(frozen=True, slots=True)
class AtSegments:
    """At these offsets; a segment of the source that is not named is read from its start."""

    segments: Segments


LoadState: TypeAlias = Literal["reported", "unreported"]
"""Whether the operator that a load of control rows is for reports what its state holds, as `penstock.windows` does."""


Starting: TypeAlias = Literal["earliest", "latest"] | AtTime | AtSegments
"""Where a reader that has no offset yet begins."""


def starting_as_json(starting: Starting) -> Any:
    return starting if isinstance(starting, str) else asdict(starting)


def starting_from_json(data: Any) -> Starting:
    match data:
        case "earliest" | "latest":
            return data  # type: ignore[no-any-return]  # narrowed by the pattern
        case {"timestamp_us": int(at), **rest} if not rest:
            return AtTime(at)
        case {"segments": dict(segments), **rest} if not rest:
            return AtSegments(segments_from_json(segments))
    raise RequestError(
        f"{data!r} is no place to start at", 'Give "earliest", "latest", {"timestamp_us": n} or {"segments": {…}}.'
    )


def segments_from_json(data: Any) -> dict[str, int]:
    """Checked: names are text, offsets whole and not negative. In the order of the names."""
    if not isinstance(data, dict) or not all(isinstance(k, str) and _is_offset(v) for k, v in data.items()):
        raise RequestError(f"{data!r} is no map from segments to offsets", 'Give {"segment": offset, …}.')
    return dict(sorted(data.items()))


def _is_offset(value: object) -> bool:
    return type(value) is int and 0 <= value <= NUMBER_MAX


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One load of a pipeline: the sources it reads, and where its first epoch begins."""

    sources: Sequence[str]
    starting: Starting = "earliest"

    def as_json(self) -> dict[str, Any]:
        return {"sources": list(self.sources), "starting": starting_as_json(self.starting)}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an epoch takes, and how much of a pipeline's output may wait; None: the worker's default."""

    bytes: int | None = None
    rows: int | None = None
    undelivered_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class InputOffset:
    """A place in all of an input's segments, as Spark keeps it: the end of an epoch, or NO_EPOCH where the first one
    begins. `epoch` is None where no pipeline was named.
    """

    segments: Segments
    epoch: int | None = None
    incarnation: int | None = None
    watermark: int | None = None
    """In microseconds; None while nothing is known."""

    def as_json(self) -> dict[str, Any]:
        if self.epoch is None:
            return {"segments": dict(sorted(self.segments.items()))}
        return {
            "epoch": self.epoch,
            "incarnation": self.incarnation,
            "segments": dict(sorted(self.segments.items())),
            "watermark": self.watermark,
        }

    def text(self) -> str:
        """Compact JSON with sorted keys: equal offsets have equal texts."""
        return json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, data: Any) -> Self:
        match data:
            case {"segments": segments, "epoch": int(epoch), "incarnation": int(incarnation), "watermark": watermark}:
                is_epoch = epoch == NO_EPOCH or _is_offset(epoch)
                if is_epoch and _is_offset(incarnation) and (watermark is None or type(watermark) is int):
                    return cls(segments_from_json(segments), epoch, incarnation, watermark)
            case {"segments": segments, **rest} if not rest:
                return cls(segments_from_json(segments))
        raise RequestError(
            f"{data!r} is no offset", "Spark's checkpoint holds offsets of another source, or is damaged."
        )


@dataclass(frozen=True, slots=True)
class Started:
    """A new generation of a pipeline. `epoch` is the last one that was planned, or NO_EPOCH."""

    generation: int
    incarnation: int
    epoch: int
    segment_port: int
    tls: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """`offset` is the start itself when there is nothing new; `held` says why, if it is not that nothing came."""

    offset: InputOffset
    held: str | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """Spark's current batch holds the epochs after `start_epoch`, up to `end_epoch`; the watermarks of these two cuts,
    in microseconds, None while nothing is known.
    """

    start_epoch: int
    end_epoch: int
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class StoredInput:
    """Bytes that a pipeline's sources have had since its first epoch began, and how many of them are still stored."""

    stored: int
    total: int

    @property
    def is_whole(self) -> bool:
        return self.stored == self.total


@dataclass(frozen=True, slots=True)
class Staged:
    """A segment that a task has staged for an output port, its length, and how many rows that is: None if the task does
    not know.
    """

    port: str
    segment: str
    length: int
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Merged:
    """`merged` is False for an epoch that was merged before."""

    merged: bool
    epoch: int


@dataclass(frozen=True, slots=True)
class Range:
    """The bytes [start, end) of a segment."""

    segment: str
    start: int
    end: int

    def as_json(self) -> list[Any]:
        return [self.segment, self.start, self.end]

    @classmethod
    def from_json(cls, data: Any) -> Self:
        match data:
            case [str(segment), int(start), int(end)] if 0 <= start <= end:
                return cls(segment, start, end)
        raise RequestError(f"{data!r} is no range", "Give [segment, start, end].")


@dataclass(frozen=True, slots=True)
class BatchRanges:
    """What Spark's current batch reads: the last epoch in it, and the ranges of each input."""

    epoch: int
    inputs: Mapping[str, Sequence[Range]]

    def as_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "inputs": {key: [one.as_json() for one in ranges] for key, ranges in self.inputs.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        inputs = {key: [Range.from_json(one) for one in ranges] for key, ranges in data["inputs"].items()}
        return cls(data["epoch"], inputs)


@dataclass(frozen=True, slots=True)
class Splits:
    """`splits` follow each other in order; `lost` is what was asked for and is gone."""

    splits: Sequence[Range]
    lost: Sequence[Range] = ()


@dataclass(frozen=True, slots=True)
class WatermarkHeld:
    """What holds a pipeline's watermark back: a stream of a connector, the worker's clock, or an output. The last two
    have no stream.
    """

    source: str
    stream_id: int | None = None
    stream: str = ""
    """The stream's name."""
    time: int | None = None
    """Its own watermark, in microseconds; None: no event of it was read yet, or the output has none."""

    def text(self) -> str:
        if self.stream_id is None and Source.parse(self.source).form is Form.CONNECTOR:
            return f"the worker's clock, as source {self.source} has it"
        who = f"output {self.source}" if self.stream_id is None else f"stream {self.stream or self.stream_id!r}"
        of = "" if self.stream_id is None else f" of source {self.source}"
        if self.time is not None:
            return f"{who}{of}"
        return f"{who}{of}, {'which has no watermark' if self.stream_id is None else 'of which no event was read'} yet"


@dataclass(frozen=True, slots=True)
class StartingPipeline:
    """One that takes no events yet, because Spark is starting. Its driver may not have registered it so far."""

    name: str
    sources: Sequence[str]
    ready_in_seconds: float | None
    """About; None if nothing is known of its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """A pipeline as `penstock pipeline list` shows it. Epochs: the last one of each kind, or NO_EPOCH."""

    name: str
    state: Literal["STARTING", "RUNNING", "FAILING", "STOPPED"]
    """STARTING: it will take events as soon as Spark is up; FAILING: its driver has not been heard for a while."""
    incarnation: int
    generation: int
    planned: int
    merged: int
    delivered: int
    complete: int
    proved: int
    lag_bytes: int
    undelivered_bytes: int
    watermark: int | None
    held: str | None
    heartbeat_age_seconds: float | None
    inputs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Input → its sources."""
    outputs: Sequence[str] | None = None
    """Output segments' ports; None: not known yet."""
    watermark_held: WatermarkHeld | None = None
    """None if nothing holds the watermark back: no stream is active, or all that is read has ended."""
    is_reset: bool = False
    """It was reset and has not been started since: an older checkpoint of it is of no use any more."""
    watermark_unmoved_seconds: float | None = None
    """For how long the watermark has not moved, as far as the worker knows; None: nothing is known."""
    open_windows: int | None = None
    """Windows that have not fired, one for each key and window; None: nothing was reported since the worker started."""
    open_windows_end: int | None = None
    """When the first of them ends, in microseconds."""
    open_windows_wait: str | None = None
    """Why, in words that follow "2 windows open, "; None: no window is open. There may be some that nobody has
    reported: of Spark's own operators, or after a restart of the worker.
    """

    open_windows_sources: Sequence[str] = ()
    """The sources whose windows no clock closes: only their events do, or their end."""
    open_windows_by_clock: bool = False
    """The worker's clock closes them all, while the pipeline runs."""

    def open_windows_text(self) -> str | None:
        """One sentence; None: no window is open, as far as the worker knows."""
        if self.open_windows_wait is None:
            return None
        windows = (
            "1 window" if self.open_windows == 1 else f"{self.open_windows:,} windows" if self.open_windows else ""
        )
        open_ones = f"{windows} open" if windows else "windows may be open"
        return f"{self.name}: {open_ones}, {self.open_windows_wait}"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """What a newer worker tells besides is passed over."""
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        held = known.get("watermark_held")
        return cls(**known | {"watermark_held": WatermarkHeld(**held) if held else None})
