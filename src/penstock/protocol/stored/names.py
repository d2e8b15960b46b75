"""Which segments a source has, and which source a segment belongs to.

    sensors               a connector: `connector/sensors/0`, `/1`, …             stored events
    pipeline:counts/out   an output port of a pipeline: `pipeline/counts/out`     stored events
    segment:NAME          any other segment, written over the segment protocol    raw events
    pravega:SCOPE/STREAM  a stream of Pravega's clients: `SCOPE/STREAM/N.#epoch.E`   raw events
    system/streams        the connector `system.streams`: starts and ends of streams, from the worker itself

A source with several partitions is one name for several connectors' logs: partition 0 has the name itself, partition 1
is `sensors#1`, and so on. Readers name the source; `sensors#1` stands for that partition alone.

Segments of the worker itself (tables of streams, the coordinator's ledger, staged data) are not sources.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.core.errors import RequestError

CONNECTOR_PREFIX = "connector/"
OUTPUT_PREFIX = "pipeline/"
STAGING_PREFIX = "staging/"
COORDINATOR_PREFIX = "coordinator/"
LEDGER = "coordinator/ledger"
PRAVEGA_LEDGER = "coordinator/pravega"
"""Of the controller that serves Pravega's clients."""
SYSTEM_PREFIX = "system."
"""Prefix of the worker's own connectors."""
SYSTEM_STREAMS = "system.streams"
REPLAY_PREFIX = "replay."
"""Prefix of ports that contain dead letters to be replayed."""

DEAD_LETTERS_SUFFIX = ".err"
"""Of the source with what could not become an event of another source."""

_SYSTEM_STREAMS_WRITTEN = "system/streams"
OUTBOX_PREFIX = "held."
"""Prefix of ports that store the rows a sink does not accept yet: retention never removes anything from them."""

_OUTPUT_SCHEME, _SEGMENT_SCHEME, _PRAVEGA_SCHEME = "pipeline:", "segment:", "pravega:"
_SCHEMES = (_OUTPUT_SCHEME, _SEGMENT_SCHEME, _PRAVEGA_SCHEME)
_OWN_PREFIXES = (CONNECTOR_PREFIX, OUTPUT_PREFIX, STAGING_PREFIX, COORDINATOR_PREFIX)
_SOURCE_NAME_MAX = 200
_NOT_IN_SOURCE_NAMES = frozenset(",/=\"'\\")
_SOURCE_NAMES = (
    f"use 1 to {_SOURCE_NAME_MAX} printable characters, no comma, slash, equals sign, quote or backslash, no space at "
    f"either end, no {', '.join(_SCHEMES)} at the start, and no # with a number at the end"
)
_PARTITION = re.compile(r"(.+)#([1-9][0-9]{0,4})", re.DOTALL)
_PIPELINE_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_CONNECTOR_SEGMENT = re.compile(r"connector/([^/]+)/(0|[1-9][0-9]*)")
_OUTPUT_SEGMENT = re.compile(r"pipeline/([A-Za-z0-9._-]{1,100}/[A-Za-z0-9._-]{1,100})")
_PRAVEGA_SEGMENT = re.compile(r"([A-Za-z0-9._-]{1,100}/[A-Za-z0-9._-]{1,100})/([0-9]+)\.#epoch\.([0-9]+)")
_PRAVEGA_SEGMENT_OR_PART = re.compile(rf"{_PRAVEGA_SEGMENT.pattern}(#.+)?")

_HINT = (
    "Write a connector's name, pipeline:NAME/PORT, segment:NAME or pravega:SCOPE/STREAM; several are separated by "
    "commas."
)


class Kind(Enum):
    """What the events of a segment are."""

    STORED = "stored"
    """They carry stream, id, time, key and metadata before the payload."""
    RAW = "raw"
    """Whatever their writer appended: all of it is the value."""


class Form(Enum):
    """What a source is."""

    CONNECTOR = "connector"
    OUTPUT = "output"
    SEGMENT = "segment"
    PRAVEGA = "pravega"


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """`name` is the connector's, `PIPELINE/PORT`, the segment's, or `SCOPE/STREAM`. `str()` is what `parse` takes."""

    form: Form
    name: str

    @classmethod
    def parse(cls, text: str) -> "Source":
        """Raises RequestError for an invalid source. Does not check whether it exists."""
        text = text.strip()
        if text == _SYSTEM_STREAMS_WRITTEN:
            return cls(Form.CONNECTOR, SYSTEM_STREAMS)
        if text.startswith(_OUTPUT_SCHEME):
            return _output(text, text.removeprefix(_OUTPUT_SCHEME))
        if text.startswith(_SEGMENT_SCHEME):
            return _segment(text, text.removeprefix(_SEGMENT_SCHEME))
        if text.startswith(_PRAVEGA_SCHEME):
            return _pravega(text, text.removeprefix(_PRAVEGA_SCHEME))
        if not text or "/" in text or not text.isprintable():
            raise RequestError(f"{text!r} is not a valid source", _HINT)
        return cls(Form.CONNECTOR, text)

    def __str__(self) -> str:
        match self.form:
            case Form.CONNECTOR:
                return self.name
            case Form.OUTPUT:
                return _OUTPUT_SCHEME + self.name
            case Form.SEGMENT:
                return _SEGMENT_SCHEME + self.name
            case Form.PRAVEGA:
                return _PRAVEGA_SCHEME + self.name

    @property
    def segment(self) -> str | None:
        """Its only segment; None for a connector, which has any number of segments, numbered from 0, and for a stream
        of Pravega's clients, whose controller knows them.
        """
        match self.form:
            case Form.CONNECTOR | Form.PRAVEGA:
                return None
            case Form.OUTPUT:
                return OUTPUT_PREFIX + self.name
            case Form.SEGMENT:
                return self.name

    @property
    def access_name(self) -> str:
        """The name that decides who has access to it."""
        if self.form is Form.PRAVEGA:
            return self.name
        return partition_of(self.name).source if self.segment is None else access_name(self.segment)

    def owns(self, segment: str) -> bool:
        """Whether the segment contains data of this source."""
        if self.form is Form.PRAVEGA:
            found = _PRAVEGA_SEGMENT.fullmatch(segment)
            return found is not None and found[1] == self.name
        if self.form is not Form.CONNECTOR:
            return segment == self.segment
        match = _CONNECTOR_SEGMENT.fullmatch(segment)
        return match is not None and self.name in (match[1], partition_of(match[1]).source)


class Partition(NamedTuple):
    """One partition of a source."""

    source: str
    number: int

    @property
    def name(self) -> str:
        """Of its log. Dead letters are beside the events that they stand for: `sensors#1.err`."""
        if not self.number:
            return self.source
        plain = self.source.removesuffix(DEAD_LETTERS_SUFFIX)
        return f"{plain}#{self.number}{self.source[len(plain) :]}"


def partition_of(name: str) -> Partition:
    """The source of this name, which may be that of a partition. A source with one partition has number 0 alone."""
    plain = name.removesuffix(DEAD_LETTERS_SUFFIX)
    match = _PARTITION.fullmatch(plain)
    return Partition(name, 0) if match is None else Partition(match[1] + name[len(plain) :], int(match[2]))


def parse_sources(text: str) -> list[Source]:
    """`sensors,pipeline:counts/out`: each once, in order. Raises RequestError if there is none, or one is invalid."""
    return [*dict.fromkeys(map(Source.parse, text.split(",")))]


def check_source_name(name: str) -> str:
    """Returns the name of a source unchanged. Raises RequestError if it would be ambiguous in a list of sources, a
    segment's name or an option such as `--window NAME=SIZE`.
    """
    if (
        not 0 < len(name) <= _SOURCE_NAME_MAX
        or not name.isprintable()
        or name != name.strip()
        or not _NOT_IN_SOURCE_NAMES.isdisjoint(name)
        or name.startswith(_SCHEMES)
        or partition_of(name).number
    ):
        raise RequestError(f"{name[:_SOURCE_NAME_MAX]!r} is not a valid source name: {_SOURCE_NAMES}")
    return name


def check_pipeline_name(name: str, what: str = "pipeline") -> str:
    """Returns the name of a pipeline or port unchanged. Raises RequestError if it is invalid."""
    if not _PIPELINE_NAME.fullmatch(name):
        raise RequestError(
            f"{name!r} is not a valid {what} name", "Use 1 to 100 letters, digits, dots, dashes, underscores."
        )
    return name


def replay_source(pipeline: str, input: str) -> Source:  # noqa: A002  the word for it
    """The pipeline's replayed dead letters, which this input reads in addition to its own sources."""
    return Source(Form.OUTPUT, f"{pipeline}/{REPLAY_PREFIX}{input}")


def is_own_name(segment: str) -> bool:
    """Whether a segment of this name belongs to the worker itself, to a source or to a pipeline."""
    return segment.startswith(_OWN_PREFIXES)


def is_outbox(segment: str) -> bool:
    """Whether it contains rows stored for a sink: only their owner removes them."""
    return segment.startswith(OUTPUT_PREFIX) and segment.rpartition("/")[2].startswith(OUTBOX_PREFIX)


def connector_segment(connector: str, number: int) -> str:
    return f"{CONNECTOR_PREFIX}{connector}/{number}"


def source_dead_letters(source: str) -> str:
    """The segment with a source's own dead letters: what could not become one of its events."""
    return connector_segment(source + DEAD_LETTERS_SUFFIX, 0)


def output_segment(pipeline: str, port: str) -> str:
    return f"{OUTPUT_PREFIX}{pipeline}/{port}"


TRANSIENT = "#transient."
"""In the names of segments that contain parts of a large event until it is merged, after the name of the target."""

NO_GENERATION = "-"
"""In the names of segments that a sink without a generation has staged."""


def staging_prefix(pipeline: str) -> str:
    return f"{STAGING_PREFIX}{pipeline}/"


def epoch_prefix(pipeline: str, generation: int | None, epoch: int) -> str:
    """The prefix of the names of everything that an epoch has staged."""
    return f"{staging_prefix(pipeline)}{NO_GENERATION if generation is None else generation}/{epoch}/"


class Owner(NamedTuple):
    source: str
    """As `Source.parse` takes it."""
    kind: Kind


def kind_of(segment: str) -> Owner:
    """The source that a segment's data belong to, and what its events are. Raises RequestError if it has no events."""
    if match := _CONNECTOR_SEGMENT.fullmatch(segment):
        return Owner(match[1], Kind.STORED)
    if match := _OUTPUT_SEGMENT.fullmatch(segment):
        return Owner(_OUTPUT_SCHEME + match[1], Kind.STORED)
    if segment.startswith(_OWN_PREFIXES):
        raise RequestError(f"segment {segment!r} belongs to the worker itself: it contains no events", _HINT)
    if match := _PRAVEGA_SEGMENT.fullmatch(segment):
        return Owner(_PRAVEGA_SCHEME + match[1], Kind.RAW)
    return Owner(_SEGMENT_SCHEME + segment, Kind.RAW)


def is_of_pravega(segment: str) -> bool:
    """Whether it belongs to a stream of Pravega's clients, a transaction on one, or a reader group's table."""
    return not is_own_name(segment) and _PRAVEGA_SEGMENT_OR_PART.fullmatch(segment) is not None


def pravega_segment(stream: str, number: int, epoch: int) -> str:
    """Of the stream `SCOPE/STREAM`: its segment of this number, which was created in this epoch of the stream."""
    return f"{stream}/{number}.#epoch.{epoch}"


def pravega_number(segment: str) -> int:
    """Of a segment of a stream of Pravega's clients: later segments of the stream have higher ones."""
    match = _PRAVEGA_SEGMENT.fullmatch(segment)
    assert match is not None, segment
    return int(match[2])


def access_name(segment: str) -> str:
    """The name that decides who has access to a segment: its source's, its pipeline's, or its own. Empty for the
    coordinator's, which concern the whole worker.
    """
    if segment.startswith(COORDINATOR_PREFIX):
        return ""
    if segment.startswith(_OWN_PREFIXES):
        return segment.split("/", 2)[1]
    return segment


@dataclass(frozen=True, slots=True)
class InputOf:
    """Whether a segment contains what was sent under a name with one of these prefixes: a source's events, or a segment
    of its own. What pipelines write, and the coordinator's ledger, are not input.
    """

    prefixes: tuple[str, ...]

    def __call__(self, segment: str) -> bool:
        if match := _CONNECTOR_SEGMENT.fullmatch(segment):
            return match[1].startswith(self.prefixes)
        return segment.startswith(self.prefixes) and not segment.startswith(_OWN_PREFIXES)


@dataclass(frozen=True, slots=True)
class StagedFor:
    """Whether a segment was staged for a pipeline with one of these prefixes."""

    prefixes: tuple[str, ...]

    def __call__(self, segment: str) -> bool:
        return segment.startswith(STAGING_PREFIX) and access_name(segment).startswith(self.prefixes)


def _output(text: str, name: str) -> Source:
    pipeline, _, port = name.partition("/")
    if not _PIPELINE_NAME.fullmatch(pipeline) or not _PIPELINE_NAME.fullmatch(port):
        raise RequestError(f"{text!r} is not a valid pipeline output", "Write pipeline:NAME/PORT.")
    return Source(Form.OUTPUT, name)


def _segment(text: str, name: str) -> Source:
    if not name:
        raise RequestError(f"{text!r} names no segment", _HINT)
    source, kind = kind_of(name)
    if kind is not Kind.RAW:
        raise RequestError(f"segment {name!r} contains stored events", f"Read it as source {source!r}.")
    if not source.startswith(_SEGMENT_SCHEME):
        raise RequestError(f"segment {name!r} is a part of {source}", f"Read the whole stream, as source {source!r}.")
    return Source(Form.SEGMENT, name)


def _pravega(text: str, name: str) -> Source:
    scope, _, stream = name.partition("/")
    if not _PIPELINE_NAME.fullmatch(scope) or not _PIPELINE_NAME.fullmatch(stream):
        raise RequestError(f"{text!r} is not a valid stream of Pravega's clients", "Write pravega:SCOPE/STREAM.")
    return Source(Form.PRAVEGA, name)
