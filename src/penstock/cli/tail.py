"""`penstock tail`: look at the events of a source, a pipeline's output or a segment, while they arrive.

name ──resolve──▶ ranges of segments ──▶ events ──▶ decoded ──▶ --where ──▶ a line each
"""

import json
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Any, TypeAlias

import typer

from penstock.cli.connect import DataOption, WorkerOption, segment_client, worker_to_read
from penstock.cli.waiting import waiting
from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments import SegmentClient
from penstock.core.errors import RequestError
from penstock.protocol.api.pipelines import Range
from penstock.protocol.stored import Kind, StoredEvent, kind_of, parse_event

_RETRY_SECONDS = 3.0
"""How long to wait for a worker that is about to start: a person is waiting."""

_WAIT_MS = 10_000
"""One request that waits for new events, so that a lost connection is noticed."""

_PIECE_BYTES = 256 << 10
_PIECES_MAX = 4096
"""The last events are looked for from the end in pieces of this size, of a source of 1 GB; larger ones beyond that."""

_BATCH_EVENTS = 1000
"""How many events are decoded at once."""


def register(commands: typer.Typer) -> None:
    commands.command("tail")(tail)


def tail(
    name: Annotated[str, typer.Argument(help="A source, PIPELINE/PORT, or segment:NAME.")],
    count: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=1_000_000, help="How many of the last events to print.")
    ] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events as they come, until Ctrl-C.")
    ] = False,
    codec: Annotated[
        str | None,
        typer.Option("--codec", help="Decode values and print them as JSON: json, msgpack, avro …", show_default=False),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="DDL", help="For codecs that need one, such as csv.", show_default=False),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help="Only events that match, such as 'user.age >= 18' (= != < <= > >=, or ~ for a regular expression). "
            "With several, all must match. Values are JSON unless --codec names another codec.",
            show_default=False,
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--json", help="A JSON object for each event: segment, offset, stream, id, time, key, value."),
    ] = False,
    worker: WorkerOption = None,
    data: DataOption = None,
) -> None:
    """Print the last events of a source, and follow it.

    Reading changes nothing: no pipeline and no acknowledgement depends on
    it. Events that cannot be decoded are left out, with a warning.
    """
    conditions = [parse_condition(text) for text in where or ()]
    shown = _View(codec or ("json" if conditions else None), schema, conditions, full)
    address = worker_to_read(worker, data)
    with CoordinatorClient(address, _RETRY_SECONDS) as coordinator, segment_client(address) as segments:
        source, ends = _resolved(coordinator, name)
        with waiting(f"reading {source} …"):
            found = _last(coordinator, segments, source, ends, shown.chosen, count)
        for event in found:
            typer.echo(shown.line(event))
        if not found and count:
            typer.echo(_nothing(name, has_conditions=bool(conditions), follow=follow), err=True)
        with suppress(KeyboardInterrupt):
            while follow:
                start, ends = ends, coordinator.cut_sources([source], ends, wait_ms=_WAIT_MS)
                new = [Range(one, start.get(one, 0), end) for one, end in ends.items() if start.get(one, 0) < end]
                for piece in coordinator.splits(new, _PIECES_MAX, bytes_min=_PIECE_BYTES, skip_lost=True).splits:
                    for event in shown.chosen(_events(segments, piece)):
                        typer.echo(shown.line(event))


def _nothing(name: str, *, has_conditions: bool, follow: bool) -> str:
    """Why nothing is printed. An output that all its sinks have is usually removed at once."""
    what = "no stored event matches" if has_conditions else "no events are stored; what all its readers have is removed"
    return f"{name}: {what}" + ("" if follow else ". With -f it prints those that arrive")


# Which events.


@dataclass(frozen=True, slots=True)
class Seen:
    """An event where it is stored. `stored` is None in a segment of plain bytes."""

    segment: str
    offset: int
    value: bytes
    stored: StoredEvent | None = None
    decoded: Any = None
    """Its value, if a codec was named."""

    def described(self) -> dict[str, Any]:
        found: dict[str, Any] = {"segment": self.segment, "offset": self.offset}
        if self.stored is not None:
            found |= {"stream_id": self.stored.stream_id, "message_id": self.stored.event_id}
            found |= {"event_time": self.stored.event_time, "key": _text(self.stored.key), **self.stored.metadata}
        return found


def _resolved(coordinator: CoordinatorClient, name: str) -> tuple[str, dict[str, int]]:
    """The source's full name, and the ends of its segments."""
    named = name.partition(":")[0] in ("segment", "pipeline", "pravega")
    spellings = (
        [name] if named else [f"pipeline:{name}", f"segment:{name}"] if "/" in name else [name, f"segment:{name}"]
    )
    for spelling in spellings:
        with suppress(RequestError):
            if ends := coordinator.resolve([spelling], "latest"):
                return spelling, ends
    raise RequestError(f"there is no source, pipeline output or segment {name!r}", "List them: penstock status")


Choose: TypeAlias = "Callable[[Iterable[Seen]], list[Seen]]"


def _last(
    coordinator: CoordinatorClient,
    segments: SegmentClient,
    source: str,
    ends: Mapping[str, int],
    choose: Choose,
    count: int,
) -> list[Seen]:
    """The last events of all segments together, by their times; one without a time stays behind the one before it."""
    if not count:
        return []
    starts = coordinator.resolve([source], "earliest")
    found: list[tuple[int, Seen]] = []
    for name, end in sorted(ends.items()):
        time = 0
        for event in _last_of(coordinator, segments, Range(name, starts.get(name, 0), end), choose, count):
            time = max(time, (event.stored.event_time or 0) if event.stored is not None else 0)
            found.append((time, event))
        found = sorted(found, key=lambda one: one[0])[-count:]
    return [event for _, event in found]


def _last_of(
    coordinator: CoordinatorClient, segments: SegmentClient, place: Range, choose: Choose, count: int
) -> list[Seen]:
    if place.start >= place.end:
        return []
    found: list[Seen] = []
    pieces = coordinator.splits([place], _PIECES_MAX, bytes_min=_PIECE_BYTES, skip_lost=True).splits
    for piece in reversed(pieces):
        found = [*choose(_events(segments, piece)), *found][-count:]
        if len(found) >= count:
            break
    return found


def _events(segments: SegmentClient, place: Range) -> Iterator[Seen]:
    if place.start >= place.end:
        return
    is_stored = kind_of(place.segment).kind is Kind.STORED
    for event in segments.events(place.segment, place.start):
        if event.offset >= place.end:
            return
        stored = parse_event(event.data) if is_stored else None
        if stored is not None:
            yield Seen(place.segment, event.offset, stored.payload, stored)
        elif not is_stored:
            yield Seen(place.segment, event.offset, event.data)


# Which lines.


@dataclass(frozen=True, slots=True)
class _View:
    codec: str | None
    schema: str | None
    conditions: "Sequence[Condition]"
    full: bool

    def chosen(self, events: Iterable[Seen]) -> list[Seen]:
        """Those to show, decoded. Those that cannot be decoded are reported."""
        if self.codec is None:
            return [*events]
        found: list[Seen] = []
        events = iter(events)
        while batch := [*islice(events, _BATCH_EVENTS)]:
            for event, (value, reason) in zip(batch, self._decoded(batch), strict=True):
                if reason:
                    typer.echo(f"{event.segment}@{event.offset}: {reason}; --codec binary shows the bytes", err=True)
                elif all(condition.holds(value) for condition in self.conditions):
                    found.append(replace(event, decoded=value))
        return found

    def line(self, event: Seen) -> str:
        if self.codec is None and not self.full:
            return _text(event.value)
        value = _text(event.value) if self.codec is None else event.decoded
        return _json({**event.described(), "value": value} if self.full else value)

    def _decoded(self, batch: Sequence[Seen]) -> list[tuple[Any, str]]:
        """For each event, its value, or why it cannot be decoded."""
        assert self.codec is not None
        values = [event.value for event in batch]
        if self.codec == "json":  # needs no package
            return [_parsed(value) for value in values]
        return decoded_rows(self.codec, self.schema, values)


def decoded_rows(codec_name: str, schema: str | None, values: Sequence[bytes]) -> list[tuple[Any, str]]:
    """For each value, its columns as they would be in Spark, or why it cannot be decoded. Raises RequestError."""
    try:
        import pyarrow as pa

        from penstock.core.ddl import parse_ddl
        from penstock.spark.codecs.api import TooMuch, check_decoded
        from penstock.spark.codecs.codec import DATA, ROWS, TEXT
        from penstock.spark.codecs.registry import codec
    except ImportError as error:
        hint = "Install it: pip install 'penstock-streams[spark]'"
        raise RequestError(f"codecs other than json need {error.name}, which is not installed", hint) from None
    found = codec(codec_name)
    fields = parse_ddl(schema) if schema else None
    check_decoded(found, fields)
    try:
        columns = found.decoder(fields)(pa.array(values, pa.binary()))
    except TooMuch:
        middle = len(values) // 2
        halves = (values[:middle], values[middle:])
        return [row for half in halves for row in decoded_rows(codec_name, schema, half)]
    names = [field.name for field in found.fields(fields)]
    variants = {field.name for field in found.fields(fields) if field.kind.name == "variant"}
    arrays = [array.to_pylist(maps_as_pydicts="lossy") for array in columns.arrays]
    rows = iter(
        {
            name: json.loads(value) if name in variants and value is not None else value
            for name, value in zip(names, row, strict=True)
        }
        for row in zip(*arrays, strict=True)
    )
    whole = names[0] if names in ([DATA], [TEXT], [ROWS]) else None
    return [
        (None, f"its value {columns.failed[number]}")
        if number in columns.failed
        else (next(rows) if whole is None else next(rows)[whole], "")
        for number in range(len(values))
    ]


def _parsed(value: bytes) -> tuple[Any, str]:
    try:
        return json.loads(value), ""
    except (ValueError, RecursionError):
        return None, "its value is not valid JSON, or nested too deeply"


def _text(value: bytes) -> str:
    """Bytes that are not valid text are shown as escapes, so that each event is one line."""
    text = value.decode(errors="backslashreplace")
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=not sys.stdout.encoding.lower().startswith("utf"), default=_shown)
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _shown(value: object) -> Any:
    """What JSON has no form for: bytes and times."""
    return _text(value) if isinstance(value, bytes) else str(value)


# --where

_CONDITION = re.compile(r"\s*([^\s=!<>~]+)\s*(==|=|!=|<=|>=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda value, pattern: pattern.search(value if isinstance(value, str) else _json(value)) is not None,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """On a field of a value, `user.age` for a nested one. Without the field, or with one of another type, it does not
    hold, except for `!=`.
    """

    path: tuple[str, ...]
    operator: str
    operand: Any

    def holds(self, value: Any) -> bool:
        for name in self.path:
            if isinstance(value, list) and name.isdigit() and int(name) < len(value):
                value = value[int(name)]
            elif isinstance(value, dict) and name in value:
                value = value[name]
            else:
                return self.operator == "!="
        try:
            return _OPERATORS[self.operator](value, self.operand)
        except TypeError:
            return False


def parse_condition(text: str) -> Condition:
    """`FIELD OPERATOR VALUE`: the value is JSON, or else text. Raises RequestError."""
    matched = _CONDITION.fullmatch(text)
    if matched is None:
        raise RequestError(f"--where {text!r} is not a condition", "Write it like 'total > 100' or 'user.name ~ ^A'.")
    field, sign, given = matched.groups()
    if sign == "~":
        try:
            return Condition(tuple(field.split(".")), sign, re.compile(given))
        except re.error as error:
            raise RequestError(f"--where {text!r}: {given!r} is not a regular expression: {error}") from None
    try:
        operand = json.loads(given)
    except ValueError:
        operand = given
    return Condition(tuple(field.split(".")), sign, operand)
