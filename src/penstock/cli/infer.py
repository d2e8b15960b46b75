"""`penstock infer`: proposes a schema for the events of a source."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
import typer

from penstock.cli.connect import DataOption, JsonOption, WorkerOption, segment_client, worker_to_read
from penstock.cli.waiting import waiting
from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments import SegmentClient
from penstock.core.counts import show_count
from penstock.core.errors import RequestError
from penstock.core.kinds import ddl
from penstock.protocol.api.pipelines import Range
from penstock.protocol.stored import Kind, kind_of, parse_event
from penstock.spark.codecs.codec import CODECS
from penstock.spark.codecs.inference import Inferred, guess_codec, infer, record_of, unit_name

_RETRY_SECONDS = 3.0
"""How long to wait for a worker that is about to start: a person is waiting."""

_PLACES = 10
"""Samples are taken from this many places of a source, so that old and new events are among them."""

Codec = Literal["json", "msgpack", "csv"]


def register(commands: typer.Typer) -> None:
    commands.command("infer")(infer_schema)


def infer_schema(
    source: Annotated[
        str, typer.Argument(help="A connector, pipeline:NAME/PORT, segment:NAME or pravega:SCOPE/STREAM.")
    ],
    codec: Annotated[
        Codec | None, typer.Option("--codec", help="Default: the one that most events fit.", show_default=False)
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", "-n", min=1, max=100_000, help="How many events to read.")
    ] = 1000,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="NAME,…", help="The names of CSV fields.", show_default=False)
    ] = None,
    header: Annotated[bool, typer.Option("--header", help="The first stored event names the CSV fields.")] = False,
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Propose a schema for the events of a source, from events that are stored.

    Prints lines for the connector in the application's YAML. Comments list
    fields whose types differ between events, fields that some events lack,
    and fields that may be the event time.
    """
    address = worker_to_read(worker, data)
    with (
        waiting(f"reading {source} …"),
        CoordinatorClient(address, _RETRY_SECONDS) as coordinator,
        segment_client(address) as segments,
    ):
        ranges = _ranges(coordinator, source)
        found = [*_samples(coordinator, segments, ranges, samples)]
        names = _header(segments, ranges) if header else columns.split(",") if columns else None
    if not found:
        raise RequestError(f"{source} has no events", "Send some first: penstock send")
    chosen = (
        codec or ("csv" if names else None) or _by_content_type(found) or guess_codec([value for _, value in found])
    )
    if chosen is None:
        raise RequestError(f"the events of {source} are not JSON, MessagePack or CSV", "Name the codec with --codec.")
    values = [value for _, value in found if not (header and record_of(value) == names)]
    with waiting(f"comparing {show_count(len(values), 'event')} …"):
        result = infer(chosen, values, names)
    typer.echo(json.dumps(_as_json(result)) if as_json else "\n".join(_lines(source, result)))


def _ranges(coordinator: CoordinatorClient, source: str) -> list[Range]:
    ends = coordinator.resolve([source], "latest")
    starts = coordinator.resolve([source], "earliest")
    if not ends:
        raise RequestError(f"source {source!r} not found", "List them: penstock status")
    return [Range(name, starts.get(name, 0), end) for name, end in sorted(ends.items()) if starts.get(name, 0) < end]


def _samples(
    coordinator: CoordinatorClient, segments: SegmentClient, ranges: Sequence[Range], wanted: int
) -> Iterator[tuple[str | None, bytes]]:
    """Content types and values, from several places: small ones first, so that the others make up for them."""
    if not ranges:
        return
    places = sorted(coordinator.splits(ranges, _PLACES).splits, key=lambda place: place.end - place.start)
    left = wanted
    for number, place in enumerate(places):
        share = -(-left // (len(places) - number))
        taken = [*islice(_events(segments, place), share)]
        left -= len(taken)
        yield from taken


def _events(segments: SegmentClient, place: Range) -> Iterator[tuple[str | None, bytes]]:
    is_stored = kind_of(place.segment).kind is Kind.STORED
    for event in segments.events(place.segment, place.start):
        if event.offset >= place.end:
            return
        if not is_stored:
            yield None, event.data
        elif (stored := parse_event(event.data)) is not None:
            given = stored.metadata.get("content_type")
            yield given if isinstance(given, str) else None, stored.payload


def _header(segments: SegmentClient, ranges: Sequence[Range]) -> list[str]:
    for place in ranges:
        for _, value in _events(segments, place):
            if names := record_of(value):
                return names
    raise RequestError("the source has no event with a header", "Name the fields with --columns.")


def _by_content_type(samples: Sequence[tuple[str | None, bytes]]) -> str | None:
    """The codec of the first content type that is one of a codec's."""
    kinds = (given.partition(";")[0].strip().lower() for given, _ in samples if given)
    known = {kind: name for name in ("json", "msgpack", "csv") for kind in CODECS[name].content_types}
    return next((known[kind] for kind in kinds if kind in known), None)


def _lines(source: str, found: Inferred) -> Iterator[str]:
    count = show_count(found.samples, "event")
    yield f"# {count} of {source}" + (
        f"; {found.unreadable:,} not readable as {found.codec}" if found.unreadable else ""
    )
    for name, counts in found.conflicts.items():
        kinds = ", ".join(f"{kind} in {number:,}" for kind, number in sorted(counts.items())) or "always null"
        yield f"# `{name}`: STRING, because the values differ: {kinds}" if counts else f"# `{name}`: always null"
    if found.missing:
        lacking = ", ".join(f"`{name}` (in {number:,})" for name, number in found.missing.items())
        yield f"# missing or null in some: {lacking}"
    for name, why in found.left_out.items():
        yield f"# `{name}` is left out: {why}"
    for one in found.candidates:
        what = "a time in ISO 8601" if one.format == "iso" else f"may be {unit_name(one.format)} since 1970"
        yield f"# `{one.field}` is a candidate for the event time: {what}"
    yield f"codec: {found.codec}"
    yield f"schema: {_quoted(ddl(found.fields))}"


def _quoted(text: str) -> str:
    """As a YAML value: in quotes if it has a character with a meaning there."""
    if not any(sign in text for sign in ("`", "'", '"', "#", ": ", "\\")):
        return text
    return "'" + text.replace("'", "''") + "'"


def _as_json(found: Inferred) -> dict[str, Any]:
    return {**msgspec.to_builtins(found), "schema": ddl(found.fields)}
