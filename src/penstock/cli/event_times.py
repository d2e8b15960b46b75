"""Options of event time on the command line: durations for all sources or for one, and times."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import typer

from penstock.connectors.event_times import codecs_with_plugins
from penstock.core.durations import parse_duration_ms
from penstock.core.errors import RequestError
from penstock.ingest.settings import SourceSettings, WhenAllIdle
from penstock.protocol.event_time.field import ISO, SCANNED_CODECS, EventTimeField, checked_field, checked_format

_SOURCES = "Sources"
_METAVAR = "[NAME=]TIME"

T = TypeVar("T")

MaxDisorderOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar=_METAVAR,
        help="How far an event may lag behind the latest of its stream, like 5s. Default: 0.",
        rich_help_panel=_SOURCES,
    ),
]
IdleTimeoutOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar=_METAVAR,
        help="A stream that is silent for this long no longer blocks the watermark. Default: off.",
        rich_help_panel=_SOURCES,
    ),
]
WhenAllIdleOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]wait|clock",
        help="When all streams are idle: wait for an event, or follow the worker's clock. Default: wait.",
        rich_help_panel=_SOURCES,
    ),
]


EventTimeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]FIELD[,format=…][,missing=…][,codec=…]",
        help="The field of each event that contains its time, like ts or order.time; format: iso (default), s, ms, us, "
        "ns or strptime's; missing: dead-letter (default) or arrival; codec: json (default), msgpack, or csv with the "
        "number of a column.",
        rich_help_panel=_SOURCES,
    ),
]


def with_event_times(
    connector: SourceSettings,
    max_disorder: Sequence[str],
    idle_timeout: Sequence[str],
    when_all_idle: Sequence[str] = (),
    event_time: Sequence[str] = (),
) -> tuple[SourceSettings, dict[str, SourceSettings]]:
    """The settings for all sources, and those of the sources that are named. Raises RequestError."""
    disorder = by_name("--max-disorder", max_disorder, lambda text: parse_duration_ms(text) * 1000)
    timeouts = by_name("--idle-timeout", idle_timeout, _timeout_seconds)
    idle_rules = by_name("--when-all-idle", when_all_idle, _when_all_idle)
    fields = event_time_fields(event_time)
    default = replace(
        connector,
        max_disorder_us=disorder.pop("", connector.max_disorder_us),
        idle_timeout_seconds=timeouts.pop("", connector.idle_timeout_seconds),
        when_all_idle=idle_rules.pop("", connector.when_all_idle),
        event_time=fields.pop("", connector.event_time),
    )
    named = {
        name: replace(
            default,
            max_disorder_us=disorder.get(name, default.max_disorder_us),
            idle_timeout_seconds=timeouts.get(name, default.idle_timeout_seconds),
            when_all_idle=idle_rules.get(name, default.when_all_idle),
            event_time=fields.get(name, default.event_time),
        )
        for name in disorder.keys() | timeouts.keys() | idle_rules.keys() | fields.keys()
    }
    _check_idle_rules(default, named, when_all_idle)
    return default, named


def _check_idle_rules(default: SourceSettings, named: Mapping[str, SourceSettings], given: Sequence[str]) -> None:
    """Raises RequestError for a source that is to follow the clock and has no timeout. If the rule is set for all
    sources, one with a timeout is enough.
    """
    asked = {text.rpartition("=")[0] for text in given}
    everywhere = [default, *named.values()]
    for name in asked:
        settings = everywhere if not name else [named[name]]
        is_clock = settings[0].when_all_idle is WhenAllIdle.CLOCK
        if is_clock and all(each.idle_timeout_seconds is None for each in settings):
            prefix = f"{name}=" if name else ""
            raise RequestError(
                f"--when-all-idle {prefix}clock needs an idle timeout: without one no stream is ever idle",
                f"Add --idle-timeout {prefix}1m.",
            )


def by_name(option: str, given: Sequence[str], parse: Callable[[str], T]) -> dict[str, T]:
    """The key `""` is for all sources."""
    found: dict[str, T] = {}
    for text in given:
        name, _, value = text.rpartition("=")
        if name in found:
            raise RequestError(f"{option} is given twice for {name or 'all sources'}")
        try:
            found[name] = parse(value)
        except RequestError as error:
            raise RequestError(f"{option}: {error}", error.hint) from None
    return found


def _when_all_idle(text: str) -> WhenAllIdle:
    try:
        return WhenAllIdle(text.strip().lower())
    except ValueError:
        raise RequestError(f"{text!r} is neither wait nor clock", "Write wait or clock.") from None


def _timeout_seconds(text: str) -> float | None:
    if text.strip().lower() == "off":
        return None
    seconds = parse_duration_ms(text) / 1000
    if seconds == 0:
        raise RequestError("a timeout of 0 would make every stream idle at once", "Write off to disable it.")
    return seconds


_KEYS = re.compile(r",(?=(?:format|missing|codec)=)")


def event_time_fields(given: Sequence[str]) -> dict[str, EventTimeField]:
    """`[NAME=]FIELD`, then `format=…`, `missing=…` and `codec=…` after commas. The key `""` is for all sources. Raises
    RequestError.
    """
    found: dict[str, EventTimeField] = {}
    for text in given:
        first, *more = _KEYS.split(text)
        name, _, field = first.rpartition("=")
        if name in found:
            raise RequestError(f"--event-time is given twice for {name or 'all sources'}")
        try:
            found[name] = _field(field, dict(one.split("=", 1) for one in more))
        except RequestError as error:
            raise RequestError(f"--event-time: {error}", error.hint) from None
    return found


def _field(field: str, more: Mapping[str, str]) -> EventTimeField:
    codec, missing = more.get("codec", "json"), more.get("missing", "dead-letter")
    known = (*SCANNED_CODECS, *codecs_with_plugins())
    if codec not in known:
        raise RequestError(f"codec {codec!r} has no fields", f"Write one of {', '.join(known)}.")
    if missing not in ("arrival", "dead-letter"):
        raise RequestError(f"missing {missing!r} is neither arrival nor dead-letter", "Write one of them.")
    is_column = field.isascii() and field.isdecimal()
    if codec == "csv" and not is_column:
        raise RequestError(f"{field!r} is not the number of a column", "Columns are counted from 0, as in 2,codec=csv.")
    return EventTimeField(
        field=checked_field(field),
        format=checked_format(more.get("format", ISO)),
        missing="arrival" if missing == "arrival" else "dead-letter",
        codec=codec,
        column=int(field) if is_column else None,
    )


def parse_event_time(text: str) -> int:
    """In microseconds since 1970: a number of them, or a time as ISO 8601 writes it, in UTC unless it has an offset.
    Raises RequestError.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise RequestError(
            f"{text!r} is not a valid time", "Write it like 2026-01-31T12:00:00Z, or in microseconds since 1970."
        ) from None
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
