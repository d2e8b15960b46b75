"""The trace of an epoch as plain values: its spans, their ids, and what they link to. No clock, and no exporter.

    epoch ─┬─ cut        the coordinator decides where the epoch ends, and makes that durable
           ├─ spark      from the answer to Spark until it asks for the merge; one for each run
           ├─ merge      the output becomes durable, whole
           ├─ deliver ── sink    one for each attempt at each sink
           └─ complete   from the last sink's decision until sources may be acknowledged

Ids are derived from the epoch, never drawn: whoever runs or completes an epoch after a crash adds to the same trace,
and a downstream pipeline can link to an epoch that it knows only from the ledger.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from penstock.coordinator.machine.state import Pipeline, State
from penstock.core.errors import ProtocolError
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import Segments
from penstock.protocol.stored.event import parse_event
from penstock.protocol.stored.names import OUTPUT_PREFIX

LINKS_MAX = 32
"""Links of one epoch. It may hold thousands of upstream epochs; collectors reject or cut longer lists, by default at
128.
"""

RANGES_MAX = 16
"""Ranges of segments listed as an attribute of one epoch."""

Value: TypeAlias = str | int | bool | tuple[str, ...]
Attributes: TypeAlias = Mapping[str, Value]


class SpanContext(NamedTuple):
    """What identifies a span, as in W3C Trace Context."""

    trace_id: int
    span_id: int


@dataclass(frozen=True, slots=True)
class EpochId:
    seed: bytes
    """Of the data directory: two workers that send to one collector may have pipelines of the same name."""
    pipeline: str
    incarnation: int
    number: int

    @property
    def root(self) -> SpanContext:
        return self.span("epoch")

    def span(self, *what: object) -> SpanContext:
        """The same span for the same words."""
        trace = self._digest()
        return SpanContext(int.from_bytes(trace[:16]), int.from_bytes(self._digest(*what)[:8]))

    def _digest(self, *what: object) -> bytes:
        words = (self.pipeline, self.incarnation, self.number, *what)
        return sha256(self.seed + "\n".join(map(str, words)).encode()).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span that has ended."""

    name: str
    context: SpanContext
    parent: SpanContext | None
    start_ns: int
    """Since 1970."""
    end_ns: int
    attributes: Attributes = field(default_factory=dict)
    links: tuple[SpanContext, ...] = ()
    error: str = ""
    """Why what it covers has failed."""


def upstream(seed: bytes, state: State, starts: Segments, ends: Segments) -> Iterator[SpanContext]:
    """The epochs whose output is in these ranges, newest first in each segment. Epochs that the ledger no longer lists
    are left out.
    """
    for segment, end in ends.items():
        name, _, port = segment.removeprefix(OUTPUT_PREFIX).partition("/")
        pipeline = state.pipelines.get(name) if segment.startswith(OUTPUT_PREFIX) else None
        if pipeline is not None:
            for number in _written(pipeline, port, starts.get(segment, 0), end):
                yield EpochId(seed, name, pipeline.incarnation, number).root


def _written(pipeline: Pipeline, port: str, start: int, end: int) -> Iterator[int]:
    """The epochs that have written some of these bytes of the port. Where the oldest listed epoch begins is not known,
    unless it is the first of all.
    """
    numbers = [*reversed(pipeline.epochs)]
    for number, before in zip(numbers, [*numbers[1:], None], strict=True):
        epoch = pipeline.epochs[number]
        upto = epoch.ends.get(port, 0)
        if upto <= start or (before is None and epoch.start != NO_EPOCH):
            return
        begun = 0 if before is None else pipeline.epochs[before].ends.get(port, 0)
        if begun < min(upto, end):
            yield number


def ranges(starts: Segments, ends: Segments) -> tuple[str, ...]:
    """What an epoch reads, for people."""
    found = [f"{segment} [{starts.get(segment, 0)}, {end})" for segment, end in sorted(ends.items())]
    more = len(found) - RANGES_MAX
    return tuple(found) if more <= 0 else (*found[:RANGES_MAX], f"and {more} more")


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


def origins(events: Iterable[bytes]) -> Iterator[SpanContext]:
    """The spans in which these stored events were sent, as far as they carry that. Other events are skipped."""
    for data in events:
        with suppress(ProtocolError):
            event = parse_event(data)
            found = _origin(event.metadata) if event is not None and isinstance(event.metadata, Mapping) else None
            if found is not None:
                yield found


def _origin(metadata: Mapping[str, Any]) -> SpanContext | None:
    """From the metadata of an event: `traceparent` there or among the headers."""
    headers = metadata.get("headers")
    given = metadata.get("traceparent") or (headers.get("traceparent") if isinstance(headers, Mapping) else None)
    match = _TRACEPARENT.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        return None
    context = SpanContext(int(match[1], 16), int(match[2], 16))
    return context if all(context) else None  # all zeros are invalid, says the standard
