"""The options of a load, checked in one place."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from penstock.client.coordinator import AtSegments, AtTime, Limits, Starting
from penstock.client.credentials import DEFAULT_WORKER, default_worker, parse_worker
from penstock.core.errors import RequestError
from penstock.core.sizes import parse_size
from penstock.core.suggestions import suggestion
from penstock.protocol.api.codec import decode_request, encode
from penstock.protocol.api.pipelines import Range, segments_from_json
from penstock.protocol.stored.names import check_pipeline_name, parse_sources
from penstock.spark.carried import Carried
from penstock.spark.codecs.codec import CONTENT_TYPE, CONTENT_TYPE_HINT, Branch, Coding, branches
from penstock.spark.source.schema import COLUMNS, CONTROL_COLUMNS, check_columns

T = TypeVar("T")

DEFAULT_INPUT = "in"

OPTIONS = (
    "worker",
    "advertisedWorker",
    "carriesToken",
    "source",
    "startingOffsets",
    "endingOffsets",
    "maxBytesPerEpoch",
    "maxRowsPerEpoch",
    "failOnDataLoss",
    "minPartitions",
    "shortCircuit",
    "pipeline",
    "input",
    "generation",
    "columns",
    "codec",
    "schema",
    "codecMap",
    "decoding",
    "rows",
    "buckets",
    "reports",
    "fused",
    "trial",
    "store",
    "checkpoint",
    "tlsCa",
    "tlsCert",
    "tlsKey",
)

_CONTROL = ("rows", "buckets", "reports", "fused")
_STREAM_ONLY = (
    "maxBytesPerEpoch",
    "maxRowsPerEpoch",
    "pipeline",
    "input",
    "generation",
    "trial",
    "store",
    "checkpoint",
    *_CONTROL,
)
_BATCH_ONLY = ("endingOffsets",)
_NAMES = {name.lower(): name for name in OPTIONS}
_EPOCH = datetime.fromtimestamp(0, UTC)
_SOURCE_HINT = "Name a connector, pipeline:NAME/PORT, segment:NAME or pravega:SCOPE/STREAM."
_PLACE_HINT = (
    'Write earliest, latest, an instant (2026-01-31T12:00:00Z, or milliseconds since 1970), or {"SEGMENT": OFFSET, …}.'
)


class Trial(msgspec.Struct, frozen=True):
    """What a load reads to find out whether a pipeline's function fails on it: one epoch, of which neither the worker
    nor the pipeline learns anything. All its windows close, because the watermark after it is the end of time.
    """

    ranges: tuple[Range, ...]
    watermark: int | None = None
    """Before the epoch, in microseconds: what is older is late."""

    @classmethod
    def parse(cls, text: str) -> "Trial":
        """Raises RequestError."""
        return decode_request(text.encode(), cls)

    def text(self) -> str:
        return encode(self).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    sources: tuple[str, ...]
    worker: str = DEFAULT_WORKER
    """Host and port of its HTTP side, on the driver."""
    carried: Carried | None = field(default=None, compare=False)
    """On a cluster: the worker's address on executors, and the token. None: tasks run where the driver does."""
    starting: Starting = "earliest"
    ending: Starting = "latest"
    limits: Limits | None = None
    """Limits of an epoch; None: those of the pipeline, or the worker's defaults."""
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    short_circuit: bool = True
    """Whether tasks read the journal's files themselves, on the worker's machine or in its bucket."""
    pipeline: str | None = None
    """None: the load is anonymous. Nothing is registered or recorded, and the load delays neither acknowledgements nor
    retention."""
    input: str = DEFAULT_INPUT
    generation: int | None = None
    columns: tuple[str, ...] = tuple(COLUMNS)
    branches: tuple[Branch, ...] = ()
    """How events are decoded: the columns of their codecs follow their own; none: not at all."""
    buckets: tuple[int, ...] | None = None
    """Read control rows instead of events: one per bucket in every batch. None: read events."""
    reports: bool = False
    """For control rows: whether the operator that uses them reports the contents of its state."""
    fused: str | None = None
    """Beside control rows: the operator that the readers run on events, see `fused.py`. None: they read no events."""
    trial: Trial | None = None
    """Read exactly this, and register nothing."""
    store: str | None = None
    """For Spark's own sinks: the URL of the bucket into which the checkpoint is mirrored; None: it is not."""
    checkpoint: str | None = None
    """Where it is."""
    tls: tuple[str | None, str | None, str | None] = (None, None, None)
    """PEM files: authority, certificate, key; None: taken from the environment."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Names are case-insensitive, as in Spark. Raises RequestError, which names the option."""
        given = _Given(options)
        if given.get("generation", _number) is not None and not given.has("pipeline"):
            raise RequestError("the option generation needs the option pipeline", "Set the option pipeline too.")
        buckets = _control_buckets(given)
        reads_events = buckets is None or given.has("fused")
        worker = given.get("worker", _address) or default_worker()
        return cls(
            sources=given.require("source", _sources),
            worker=worker,
            carried=_carried(given, worker),
            starting=given.get("startingOffsets", parse_place) or "earliest",
            ending=given.get("endingOffsets", _ending) or "latest",
            limits=_limits(given.get("maxBytesPerEpoch", _size), given.get("maxRowsPerEpoch", _positive)),
            fail_on_data_loss=given.get("failOnDataLoss", _boolean) is not False,
            short_circuit=given.get("shortCircuit", _boolean) is not False,
            min_partitions=given.get("minPartitions", _positive),
            pipeline=given.get("pipeline", check_pipeline_name),
            input=given.get("input", lambda text: check_pipeline_name(text, "input")) or DEFAULT_INPUT,
            generation=given.get("generation", _number),
            columns=given.get("columns", _columns) or tuple(COLUMNS if reads_events else CONTROL_COLUMNS),
            branches=_branches(given),
            buckets=buckets,
            reports=given.get("reports", _boolean) is True,
            fused=given.get("fused", str),
            trial=given.get("trial", Trial.parse),
            store=given.get("store", str),
            checkpoint=given.get("checkpoint", str),
            tls=(given.get("tlsCa", str), given.get("tlsCert", str), given.get("tlsKey", str)),
        )

    @property
    def task_worker(self) -> str:
        """The worker's HTTP address where tasks run."""
        return self.worker if self.carried is None else self.carried.advertised

    @classmethod
    def for_stream(cls, options: Mapping[str, str]) -> "SourceOptions":
        _refuse(options, _BATCH_ONLY, "spark.read")
        return cls.parse(options)

    @classmethod
    def for_batch(cls, options: Mapping[str, str]) -> "SourceOptions":
        _refuse(options, _STREAM_ONLY, "spark.readStream")
        return cls.parse(options)


def named(options: Mapping[str, str]) -> dict[str, str]:
    """The options by their names in OPTIONS; Spark preserves the case in which they were written."""
    return {_NAMES.get(name.lower(), name): text for name, text in options.items()}


class _Given:
    """Options by their names in lower case, all of them known."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts = {name.lower(): text for name, text in options.items()}
        for name in self._texts.keys() - _NAMES.keys():
            raise RequestError(f"unknown option {name!r}", suggestion(name, OPTIONS))

    def has(self, name: str) -> bool:
        return name.lower() in self._texts

    def get(self, name: str, parse: Callable[[str], T]) -> T | None:
        text = self._texts.get(name.lower())
        if text is None:
            return None
        try:
            return parse(text)
        except RequestError as error:
            raise RequestError(f"option {name}: {error}", error.hint) from None

    def require(self, name: str, parse: Callable[[str], T]) -> T:
        found = self.get(name, parse)
        if found is None:
            raise RequestError(f"the option {name} is missing", _SOURCE_HINT)
        return found


def _carried(given: _Given, worker: str) -> Carried | None:
    advertised = given.get("advertisedWorker", _address)
    if advertised is None:
        return None
    return Carried(worker, advertised, has_token=given.get("carriesToken", _boolean) is not False)


def _branches(given: _Given) -> tuple[Branch, ...]:
    """From the options for users, or from `decoding`, which the runner sets: a JSON list of branches."""
    if given.has("decoding"):
        return given.require("decoding", parse_branches)
    codec, schema = given.get("codec", str), given.get("schema", str)
    if codec is None and not given.has("codecMap"):
        if schema is not None:
            raise RequestError("the option schema needs the option codec", "Set the option codec too.")
        return ()
    coding = Coding("", codec, given.get("codecMap", _codec_map) or {}, schema)
    return tuple(branches({"": coding}))


def parse_branches(text: str) -> tuple[Branch, ...]:
    return tuple(Branch(**one) for one in json.loads(text))


def branches_text(branches: Sequence[Branch]) -> str:
    """The option `decoding`."""
    return json.dumps([asdict(one) for one in branches])


def _codec_map(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise RequestError(f"{text!r} is not JSON: {error}", 'Write {"application/json": "json", …}.') from None
    if not isinstance(found, dict) or not all(isinstance(codec, str) for codec in found.values()):
        raise RequestError(f"{text!r} does not map content types to codecs", 'Write {"application/json": "json", …}.')
    for pattern in found:
        if pattern not in ("*", "*/*") and not CONTENT_TYPE.fullmatch(pattern):
            raise RequestError(f"{pattern!r} is not a valid content type", CONTENT_TYPE_HINT)
    return found


def _control_buckets(given: _Given) -> tuple[int, ...] | None:
    """None for a load of events. Control rows need a pipeline: without one there is no watermark."""
    buckets = given.get("buckets", _numbers)
    if not given.get("rows", _is_control):
        if buckets is not None or given.has("fused"):
            raise RequestError("the option buckets needs rows=control", "Leave it out: events have no buckets.")
        return None
    if not given.has("pipeline") or (given.has("columns") and not given.has("fused")):
        raise RequestError("rows=control is for a pipeline, and has its own columns", "Leave it to Penstock.")
    return buckets or (0,)


def _refuse(options: Mapping[str, str], names: tuple[str, ...], home: str) -> None:
    given = {name.lower() for name in options}
    for name in names:
        if name.lower() in given:
            raise RequestError(f"the option {name} is for {home}", "Leave it out here.")


def parse_place(text: str) -> Starting:
    """Where to start or to end. Raises RequestError."""
    text = text.strip()
    match text.lower():
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
    if text.startswith("{"):
        return AtSegments(_segments(text))
    return AtTime(_microseconds(text))


def _ending(text: str) -> Starting:
    place = parse_place(text)
    if place == "earliest":
        raise RequestError("nothing comes before the earliest", "Write latest, an instant or a map of offsets.")
    return place


def _segments(text: str) -> dict[str, int]:
    """A map from segments to offsets, or one of our offsets as shown in Spark's progress."""
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        raise RequestError(f"{text!r} is not JSON: {error}", _PLACE_HINT) from None
    inner = data.get("segments") if isinstance(data, dict) else None
    return segments_from_json(inner if isinstance(inner, dict) else data)


def _microseconds(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text) * 1000
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise RequestError(f"{text!r} is not a valid position in a stream", _PLACE_HINT) from None
    return ((instant if instant.tzinfo else instant.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _sources(text: str) -> tuple[str, ...]:
    return tuple(map(str, parse_sources(text)))


def _columns(text: str) -> tuple[str, ...]:
    return check_columns(tuple(name.strip() for name in text.split(",")))


def _limits(size: int | None, rows: int | None) -> Limits | None:
    return None if size is None and rows is None else Limits(bytes=size, rows=rows)


def _address(text: str) -> str:
    parse_worker(text)
    return text


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise RequestError(f"{text!r} is not a number", "Write digits alone.")
    return int(text)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_number(part.strip()) for part in text.split(","))


def _is_control(text: str) -> bool:
    match text.strip().lower():
        case "control":
            return True
        case "events":
            return False
    raise RequestError(f"{text!r} is neither events nor control", "Omit it.")


def _positive(text: str) -> int:
    number = _number(text.replace("_", ""))
    if not number:
        raise RequestError("it must be at least 1", "Omit it for no limit.")
    return number


def _size(text: str) -> int:
    size = parse_size(text)
    if not size:
        raise RequestError("it must be at least 1 byte", "Omit it for no limit.")
    return size


def _boolean(text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise RequestError(f"{text!r} is neither true nor false", "Write true or false.")
